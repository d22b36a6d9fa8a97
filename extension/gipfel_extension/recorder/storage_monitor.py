"""The job's input and output on this node, and response times of its file systems; see ``../storage/``."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ..storage import (
    MountRow,
    Period,
    PressureRow,
    ProbeRow,
    StorageFile,
    files_row,
    mount_row,
    probe_row,
    rank_row,
)
from ..storage.file_systems import LARGE_BYTES, OpenCounter, ProbeTimes, Target, probe, read_stripes
from ..storage.job_files import FileGroup, JobFiles
from ..telemetry.sources import Clock
from ..telemetry.sources.file_systems import (
    ClientCounters,
    Mount,
    MountTable,
    rates_of,
    read_clients,
    read_mounts,
)
from ..telemetry.sources.host import Cgroup, job_cgroup
from .job_processes import JobProcesses

#: Seconds between two readings of the processes, between two lines of the file, and between rounds of probes.
_LOOK_S, _PERIOD_S, _PROBE_S = 2.0, 10.0, 20.0
#: Seconds of each period during which opened files are counted.
_COUNT_S = 1.0
#: Maximum number of probed mounts, of groups of files in a line, and of files whose striping is read.
_MOST_PROBED, _MOST_FILES, _MOST_STRIPES = 4, 32, 64
#: Maximum seconds to wait for the thread at the end.
_END_S = 3.0
log = logging.getLogger("gipfel.recorder")


class StorageMonitor:
    """Monitor of the job's input and output; writes ``storage/<node>.jsonl`` from separate threads.

    Parameters
    ----------
    root_pid
        Root of the job's process tree; None for the processes of the Slurm job of `environment`.
    probing
        True on the one node of the job that probes its file systems.
    """

    def __init__(
        self,
        run: Path,
        node: str,
        *,
        root_pid: int | None,
        environment: Mapping[str, str],
        clock: Clock,
        probing: bool = True,
        proc: Path = Path("/proc"),
    ) -> None:
        self._node, self._clock, self._proc = node, clock, proc
        self._environment = dict(environment)
        self._processes = JobProcesses(root_pid, environment, proc)
        self._files = JobFiles(proc)
        self._file = StorageFile(run, node)
        self._opens: OpenCounter | None = None
        self._opens_why = ""
        self._clients: dict[str, ClientCounters] = {}
        self._stripes: dict[str, int] = {}
        pid = os.getpid() if root_pid is None else root_pid
        self._pressure = PressureCounter(job_cgroup(pid, proc=proc), proc)
        self._prober = Prober(run, clock.monotonic_ns) if probing else None
        self._looked_ns = self._began_ns = clock.monotonic_ns()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the last period and end the threads, except one that is blocked by a file system."""
        self._ended.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        """Read the job's processes every two seconds, and write a line every ten."""
        try:
            self._opens = OpenCounter()
        except OSError as error:
            self._opens_why = f"Opened files can't be counted: {error.strerror}."
        due = time.monotonic() + _PERIOD_S
        ended = False
        while not ended:
            self._look()
            if self._prober is not None:
                self._prober.start_when_due(self._targets(), _PROBE_S)
            ended = self._ended.wait(_LOOK_S)
            if ended:
                self._look()
            if ended or time.monotonic() >= due:
                due = time.monotonic() + _PERIOD_S
                try:
                    self._write(count=not ended)
                except Exception as error:  # noqa: BLE001 - a damaged counter must not end the recording
                    log.debug("storage: %s", error)
        if self._opens is not None:
            self._opens.close()

    def _look(self) -> None:
        with suppress(OSError):
            self._looked_ns = self._clock.monotonic_ns()
            self._files.look(self._processes.find())

    def _write(self, *, count: bool) -> None:
        opened = self._count_opens() if count else None
        seconds, self._began_ns = (self._looked_ns - self._began_ns) / 1e9, self._looked_ns
        if seconds <= 0:
            return
        ranks = tuple(rank_row(each, seconds) for each in self._files.take_ranks())
        groups = self._files.groups()[:_MOST_FILES]
        mounts = self._mount_rows(groups, opened, seconds)
        probes: tuple[ProbeRow, ...] = () if self._prober is None else tuple(self._prober.take())
        why = self._opens.why if self._opens is not None else self._opens_why
        self._read_stripes(groups)
        if ranks or probes:
            pressure = self._pressure.read(time.monotonic())
            period = Period(
                self._node, self._clock.time_ns(), round(seconds, 3), why, ranks, mounts, probes, pressure
            )  # fmt: skip
            self._file.append(period, [files_row(each, self._stripes) for each in groups])

    def _count_opens(self) -> dict[str, float] | None:
        """Return the files opened per second by mount; None where they can't be counted."""
        if self._opens is None:
            return None
        self._opens.watch(self._files.directories)
        counts, seconds = self._opens.count(_COUNT_S, time.monotonic)
        rates: dict[str, float] = {}
        for name, number in [*counts.items(), *dict.fromkeys(self._files.directories, 0).items()]:
            mount = self._files.mounts.of_path(name)
            if mount is not None:
                rates[mount.path] = rates.get(mount.path, 0.0) + number / seconds
        return rates

    def _mount_rows(
        self, groups: list[FileGroup], opened: dict[str, float] | None, seconds: float
    ) -> tuple[MountRow, ...]:
        """Return a row for each mount with files of the job, and for each NFS and Lustre mount."""
        known = self._files.mounts if self._files.mounts.mounts else read_mounts(self._proc / "self")
        before = self._clients
        self._clients = {
            each.path: each for each in read_clients(_of_network(read_mounts(self._proc / "self")))
        }
        used = {each.mount for each in groups} | self._clients.keys()
        rows = []
        for mount in known.mounts:
            if mount.path not in used:
                continue
            client, earlier = self._clients.get(mount.path), before.get(mount.path)
            rates = None if client is None or earlier is None else rates_of(earlier, client, seconds)
            rate = None if opened is None else opened.get(mount.path)
            rows.append(mount_row(mount, rate, rates, "" if client is None else client.why))
        return tuple(rows)

    def _targets(self) -> list[tuple[Mount, str, Path]]:
        """Return a file of the job on each shared mount, with its path for this process."""
        found = []
        for mount, (target, path) in list(self._files.examples.items())[:_MOST_PROBED]:
            known = self._files.mounts.of_path(mount)
            if known is not None:
                found.append((known, target, path))
        return found

    def _read_stripes(self, groups: list[FileGroup]) -> None:
        for each in groups:
            large = each.filesystem == "lustre" and each.largest >= LARGE_BYTES
            if large and each.largest_path not in self._stripes and len(self._stripes) < _MOST_STRIPES:
                stripes = read_stripes(Path(each.largest_path), each.largest, self._environment)
                if stripes is not None:
                    self._stripes[each.largest_path] = stripes


class Prober:
    """Runner of rounds of probes in a separate thread: a file system that does not respond delays only these.

    Parameters
    ----------
    run
        The run folder; the probe of its file system creates a file there and deletes it.
    monotonic_ns
        The clock.
    """

    def __init__(self, run: Path, monotonic_ns: Callable[[], int]) -> None:
        self._run, self._monotonic_ns = run, monotonic_ns
        self._home = read_mounts().of_path(os.path.realpath(run))
        self._started_ns: int | None = None
        self._mount = ""
        self._results: list[ProbeTimes] = []
        self._due_ns = 0

    def start_when_due(self, examples: list[tuple[Mount, str, Path]], every_s: float) -> None:
        """Start a round in a thread unless one is running or the last start was less than `every_s` ago.

        Parameters
        ----------
        examples
            Mounts to probe, each with the path of a file on it in the job and for this process.
        """
        now_ns = self._monotonic_ns()
        if self._started_ns is not None or now_ns < self._due_ns:
            return
        self._due_ns = now_ns + int(every_s * 1e9)
        targets = [Target(mount.path, path.parent, example=path) for mount, _, path in examples]
        if self._home is not None:
            own = next((each for each in targets if each.mount == self._home.path), None)
            targets = [each for each in targets if each is not own]
            example = None if own is None else own.example
            targets.insert(0, Target(self._home.path, self._run, writable=True, example=example))
        self._started_ns = now_ns
        threading.Thread(target=self._probe, args=(targets,), name="probe", daemon=True).start()

    def take(self) -> list[ProbeRow]:
        """Return the results since the last call, and a row for a probe that has waited for over 1 s."""
        results, self._results = self._results, []
        rows = [probe_row(each) for each in results]
        started_ns = self._started_ns
        if started_ns is not None:
            waiting_ms = (self._monotonic_ns() - started_ns) / 1e6
            if waiting_ms > 1000:
                rows.append(probe_row(ProbeTimes(self._mount), waiting_ms))
        return rows

    def _probe(self, targets: list[Target]) -> None:
        try:
            for each in targets:
                self._mount = each.mount
                self._started_ns = self._monotonic_ns()
                self._results.append(probe(each))
        finally:
            self._started_ns = None


class PressureCounter:
    """Shares of time in which processes waited for storage, from ``io.pressure`` files (PSI).

    Parameters
    ----------
    cgroup
        The job's control group; None where it has none of version 2.
    """

    def __init__(self, cgroup: Cgroup | None, proc: Path) -> None:
        self._paths = {"node": proc / "pressure" / "io"}
        if cgroup is not None:
            self._paths["job"] = cgroup.path / "io.pressure"
        self._before: dict[str, float] = {}
        self._before_s = 0.0

    def read(self, now_s: float) -> PressureRow:
        """Return the shares since the last call; None in the first one."""
        reasons, totals = [], dict[str, float]()
        if "job" not in self._paths:
            reasons.append("The job has no control group of version 2, which counts waiting for storage.")
        for name, path in self._paths.items():
            try:
                totals[name] = float(path.read_text().split("total=")[1].split()[0]) / 1e6
            except OSError as error:
                reasons.append(f"{path} can't be read: {error.strerror}.")
            except (ValueError, IndexError):
                reasons.append(f"{path} has no total.")
        seconds = now_s - self._before_s
        shares = {
            name: round(min(1.0, max(0.0, total - self._before[name]) / seconds), 4)
            for name, total in totals.items()
            if name in self._before and seconds > 0
        }
        self._before, self._before_s = totals, now_s
        return PressureRow(shares.get("job"), shares.get("node"), " ".join(reasons))


def _of_network(mounts: MountTable) -> MountTable:
    return MountTable(each for each in mounts.mounts if each.kind in ("nfs", "nfs4", "lustre"))
