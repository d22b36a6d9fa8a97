"""Measurement of GPUs and host between two moments.

`measure` creates one: it uses the recorder of the run that the kernel belongs to, usually that of its job, or
starts its own in a new run folder.
`run_workload` does work of a known kind, which can be measured.
"""

import atexit
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np

from gipfel_cluster.model import GipfelError, pluralize
from gipfel_extension.telemetry.live.feed import SaturationFeed
from gipfel_extension.telemetry.recorder_process import RecorderProcess
from gipfel_extension.telemetry.sample import SampleTable
from gipfel_extension.telemetry.store.fine import read_finest
from gipfel_extension.telemetry.user_metrics import UserMetrics, read_metrics

from .displays import SaturationPlot, SaturationSummary
from .run import KernelRun, create_run, present_run, start_recorder, stop_recorder

#: Seconds to wait for samples; if none arrive, the run is taken to have no recorder.
_FIRST_SAMPLE_S = 5.0
_GLANCE_S = 0.2
#: Seconds that the recorder of an existing run buffers samples, with a margin for a slow file system.
_FLUSH_S = 8.0
_MIN_S, _MAX_S = 0.01, 3600.0
#: Edge of the square matrices: large enough to saturate, small enough to stop on time.
_GPU_EDGE, _CPU_EDGE = 8192, 1024
#: Multiplications on a GPU between two synchronizations, and seconds between looks at the clock while
#: sleeping.
_GPU_BURST = 8
_TURN_S = 0.2
WORKLOADS = ("matmul", "sleep")


class Measurement:
    """A context manager that measures everything that runs within it; created by :func:`measure`.

    Attributes
    ----------
    own
        True if this measurement created its run, and records it itself.
    simulated
        True if the source is synthetic or a replay: the measurement then has only simulated values, else only
        real ones.
    """

    def __init__(self, source: str = "auto", interval: float | None = None) -> None:
        if interval is not None and not _MIN_S <= interval <= _MAX_S:
            raise GipfelError(
                f"An interval of {interval:g} s can't be kept.",
                f"Choose one from {_MIN_S:g} to {_MAX_S:g} seconds.",
            )
        self.source = source
        self.simulated = source.partition(":")[0] in ("synthetic", "replay")
        self.own = False
        self._interval = interval
        self._run: KernelRun | None = None
        self._recorder: RecorderProcess | None = None
        self._started_ns: int | None = None
        self._ended_ns: int | None = None
        self._whole: SampleTable | None = None

    @property
    def run(self) -> KernelRun:
        """Run whose folder has the samples.

        Raises
        ------
        GipfelError
            The measurement has not begun.
        """
        if self._run is None:
            raise GipfelError(
                "Nothing is measured yet.", "Begin with start(), or use the measurement in a with block."
            )
        return self._run

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end, or until now; 0 before the start."""
        if self._started_ns is None:
            return 0.0
        return ((self._ended_ns or time.time_ns()) - self._started_ns) / 1e9

    def start(self) -> "Measurement":
        """Start measuring; start a recorder unless one already records this source.

        Raises
        ------
        GipfelError
            The measurement has already begun, the source can't be read, or the run folder can't be created.
        """
        if self._run is not None:
            raise GipfelError("This measurement has begun already.", "Make another with measure().")
        self._run = None if self.simulated or self.source != "auto" else _recorded_run()
        if self._run is None:
            self.own = True
            self._run = create_run(self.source, self._interval)
            sources = ("host", "auto") if self.source == "auto" else (self.source,)
            # Messages call a recorder "job" just "the recorder", and show the names of others.
            name = "simulated" if self.simulated else "job"
            self._recorder = start_recorder(self._run, name, sources, self._interval)
            # A kernel that is shut down between two cells runs no __exit__.
            atexit.register(self._end_recorder)
        self._started_ns = time.time_ns()
        return self

    def stop(self) -> None:
        """End the measurement, and its own recorder if it has one; ending twice is not an error."""
        if self._run is not None and self._ended_ns is None:
            self._ended_ns = time.time_ns()
            self._end_recorder()

    def table(self) -> SampleTable:
        """Return the samples between start and end, or until now; they are all real, or all simulated.

        After the end, wait up to 8 s until the recorder of an existing run has written the last ones.
        """
        if self._whole is not None:
            return self._whole
        ended_ns = self._ended_ns
        table = self._read()
        if ended_ns is None:
            return table
        deadline = time.monotonic() + (0.0 if self.own else _FLUSH_S)
        # A sample after the end shows that those before it were written.
        while (table.last_ns or 0) < ended_ns and time.monotonic() < deadline:
            time.sleep(_GLANCE_S)
            table = self._read()
        self._whole = table.between(None, ended_ns + 1)
        return self._whole

    def figure(self, *, dark: bool = False) -> SaturationPlot:
        """Return the plots of the whole measurement, with the metrics that were logged meanwhile."""
        return SaturationPlot(
            self.table(), window_s=max(1.0, self.seconds), dark=dark, metrics=self.metrics()
        )

    def metrics(self) -> UserMetrics:
        """Return the metrics that processes logged between start and end, or until now.

        A measurement with its own run also includes those in the kernel's run, where the measured program
        logs.
        """
        folders = {self.run.path, *([] if (present := present_run()) is None else [present.path])}
        found = [read_metrics(folder) for folder in sorted(folders)]
        last_ns = self._ended_ns or time.time_ns()
        return UserMetrics.union(found).between(self._started_ns or 0, last_ns)

    def summary(self) -> SaturationSummary:
        """Return mean, 10th percentile and maximum of each metric by device."""
        return SaturationSummary.of(self.table(), seconds=self.seconds)

    def __enter__(self) -> "Measurement":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        word = "simulated " if self.simulated else ""
        state = "not begun" if self._run is None else f"{self.seconds:.1f} s in {self._run}"
        return f"<Measurement of {word}source {self.source}: {state}>"

    def _read(self) -> SampleTable:
        return read_finest(self.run.telemetry, since_ns=self._started_ns, simulated=self.simulated)

    def _end_recorder(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            stop_recorder(recorder, self.run)
            self.run.set_ended()
        atexit.unregister(self._end_recorder)


def measure(source: str = "auto", interval: float | None = None) -> Measurement:
    """Measure what runs in a ``with`` block.

    Parameters
    ----------
    source
        ``auto``: the recorder of this kernel's run if there is one, else host and GPUs. Others are ``host``,
        ``nvml``, ``replay:FILE``, ``synthetic:training``, ``synthetic:idle`` and ``synthetic:starved`` (GPUs
        with a utilization of 100 %, whose kernels do hardly any work).
    interval
        Seconds between two samples, if a recorder is started; a running recorder keeps its own interval.
        None: 0.1 if the GPUs' counters are updated that often, else 1.
    """
    return Measurement(source, interval)


def _recorded_run() -> KernelRun | None:
    """Return the run that the kernel belongs to if real samples arrive in it."""
    run = present_run()
    if run is None:
        return None
    try:
        feed = SaturationFeed(run.telemetry, run.sockets, window_s=60.0)
    except OSError:
        return None
    try:
        deadline = time.monotonic() + _FIRST_SAMPLE_S
        while feed.state().state == "starting" and time.monotonic() < deadline:
            feed.poll(_GLANCE_S)
        real = any(not device.simulated for device in feed.devices())
        return run if real and feed.state().state == "live" else None
    finally:
        feed.close()


def run_workload(name: str, seconds: float, progress: Callable[[str], None] = lambda _: None) -> str:
    """Run a workload of a known kind for some seconds.

    Parameters
    ----------
    name
        ``matmul``: multiply square matrices, with torch on a GPU if it finds one, else with numpy on the CPU;
        ``sleep``: do nothing.
    progress
        Called about once a second with a line about the progress.

    Returns
    -------
    str
        A line that says what was done, on which device, for how long, and how often.

    Raises
    ------
    GipfelError
        There is no such workload.
    """
    if name not in WORKLOADS:
        raise GipfelError(f"There is no workload {name!r}.", f"Choose one of {', '.join(WORKLOADS)}.")
    what, turn = ("sleep", _sleep) if name == "sleep" else _matmul_on_gpu() or _matmul_on_cpu()
    started = reported = time.monotonic()
    turns = 0
    progress(f"{what}: 0 of {seconds:g} s")
    while (passed := time.monotonic() - started) < seconds:
        turn(seconds - passed)
        turns += 1
        if time.monotonic() - reported >= 1:
            reported = time.monotonic()
            progress(f"{what}: {min(seconds, reported - started):.0f} of {seconds:g} s")
    done = f"{what}: {time.monotonic() - started:.1f} s, {pluralize(turns, 'repetition')}"
    progress(done)
    return done


def _sleep(seconds: float) -> None:
    time.sleep(min(_TURN_S, max(0.0, seconds)))


def _matmul_on_gpu() -> tuple[str, Callable[[float], object]] | None:
    try:
        # Optional, and it takes seconds to import.
        import torch  # noqa: PLC0415
    except Exception:  # noqa: BLE001 - a broken torch fails in many ways, and the CPU is still there
        return None
    if not torch.cuda.is_available():
        return None
    left, right = (torch.randn(_GPU_EDGE, _GPU_EDGE, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def turn(_: float) -> None:
        for _ in range(_GPU_BURST):
            torch.matmul(left, right)
        # Otherwise work would be queued that runs long after the time is up.
        torch.cuda.synchronize()

    name = torch.cuda.get_device_name()
    return f"matmul {_GPU_EDGE}² bfloat16 on {name} (torch)", turn


def _matmul_on_cpu() -> tuple[str, Callable[[float], object]]:
    draw = np.random.default_rng(0)
    left, right = (draw.standard_normal((_CPU_EDGE, _CPU_EDGE), np.float32) for _ in range(2))
    return f"matmul {_CPU_EDGE}² float32 on the CPU (numpy)", lambda _: left @ right
