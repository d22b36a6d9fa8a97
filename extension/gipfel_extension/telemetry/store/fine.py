"""Samples that come ten times a second: in segments of their own beside those of a second, for some hours.

Each second of them is in the segments of the run, with the parts of their score: what is removed here changes
no score.
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
#: More bytes of segments than this are not read for one table: about half a million samples, three hours of
#: four GPUs.
_MOST_BYTES = 32 << 20
#: The share of what was scored that must be there, but for seconds that are cut off or not written yet.
_WHOLE, _CUT_S = 0.98, 3.0


def fine_folder(telemetry: Path) -> Path:
    """Return where the fine samples of a run are."""
    return telemetry / "fine"


@dataclass(frozen=True)
class FineRetention:
    """Retention of fine samples, as ``GIPFEL_FINE_HOURS`` and ``GIPFEL_FINE_MEGABYTES`` set it.

    Parameters
    ----------
    hours
        After so many hours they are removed; 0: they are not recorded.
    megabytes
        What a recorder keeps at most of its own; then the oldest are removed.
    """

    hours: float = 24.0
    megabytes: float = 64.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "FineRetention":
        """Return the settings of an environment; the default for what is not a number."""
        return cls(
            _number(environment.get("GIPFEL_FINE_HOURS"), cls.hours),
            _number(environment.get("GIPFEL_FINE_MEGABYTES"), cls.megabytes),
        )

    def prune(self, folder: Path, now_ns: int, *, own: str | None = None) -> None:
        """Remove the segments of a folder that are too old and, of one recorder, those that are too many.

        Parameters
        ----------
        own
            How the names of one recorder's segments begin; None for those of all, by their age alone.
        """
        files = []
        with suppress(OSError):
            files = [(Path(each.path), each.stat(follow_symlinks=False)) for each in os.scandir(folder)]
        held = 0
        for path, status in sorted(files, key=lambda each: -each[1].st_mtime_ns):
            name = _NAME.fullmatch(path.name)
            if name is None or not stat.S_ISREG(status.st_mode) or own not in {None, name[1]}:
                continue
            # The newest is being written.
            many = own is not None and 0 < held > self.megabytes * 1e6 - status.st_size
            held += status.st_size
            if many or now_ns - status.st_mtime_ns > self.hours * 3600e9:
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
    """Return a run's samples as :func:`segments.read_samples` does: the fine ones where all are still there.

    Beside fine samples of GPUs a host's are repeated for each moment since the one before.
    """
    wanted = None if metrics is None else {*metrics, "SCORE_SHARE"}
    table = read_samples(telemetry, since_ns=since_ns, until_ns=until_ns, simulated=simulated, metrics=wanted)
    if not any("SCORE_SHARE" in table.of(gpu.uuid) for gpu in table.gpus):
        return table
    folder = fine_folder(telemetry)
    files = [file for file in segment_files(folder) if file.within(since_ns, until_ns)]
    with suppress(OSError):
        if not files or sum(file.path.stat().st_size for file in files) > _MOST_BYTES:
            return table
        fine = read_samples(
            folder, since_ns=since_ns, until_ns=until_ns, simulated=simulated, metrics=metrics
        )
        if all(gpu.uuid in fine and _whole(table.of(gpu.uuid), fine.of(gpu.uuid)) for gpu in table.gpus):
            return _joined(table, fine)
    return table


def _whole(seconds: Columns, fine: Columns) -> bool:
    """Return whether there are as many fine samples of a GPU as its seconds were made of."""
    shares = seconds.get("SCORE_SHARE")
    if shares is None or not np.isfinite(shares).any():
        return False
    return len(fine["time_ns"]) * FINE_INTERVAL >= _WHOLE * float(np.nansum(shares)) - _CUT_S


def _joined(table: SampleTable, fine: SampleTable) -> SampleTable:
    columns = {gpu.uuid: fine.of(gpu.uuid) for gpu in table.gpus}
    for host in table.hosts:
        beside = [fine.of(gpu.uuid)["time_ns"] for gpu in table.gpus if gpu.node == host.node]
        own = table.of(host.uuid)
        columns[host.uuid] = own
        if beside and len(own["time_ns"]):
            times = max(beside, key=len)
            rows = np.minimum(np.searchsorted(own["time_ns"], times), len(own["time_ns"]) - 1)
            columns[host.uuid] = {name: each[rows] for name, each in own.items()} | {"time_ns": times}
    segments = tuple(replace(segment, interval=FINE_INTERVAL) for segment in table.segments)
    return replace(table, columns=columns, interval=FINE_INTERVAL, segments=segments)


def _number(text: str | None, usual: float) -> float:
    try:
        number = float(text) if text else usual
    except ValueError:
        return usual
    return number if math.isfinite(number) and number >= 0 else usual
