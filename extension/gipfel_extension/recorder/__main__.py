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
from pathlib import Path

from ..telemetry.events import file_name
from ..telemetry.metric_table import EXTRA_METRICS, GPU_METRICS
from ..telemetry.sample import SourceError
from ..telemetry.sources import Clock, Source, SourceRequest, SystemClock, open_source
from ..telemetry.store.fine import FineRetention
from .disk import Settings
from .fine import ScoreParts, fine_sources
from .loop import Recorder, TickSink
from .metrics_file import MetricsFile

_MOST_NAMES = 100
log = logging.getLogger("gipfel.recorder")

#: Seconds between samples that are kept for good and streamed by default.
_DEFAULT_INTERVAL = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Record until SIGTERM, SIGINT, SIGHUP or SIGUSR2; 0, or 1 when no source could be opened."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s recorder: %(message)s")
    # Samples show what a person works on: only the owner may read them.
    os.umask(0o077)
    ended = threading.Event()
    # srun passes SIGUSR2 on to its tasks, and would kill them for the others.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, lambda *_: ended.set())
    # Named by who starts it: a parent that ends while this program is loaded has been replaced by now.
    parent = os.getppid() if given.with_parent == 0 else given.with_parent
    clock = SystemClock()
    node = given.node or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    environment = {**os.environ, "GIPFEL_NODE": node}
    metrics = known_metrics(given.metric)
    interval = given.interval or _DEFAULT_INTERVAL
    request = SourceRequest(interval, given.root_pid, environment, clock, metrics)
    try:
        sources = open_sources(given.source, request)
    except SourceError:
        return 1
    own = UniqueName(given.telemetry, node, given.name)
    fine = FineRetention.of(environment) if given.interval is None and fine_sources(sources) else None
    settings = Settings(given.telemetry, node, own.name, interval, given.flush, fine=fine, metrics=metrics)
    recorder = Recorder(
        sources,
        settings,
        publisher=_publisher(given, own.name),
        others=_to_head(given, environment),
        clock=clock,
        metrics=_metrics_file(given, node, clock),
        environment=environment,
        score=None if fine is None else _score_parts(),
    )
    if own.taken:
        recorder.journal.note(
            "second_recorder", f"Another recorder {own.wanted!r} writes here; this one is {own.name!r}."
        )
    recorder.run(ended, parent=parent)
    return 0


def open_sources(specs: Sequence[str], request: SourceRequest) -> list[Source]:
    """Open the sources that can be opened; log one line for each that can't.

    Raises
    ------
    SourceError
        None of them can.
    """
    sources: list[Source] = []
    refused: SourceError | None = None
    for spec in specs:
        try:
            sources.append(open_source(spec, request))
        except SourceError as error:
            refused = error
            log.warning("%s", error)
    if not sources and refused is not None:
        raise refused
    return sources


def known_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of these names that can be recorded on request; log each unknown name."""
    found = []
    for name in names:
        short = name.upper().removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_")
        if short in EXTRA_METRICS:
            found.append(short)
        elif short not in GPU_METRICS:
            near = difflib.get_close_matches(short, EXTRA_METRICS, 3)
            fix = f"Is it {' or '.join(near)}?" if near else "Name one of DCGM's, such as NVDEC0_ACTIVE."
            log.warning("There is no metric %r. %s", name, fix)
    return tuple(dict.fromkeys(found))


class UniqueName:
    """A recorder's name, unique in its folder while this process lives: a lock ends with it.

    Parameters
    ----------
    wanted
        The name; where another recorder has it, ``<name>-2`` and so on is taken.
    """

    def __init__(self, telemetry: Path, node: str, wanted: str) -> None:
        self.wanted = self.name = wanted
        self._handle: int | None = None
        for number in range(1, _MOST_NAMES):
            name = wanted if number == 1 else f"{wanted}-{number}"
            if self._locked(telemetry / f".{file_name(node)}-{file_name(name)}.lock"):
                self.name = name
                return

    @property
    def taken(self) -> bool:
        """True where another recorder has the name that was wanted."""
        return self.name != self.wanted

    def _locked(self, path: Path) -> bool:
        """Return whether the name is ours, also where files or locks can't be made: that is unknown."""
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
        self._handle = handle
        return True


def _score_parts() -> ScoreParts:
    # The one place where telemetry needs what is above it: other recorders don't load it.
    from ..saturation.loss_breakdown import score_parts  # noqa: PLC0415

    return score_parts


def _publisher(given: argparse.Namespace, name: str) -> TickSink | None:
    if given.sockets is None:
        return None
    try:
        from ..telemetry.live.ticks import Publisher  # noqa: PLC0415 - recording alone needs no ZeroMQ

        return Publisher(given.sockets, name)
    except (SourceError, ImportError) as error:
        log.warning("There is no live stream: %s", error)
        return None


def _to_head(given: argparse.Namespace, environment: Mapping[str, str]) -> list[TickSink]:
    if not given.fan_in:
        return []
    try:
        from ..telemetry.live.fan_in import FanInKeys, FanInSender  # noqa: PLC0415 - as above

        keys = FanInKeys.from_environment(environment)
        if keys is None:
            raise SourceError("No keys for the head node are in the environment.")  # noqa: TRY301
        return [FanInSender(given.fan_in, keys)]
    except (SourceError, ImportError) as error:
        log.warning("Nothing goes to the head node: %s", error)
        return []


def _metrics_file(given: argparse.Namespace, node: str, clock: Clock) -> MetricsFile | None:
    if given.metrics is None:
        return None
    return MetricsFile(given.metrics, given.telemetry.parent, node, clock, start=given.metrics_start)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gipfel_extension.recorder",
        description="Read sources, write segments, publish ticks, beside a workload that never notices.",
    )
    parser.add_argument("--telemetry", type=Path, required=True, help="folder of the segments")
    parser.add_argument("--node", default="", help="this node's name (default: Slurm's, else the host's)")
    parser.add_argument(
        "--sockets", type=Path, help="folder of the live stream's socket; none: no live stream"
    )
    parser.add_argument(
        "--fan-in", default="", metavar="tcp://HEAD:PORT", help="the job's head node, for the live stream"
    )
    parser.add_argument("--name", default="job", help="distinguishes the recorders of a run (default: job)")
    parser.add_argument(
        "--interval",
        type=_seconds,
        help="seconds between samples (default: 0.1 from GPUs that count so fast, whose means over 1 s are "
        "kept for good and streamed; else 1)",
    )
    parser.add_argument("--flush", type=_seconds, default=2.0, help="seconds between writes (default: 2)")
    parser.add_argument(
        "--source",
        action="append",
        required=True,
        help="auto, nvml, dcgm, amdsmi, host, exporter:URL, prometheus:URL, replay:F, synthetic:N",
    )
    parser.add_argument(
        "--metric", action="append", default=[], help="a GPU metric beside the usual ones, by DCGM's name"
    )
    parser.add_argument("--metrics", type=Path, help="a file of JSON lines that the workload writes")
    parser.add_argument(
        "--metrics-start", type=int, help="bytes of that file that are of an earlier run (default: all now)"
    )
    parser.add_argument("--root-pid", type=int, help="process whose tree is the job (default: this one)")
    parser.add_argument(
        "--with-parent", nargs="?", type=int, const=0, help="end when the parent process, of this id, ends"
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.01 to 3600 seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
