"""Fine samples (10 Hz), in separate segments that are kept for some hours.

The run's segments hold their one-second means and the intermediate results of their score, so that removing
fine samples changes no score.
"""

import math
import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..sample import FINE_INTERVAL, Columns, SampleTable
from .segment_files import segment_files
from .segments import read_samples

_NAME = re.compile(r"(.+)-\d{1,19}-\d+(?:\.closed)?\.arrows")
#: Maximum bytes of segments that are read into one table: about half a million samples, three hours of four
#: GPUs.
_MAX_BYTES = 32 << 20
#: Share of the scored time that fine samples must cover, and seconds at both ends that are not considered,
#: because they may be cut off or not written yet.
_MIN_COVERAGE, _MARGIN_S = 0.98, 3.0


def fine_folder(telemetry: Path) -> Path:
    """Return the directory of a run's fine samples."""
    return telemetry / "fine"


@dataclass(frozen=True)
class FineRetention:
    """Retention of fine samples, as ``GIPFEL_FINE_HOURS`` and ``GIPFEL_FINE_MEGABYTES`` set it.

    Parameters
    ----------
    hours
        Age at which fine samples are removed; 0 disables them.
    megabytes
        Maximum size of one recorder's fine samples; the oldest are removed first.
    """

    hours: float = 24.0
    megabytes: float = 64.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "FineRetention":
        """Return the settings in environment variables; invalid numbers become the default."""
        return cls(
            _number(environment.get("GIPFEL_FINE_HOURS"), cls.hours),
            _number(environment.get("GIPFEL_FINE_MEGABYTES"), cls.megabytes),
        )

    def prune(self, folder: Path, now_ns: int, *, name_prefix: str | None = None) -> None:
        """Remove segments that are too old and, of one recorder, those beyond the maximum size.

        Parameters
        ----------
        name_prefix
            Prefix of the file names of one recorder's segments; None removes all recorders' by age alone.
        """
        files = []
        with suppress(OSError):
            files = [(Path(each.path), each.stat(follow_symlinks=False)) for each in os.scandir(folder)]
        total_bytes = 0
        for path, status in sorted(files, key=lambda each: -each[1].st_mtime_ns):
            name = _NAME.fullmatch(path.name)
            if name is None or not stat.S_ISREG(status.st_mode) or name_prefix not in {None, name[1]}:
                continue
            # The newest segment is still being written.
            too_large = name_prefix is not None and 0 < total_bytes > self.megabytes * 1e6 - status.st_size
            total_bytes += status.st_size
            if too_large or now_ns - status.st_mtime_ns > self.hours * 3600e9:
                with suppress(OSError):
                    path.unlink()


def read_finest(
    telemetry: Path,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    simulated: bool | None = None,
    metrics: Collection[str] | None = None,
) -> SampleTable:
    """Return a run's samples like :func:`segments.read_samples`; fine samples where all of them still exist.

    With fine samples of GPUs, each host sample is repeated until the next one.
    """
    names = None if metrics is None else {*metrics, "SCORE_SHARE"}
    table = read_samples(telemetry, since_ns=since_ns, until_ns=until_ns, simulated=simulated, metrics=names)
    if not any("SCORE_SHARE" in table[gpu.uuid] for gpu in table.gpus):
        return table
    folder = fine_folder(telemetry)
    files = [file for file in segment_files(folder) if file.overlaps(since_ns, until_ns)]
    with suppress(OSError):
        if not files or sum(file.path.stat().st_size for file in files) > _MAX_BYTES:
            return table
        fine = read_samples(
            folder, since_ns=since_ns, until_ns=until_ns, simulated=simulated, metrics=metrics
        )
        if all(gpu.uuid in fine and _covers(table[gpu.uuid], fine[gpu.uuid]) for gpu in table.gpus):
            return _joined(table, fine)
    return table


def _covers(seconds: Columns, fine: Columns) -> bool:
    """Return whether the fine samples of a GPU cover the time that its one-second samples scored."""
    shares = seconds.get("SCORE_SHARE")
    if shares is None or not np.isfinite(shares).any():
        return False
    return len(fine["time_ns"]) * FINE_INTERVAL >= _MIN_COVERAGE * float(np.nansum(shares)) - _MARGIN_S


def _joined(table: SampleTable, fine: SampleTable) -> SampleTable:
    columns = {gpu.uuid: fine[gpu.uuid] for gpu in table.gpus}
    for host in table.hosts:
        gpu_times = [fine[gpu.uuid]["time_ns"] for gpu in table.gpus if gpu.node == host.node]
        host_columns = table[host.uuid]
        columns[host.uuid] = host_columns
        host_times = host_columns["time_ns"]
        if gpu_times and len(host_times):
            times = max(gpu_times, key=len)
            rows = np.minimum(np.searchsorted(host_times, times), len(host_times) - 1)
            repeated = {name: each[rows] for name, each in host_columns.items()}
            columns[host.uuid] = repeated | {"time_ns": times}
    segments = tuple(
        replace(segment, provenance=replace(segment.provenance, interval=FINE_INTERVAL))
        for segment in table.segments
    )
    return replace(table, columns=columns, interval=FINE_INTERVAL, segments=segments)


def _number(text: str | None, default: float) -> float:
    try:
        number = float(text) if text else default
    except ValueError:
        return default
    return number if math.isfinite(number) and number >= 0 else default
