"""Replay: a recorded segment, folder or Parquet file, played again from its beginning, over and over."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..sample import FINE_INTERVAL, Device, Sample, SampleTable, SourceError, metric_names
from ..store.segments import read_parquet, read_samples, read_segment
from .protocol import Clock, SourceRequest


class ReplaySource:
    """The devices of a recording, at the pace at which they were recorded.

    Values are those of the recorded sample before the time that has passed, so the pace of reading is free.

    Parameters
    ----------
    path
        A segment (``.arrows``), a telemetry folder, or Parquet as :func:`segments.write_parquet` makes it.

    Raises
    ------
    SourceError
        The file can't be read, or holds no sample.
    """

    simulated = True

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.name = f"replay:{path.name}"
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        table = _load(path)
        # A name of its own: the recording may be of the very GPUs that are recorded beside it.
        self._uuids = {device.uuid: f"replay-{device.uuid}" for device in table.devices}
        self.devices: tuple[Device, ...] = tuple(
            replace(device, uuid=self._uuids[device.uuid], simulated=True) for device in table.devices
        )
        self._table = table
        #: A recording of ten samples a second is replayed as one.
        self.fine = 0 < table.interval <= FINE_INTERVAL
        times = [table.of(d.uuid)["time_ns"] for d in table.devices]
        self._first_ns = int(min(t[0] for t in times if len(t)))
        self._length_ns = (
            int(max(t[-1] for t in times if len(t))) - self._first_ns + int(table.interval * 1e9)
        )

    def read(self) -> list[Sample]:
        """The recorded values that are due now, under the present time."""
        time_ns, monotonic_ns = self._clock.time_ns(), self._clock.monotonic_ns()
        due_ns = self._first_ns + (monotonic_ns - self._started_ns) % max(1, self._length_ns)
        samples = []
        for device in self._table.devices:
            columns = self._table.of(device.uuid)
            row = int(np.searchsorted(columns["time_ns"], due_ns, side="right")) - 1
            if row >= 0:
                numbers = {metric: float(columns[metric][row]) for metric in metric_names(columns)}
                values = {metric: None if np.isnan(value) else value for metric, value in numbers.items()}
                samples.append(Sample(time_ns, monotonic_ns, self._uuids[device.uuid], values))
        return samples

    def close(self) -> None:
        """Hold nothing, give nothing back."""


def open_replay(argument: str, request: SourceRequest) -> ReplaySource:
    """``replay:FILE``."""
    if not argument:
        raise SourceError("replay names no recording.", "Use replay:FILE.")
    return ReplaySource(Path(argument).expanduser(), clock=request.clock)


def _load(path: Path) -> SampleTable:
    try:
        if path.is_dir():
            table = read_samples(path)
        elif path.suffix == ".parquet":
            table = read_parquet(path)
        else:
            table = read_segment(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"The recording {path} can't be read: {error}.",
            "Name a segment (.arrows), a folder of them or Parquet.",
        ) from error
    if not table.rows:
        raise SourceError(
            f"The recording {path} holds no sample.", "Name a segment, a folder of them or Parquet."
        )
    return table
