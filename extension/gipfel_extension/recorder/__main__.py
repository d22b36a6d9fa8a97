"""The recorder's command line: ``python -m gipfel_extension.recorder``."""

import argparse
import difflib
import errno
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ..telemetry.events import file_name
from ..telemetry.metric_table import EXTRA_METRICS, GPU_METRICS
from ..telemetry.sample import SourceError
from ..telemetry.sources import Clock, Source, SourceRequest, SystemClock, open_source
from ..telemetry.store.fine import FineRetention
from ..topology.collect import is_first_node, record_topology
from ..tracking.run_metrics import MetricsDirectory
from ..tracking.text_formats import PatternError
from .job_processes import NetworkMonitor
from .loop import MetricsFollower, Recorder, TickSink
from .metric_files import MetricsFile, OpenFiles
from .rule_monitor import load_rules
from .sample_files import ScoreParts, Settings, fine_sources
from .storage_monitor import StorageMonitor

#: Number of names that are tried until one is free.
_MAX_NAMES = 100
log = logging.getLogger("gipfel.recorder")

#: Default seconds between the samples that are kept permanently and streamed.
_DEFAULT_INTERVAL = 1.0
#: Maximum seconds that an ending recorder waits for the thread that collects its node's topology.
_TOPOLOGY_END_S = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Record until SIGTERM, SIGINT, SIGHUP or SIGUSR2; return 0, or 1 where no source could be opened."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s recorder: %(message)s")
    # Samples reveal what a user works on: only the owner may read them.
    os.umask(0o077)
    ended = threading.Event()
    # srun forwards SIGUSR2 to its tasks, and kills them at the other signals.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, lambda *_: ended.set())
    # os.getppid() has already changed if the parent ended while this program was loaded.
    parent = os.getppid() if options.with_parent == 0 else options.with_parent
    clock = SystemClock()
    node = options.node or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    environment = {**os.environ, "GIPFEL_NODE": node}
    metrics = requested_metrics(options.metric)
    interval = options.interval or _DEFAULT_INTERVAL
    request = SourceRequest(interval, options.root_pid, environment, clock, metrics)
    sources = open_sources(options.source, request)
    if not sources:
        return 1
    name = lock_name(options.telemetry, node, options.name)
    fine = (
        FineRetention.from_environment(environment)
        if options.interval is None and fine_sources(sources)
        else None
    )
    settings = Settings(options.telemetry, node, name, interval, options.flush, fine=fine, metrics=metrics)
    recorder = Recorder(
        sources,
        settings,
        sinks=_sinks(options, name, environment),
        clock=clock,
        metrics=_metrics_followers(options, node, clock, environment),
        environment=environment,
        score=None if fine is None else _score_parts(),
        rules=None if options.no_rules else lambda: load_rules(environment),
        network=None
        if options.no_network
        else partial(
            NetworkMonitor,
            options.telemetry.parent,
            node,
            root_pid=options.root_pid,
            environment=environment,
            clock=clock,
        ),
        storage=None if options.no_storage else _storage_monitor(options, environment, clock),
    )
    if name != options.name:
        recorder.journal.note(
            "second_recorder", f"A recorder {options.name!r} is already running; this one is {name!r}."
        )
    # Slurm's controller may take seconds to answer, and no sample must wait for it.
    topology = threading.Thread(
        target=record_topology,
        args=(options.telemetry.parent, node, environment, clock.time_ns()),
        name="topology",
        daemon=True,
    )
    topology.start()
    recorder.run(ended, parent=parent)
    topology.join(_TOPOLOGY_END_S)
    return 0


def open_sources(specs: Sequence[str], request: SourceRequest) -> list[Source]:
    """Open the available sources; log one line for each that cannot be opened."""
    sources: list[Source] = []
    for spec in specs:
        try:
            sources.append(open_source(spec, request))
        except SourceError as error:
            log.warning("%s", error)
    return sources


def requested_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the requested metrics that are not always recorded; log unknown names."""
    found = []
    for name in names:
        short = name.upper().removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_")
        if short in EXTRA_METRICS:
            found.append(short)
        elif short not in GPU_METRICS:
            similar = difflib.get_close_matches(short, EXTRA_METRICS, 3)
            fix = (
                f"Did you mean {' or '.join(similar)}?"
                if similar
                else "Use a DCGM name, such as NVDEC0_ACTIVE."
            )
            log.warning("There is no metric %r. %s", name, fix)
    return tuple(dict.fromkeys(found))


def lock_name(telemetry: Path, node: str, requested: str) -> str:
    """Return a name for a recorder, unique in its directory: this process holds its lock until it ends.

    If another recorder has the requested name, ``<name>-2`` and so on is used instead.
    """
    for number in range(1, _MAX_NAMES):
        name = requested if number == 1 else f"{requested}-{number}"
        if _lock(telemetry / f".{file_name(node)}-{file_name(name)}.lock"):
            return name
    return requested


def _lock(path: Path) -> bool:
    """Lock a name; return False where another recorder holds it, True where locking is impossible."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    # The file stays open until this process ends: closing it would release the lock.
    return True


def _score_parts() -> ScoreParts:
    # Imported only here: recorders without fine samples do not load the saturation package.
    from ..saturation.loss_breakdown import score_parts  # noqa: PLC0415

    return score_parts


def _sinks(options: argparse.Namespace, name: str, environment: Mapping[str, str]) -> list[TickSink]:
    """Open the live stream of this node and the sender to the head node, as far as they can be opened."""
    sinks: list[TickSink] = []
    try:
        if options.sockets is not None:
            from ..telemetry.live import Publisher  # noqa: PLC0415 - recording alone needs no ZeroMQ

            sinks.append(Publisher(options.sockets, name))
    except (SourceError, ImportError) as error:
        log.warning("The live stream can't be opened: %s", error)
    try:
        if options.fan_in:
            from ..telemetry.live.fan_in import FanInKeys, FanInSender  # noqa: PLC0415 - needs ZeroMQ, too

            keys = FanInKeys.from_environment(environment)
            if keys is None:
                raise SourceError("The environment has no keys for the head node.")  # noqa: TRY301
            sinks.append(FanInSender(options.fan_in, keys))
    except (SourceError, ImportError) as error:
        log.warning("Samples can't be sent to the head node: %s", error)
    return sinks


def _storage_monitor(
    options: argparse.Namespace, environment: Mapping[str, str], clock: Clock
) -> StorageMonitor | None:
    if options.root_pid is None and not environment.get("SLURM_JOB_ID"):
        # Without a job there are no processes to monitor.
        return None
    return StorageMonitor(
        options.telemetry.parent,
        environment["GIPFEL_NODE"],
        root_pid=options.root_pid,
        environment=environment,
        clock=clock,
        probing=not environment.get("SLURM_JOB_ID") or is_first_node(environment, environment["GIPFEL_NODE"]),
    )


def _metrics_followers(
    options: argparse.Namespace, node: str, clock: Clock, environment: Mapping[str, str]
) -> list[MetricsFollower]:
    run = options.telemetry.parent
    named = options.metrics if options.metrics_since is not None else None
    followers: list[MetricsFollower] = []
    if options.metrics is not None and named is None:
        followers.append(MetricsFile(options.metrics, run, node, clock, start=options.metrics_start))
    if named is not None or not options.no_open_files:
        finder = None if options.no_open_files else OpenFiles(options.root_pid, environment)
        since_ns = clock.time_ns() if options.metrics_since is None else options.metrics_since
        try:
            followers.append(
                MetricsDirectory(
                    named,
                    run,
                    node,
                    clock,
                    since_ns=since_ns,
                    pattern=options.metrics_pattern,
                    open_files=finder,
                )
            )
        except PatternError as error:
            log.warning("%s %s", error.problem, error.fix)
    if is_first_node(environment, node):
        from ..topology.cluster import ClusterRecorder  # noqa: PLC0415 - slow, for one node

        followers.append(ClusterRecorder(run, environment))
    return followers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gipfel_extension.recorder",
        description="Read sources, write segments and publish ticks beside a workload.",
    )
    parser.add_argument("--telemetry", type=Path, required=True, help="directory of the segments")
    parser.add_argument("--node", default="", help="this node's name (default: Slurm's, else the host's)")
    parser.add_argument(
        "--sockets", type=Path, help="directory of the live stream's socket (default: no live stream)"
    )
    parser.add_argument(
        "--fan-in", default="", metavar="tcp://HEAD:PORT", help="send samples to the job's head node"
    )
    parser.add_argument(
        "--name", default="job", help="name that distinguishes the recorders of a run (default: job)"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        help="seconds between samples (default: 0.1 for GPUs that support it, whose means over 1 s are kept "
        "permanently and streamed; else 1)",
    )
    parser.add_argument("--flush", type=_seconds, default=2.0, help="seconds between writes (default: 2)")
    parser.add_argument(
        "--source",
        action="append",
        required=True,
        help="auto, nvml, dcgm, amdsmi, host, exporter:URL, prometheus:URL, replay:F, synthetic:N",
    )
    parser.add_argument(
        "--metric", action="append", default=[], help="an additional GPU metric, by DCGM's name"
    )
    parser.add_argument("--metrics", type=Path, help="a JSON lines file that the workload writes")
    parser.add_argument(
        "--metrics-since",
        type=int,
        metavar="NS",
        help="read that path as `gipfel metrics` does: a directory, or a file; only values since then (UTC)",
    )
    parser.add_argument(
        "--metrics-start",
        type=int,
        help="bytes of that file that belong to an earlier run (default: its present size)",
    )
    parser.add_argument(
        "--metrics-pattern", default="", help="a regular expression: those files are logs with such lines"
    )
    parser.add_argument(
        "--no-open-files", action="store_true", help="don't read metric files that processes have open"
    )
    parser.add_argument("--no-rules", action="store_true", help="apply no rules to the samples")
    parser.add_argument("--no-network", action="store_true", help="don't record the job's connections")
    parser.add_argument(
        "--no-storage", action="store_true", help="neither record the job's files nor probe file systems"
    )
    parser.add_argument("--root-pid", type=int, help="root of the job's process tree (default: this process)")
    parser.add_argument(
        "--with-parent", nargs="?", type=int, const=0, help="end when the parent process, with this id, ends"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.01 to 3600 seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
