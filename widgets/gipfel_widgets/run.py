"""Runs as a kernel uses them: that of its job, or a new one with its own recorder; and loading of any run."""

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder, ScratchFolder, live_sockets, runs_root
from gipfel_extension.cli.scored_run import resolve_recording
from gipfel_extension.telemetry.recorder_process import RecorderProcess
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.store.catalogue import load_run
from gipfel_extension.telemetry.store.segments import read_samples

if TYPE_CHECKING:
    import pyarrow as pa

#: Seconds to wait for a recorder's first sample, and for its end after SIGTERM.
_FIRST_SAMPLE_S = 20.0
_END_S = 5.0
_GLANCE_S = 0.1


@dataclass(frozen=True)
class KernelRun:
    """A run folder, and the directory of its recorders' sockets.

    Parameters
    ----------
    folder
        The run folder.
    sockets
        Directory of the recorders' sockets; None if samples can only be read from disk.
    """

    folder: RunFolder
    sockets: Path | None = None

    @property
    def path(self) -> Path:
        """Path of the run folder."""
        return self.folder.path

    @property
    def telemetry(self) -> Path:
        """Directory of the segments (files of samples)."""
        return self.folder.telemetry

    def set_ended(self) -> None:
        """Write the time of the end to the record; a run without it may count as in use."""
        with contextlib.suppress(OSError, GipfelError):
            ended = datetime.now(UTC).isoformat(timespec="milliseconds")
            self.folder.write_record({**self.folder.read_record(), "ended": ended})

    def __str__(self) -> str:
        return str(self.path)


def present_run() -> KernelRun | None:
    """Return the run that this kernel belongs to, usually that of its job; ``$GIPFEL_RUN`` is its folder.

    Returns
    -------
    KernelRun or None
        None outside of a run, or if its folder no longer exists.
    """
    given = os.environ.get("GIPFEL_RUN")
    if not given or not Path(given).is_dir():
        return None
    sockets = os.environ.get("GIPFEL_SOCKETS")
    return KernelRun(RunFolder(Path(given)), Path(sockets) if sockets else None)


def run_at(path: Path, environment: Mapping[str, str] | None = None) -> KernelRun:
    """Return the run of a folder, with sockets if a process such as ``gipfel record`` streams it here."""
    environment = os.environ if environment is None else environment
    return KernelRun(RunFolder(path), live_sockets(path, node_name(environment)))


def run_of(run: KernelRun | Path | str | None) -> KernelRun | None:
    """Return the run of a folder; for None the run that this kernel belongs to, if there is one."""
    present = present_run()
    if run is None or isinstance(run, KernelRun):
        return run or present
    path = Path(run).expanduser()
    return present if present is not None and present.path == path else run_at(path)


def create_run(source: str, interval: float | None) -> KernelRun:
    """Create a run folder ``measure-<pid>-<time>`` with its record, and a directory for sockets in ``/tmp``.

    Raises
    ------
    GipfelError
        The run folder can't be created.
    """
    node = node_name(os.environ)
    # Milliseconds: a kernel may measure twice within a second, and each measurement has its own record.
    job_id = f"{os.getpid()}-{time.time_ns() // 1_000_000}"
    folder = RunFolder.create(runs_root(dict(os.environ)), "measure", job_id)
    folder.write_record(
        {
            "schema": 1,
            "kind": "measurement",
            "cluster": "measure",
            "job_id": job_id,
            "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "node": node,
            "nodes": [node],
            "source": source,
            "interval": interval,
            "beside": os.environ.get("GIPFEL_RUN"),
            "edf": None,
            "edf_digest": None,
        }
    )
    # The path of a Unix socket can have 107 bytes; paths in home directories are often longer.
    return KernelRun(folder, ScratchFolder.create().path)


def node_name(environment: Mapping[str, str]) -> str:
    """Return the short name of the node that the kernel runs on."""
    return environment.get("GIPFEL_NODE") or socket.gethostname().partition(".")[0]


def start_recorder(
    run: KernelRun, name: str, sources: tuple[str, ...], interval: float | None
) -> RecorderProcess:
    """Start a recorder for the kernel's processes, and wait for its first sample: 20 s, and one interval.

    Parameters
    ----------
    run
        A run from `create_run`, with a directory for sockets.
    name
        ``job``, or ``simulated`` for a simulated source.

    Raises
    ------
    GipfelError
        The recorder can't be started, ended at once, or wrote no sample in time.
    """
    try:
        recorder = RecorderProcess(
            run.telemetry,
            node=node_name(os.environ),
            name=name,
            sources=sources,
            interval=interval,
            sockets=run.sockets,
            log=run.path / f"recorder-{name}.log",
            options=(f"--root-pid={os.getpid()}",),
        )
    except OSError as error:
        raise GipfelError(f"The recorder can't be started: {error.strerror}.") from error
    try:
        _await_first_sample(recorder, run.telemetry, _FIRST_SAMPLE_S + (interval or 1.0))
    except BaseException:
        stop_recorder(recorder, run)
        raise
    return recorder


def _await_first_sample(recorder: RecorderProcess, telemetry: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not read_samples(telemetry).rows:
        if recorder.exit_status is not None:
            raise GipfelError(recorder.last_log_line() or "The recorder ended at once.")
        if time.monotonic() > deadline:
            raise GipfelError(f"No sample came within {patience_s:g} s.", f"Look into {recorder.log}.")
        time.sleep(_GLANCE_S)


def stop_recorder(recorder: RecorderProcess, run: KernelRun) -> None:
    """End a recorder, which writes its last samples, or kill it after 5 s; remove its sockets."""
    recorder.stop(_END_S)
    if run.sockets is not None:
        shutil.rmtree(run.sockets, ignore_errors=True)


def load(
    run: str | os.PathLike[str] = "",
    *names: str,
    ranks: Collection[int] | int | None = None,
    gpus: Collection[str] | str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    fine: bool = False,
) -> "pa.Table":
    """Return metrics of a run by their names, as an Arrow table with a row for each value.

    The columns are ``time``, ``metric``, ``node``, ``device``, ``rank`` and ``value``. Get one as a numpy
    array with ``table["value"].to_numpy()``, or all as a pandas frame with ``table.to_pandas()``. ``gipfel
    catalogue`` lists the names; logged metrics have the names that the program gave them. In a name, ``*``
    stands for any characters; ``"events"`` returns the events.

    >>> load("alps-48812", "SM_ACTIVE", "train/loss", ranks=range(4))  # doctest: +SKIP

    Parameters
    ----------
    run
        A run folder or its name; by default this job's, else your newest.
    ranks, gpus
        Ranks, and UUIDs of GPUs; by default all.
    since, until
        Time range; a time without a zone is local time.
    fine
        Return the GPU samples taken ten times a second, where they still exist.

    Raises
    ------
    SourceError
        No name was given, the run has no such metric, or it can't be read.
    """
    if not names:
        raise SourceError(
            "No metric was named.", 'Write load("RUN", "SM_ACTIVE"); `gipfel catalogue` lists them.'
        )
    path = Path(run) if isinstance(run, os.PathLike) else resolve_recording(run)
    return load_run(
        path,
        names,
        ranks={ranks} if isinstance(ranks, int) else ranks,
        gpus={gpus} if isinstance(gpus, str) else gpus,
        since_ns=_nanoseconds(since),
        until_ns=_nanoseconds(until),
        fine=fine,
    )


def _nanoseconds(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1e9)
