"""Hooks that a launch arms in its ranks: they log each rank's steps without a change of the user's code.

A step ends where the optimizer's ``step()`` ends. Its ``step_s`` is the time since the last one, and
``work_s`` is ``step_s`` without the time for which the rank waited for others: in ``Work.wait`` of
torch.distributed, and from the end of a backward pass's computation to its return, where DDP waits for its
last gradients. On a GPU, the wait for gradients is measured by events on its stream. Lines are written
to ``metrics.jsonl`` of the run, in the format of ``gipfel_widgets.log``.

Each rank runs the copy in the launch's directory with the image's Python, 3.9 or newer, and only the
standard library. Nothing here changes a tensor, waits for a GPU, or raises into the user's code: after an
error the hooks stay silent. ``GIPFEL_STEP_HOOKS=0`` turns them off.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

#: Shortest time in seconds between two lines of a rank; shorter steps are logged as means of several.
_LEAST_S = 0.5
#: Number of ranks up to which each writes a line in that time; with more, each writes less often, because
#: they share one file.
_FULL_RATE_RANKS = 128
_MOST_STEPS_A_LINE = 1 << 20
#: The steps of one optimizer are counted, until another one has made this many steps without it.
_OTHER_STEPS = 20
#: Maximum number of lines that are kept until the GPU has reached their events.
_MOST_PENDING = 64


class _Finder:
    """Import hook that calls a function with a module once it is loaded."""

    def __init__(self, name: str, function: Callable[[Any], None]) -> None:
        self._name = name
        self._function = function

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - a finder's
        """Return the module's spec with a loader that also calls the function."""
        if name != self._name:
            return None
        import importlib.util  # noqa: PLC0415

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec else None
        if loader is None:
            return None
        execute = loader.exec_module

        def execute_and_call(module: Any) -> None:
            execute(module)
            _guarded(self._function, module)

        loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def after_import(name: str, function: Callable[[Any], None]) -> None:
    """Call a function with a module: at once if it is loaded, else when the program imports it."""
    if name in sys.modules:
        _guarded(function, sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, function))


def _guarded(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - the training must not depend on it
        sys.stderr.write(f"gipfel: steps are not logged ({type(error).__name__}: {error})\n")


class Waits:
    """Time for which the rank waited for others since the last step.

    Parameters
    ----------
    clock
        Monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._inside = False
        self.host_s = 0.0
        #: Function that records an event (a mark) on the GPU's stream, and pairs of such marks around waits.
        self.mark: Callable[[], Any] | None = None
        self.pairs: list[tuple[Any, Any]] = []

    def take(self) -> tuple[float, list[tuple[Any, Any]]]:
        """Return the seconds of waiting and the pairs of marks, and reset both."""
        found = self.host_s, self.pairs
        self.host_s, self.pairs = 0.0, []
        return found

    def timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original` wrapped so that the time for which it runs counts as waiting."""
        clock, own = self._clock, threading.get_ident

        def wait(*arguments: Any, **named: Any) -> Any:
            if self._inside or own() != self._thread:
                return original(*arguments, **named)
            begin = clock()
            self._inside = True
            try:
                return original(*arguments, **named)
            finally:
                self._inside = False
                self.host_s += clock() - begin

        wait.__name__, wait.__doc__ = getattr(original, "__name__", "wait"), original.__doc__
        return wait

    def watched_backward(self, original: Callable[..., Any], engine: Any) -> Callable[..., Any]:
        """Return `original`, which runs a backward pass, wrapped so that waiting at its end is measured.

        The engine calls its callbacks in their order once all gradients are computed: this one, then those
        of DDP and FSDP, which were queued during the pass and wait for others, then the one that this one
        queues.
        """
        clock = self._clock

        def computed() -> None:
            begin, mark = clock(), self.mark and self.mark()
            self._inside = True

            def done() -> None:
                self._inside = False
                self.host_s += clock() - begin
                end = self.mark() if self.mark and mark is not None else None
                if end is not None:
                    self.pairs.append((mark, end))

            engine.queue_callback(done)

        def first_gradient(_gradient: Any) -> None:
            _guarded(engine.queue_callback, computed)

        def run(outputs: Any, *arguments: Any, **named: Any) -> Any:
            handle = self._hook(outputs, first_gradient)
            try:
                return original(outputs, *arguments, **named)
            finally:
                if handle is not None:
                    handle.remove()
                    self._inside = False

        return run

    def _hook(self, outputs: Any, function: Callable[[Any], None]) -> Any:
        """Register a function for the first gradient of a pass; None where that is not possible."""
        if threading.get_ident() != self._thread or not _is_distributed():
            return None
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        try:
            first = outputs[0]
            if getattr(compiled, "compiled_autograd_enabled", False) or first.grad_fn is None:
                return None
            return first.register_hook(function)
        except Exception:  # noqa: BLE001 - not a tensor, or one that takes no hook
            return None


def _is_distributed() -> bool:
    module = sys.modules.get("torch.distributed")
    return module is not None and module.is_available() and module.is_initialized()


class StepLog:
    """Steps of a rank, written as lines of metrics.

    Parameters
    ----------
    write
        Called for each line with step, ``step_s`` and ``work_s`` (None: not measured), which are means over
        the steps since the last line.
    least_s
        Shortest time between two lines.
    """

    def __init__(
        self, waits: Waits, write: Callable[[int, float, float | None], None], least_s: float = _LEAST_S
    ) -> None:
        self._waits = waits
        self._write = write
        self._least_s = least_s
        self.count = 0
        self.last_s: float | None = None
        self._every = 1
        self._first = 0
        self._begin_s = 0.0
        self._begin_mark: Any = None
        #: Lines whose marks the GPU has not reached yet.
        self._pending: collections.deque[tuple[int, int, float, Any, Any, list[Any]]] = collections.deque()

    def on_step(self, now_s: float, *, measures_work: bool = True) -> None:
        """Record the end of a step."""
        self.count += 1
        first, self.last_s = self.last_s is None, now_s
        if first:
            # Do not log the first step, because it includes the start of the program.
            self._begin(now_s)
            return
        if self.count % self._every == 0:
            self._end(now_s, measures_work=measures_work)
        self._write_reached()

    def _begin(self, now_s: float) -> None:
        self._waits.take()
        self._first, self._begin_s = self.count, now_s
        self._begin_mark = self._waits.mark() if self._waits.mark else None

    def _end(self, now_s: float, *, measures_work: bool) -> None:
        steps, seconds = self.count - self._first, now_s - self._begin_s
        host_s, pairs = self._waits.take()
        begin_mark = self._begin_mark
        self._begin(now_s)
        if self._waits.mark is None:
            work_s = max(0.0, seconds - host_s) / steps if measures_work else None
            self._write(self.count, seconds / steps, work_s)
        elif begin_mark is None or self._begin_mark is None or not measures_work:
            self._write(self.count, seconds / steps, None)
        elif len(self._pending) < _MOST_PENDING:
            self._pending.append((self.count, steps, host_s, begin_mark, self._begin_mark, pairs))
        mean_s = seconds / steps
        # Powers of two, so that ranks of nearly the same speed log the same steps.
        while self._every * mean_s < self._least_s and self._every < _MOST_STEPS_A_LINE:
            self._every *= 2
        while self._every > 1 and self._every * mean_s > 4 * self._least_s:
            self._every //= 2

    def _write_reached(self) -> None:
        """Write the lines whose marks the GPU has reached, without waiting for it."""
        while self._pending and self._pending[0][4].query():
            step, steps, host_s, begin, end, pairs = self._pending.popleft()
            seconds = begin.elapsed_time(end) / 1e3
            waited = host_s + sum(first.elapsed_time(last) for first, last in pairs) / 1e3
            self._write(step, seconds / steps, max(0.0, seconds - waited) / steps)


class MetricsFile:
    """Writer of a rank's steps into ``metrics.jsonl`` of its run, in the format of ``gipfel_widgets.log``."""

    def __init__(self, folder: str, environment: Any) -> None:
        rank = environment.get("RANK") or "0"
        parts = environment.get("GIPFEL_LAUNCH", "").rstrip("/").split("/")
        self._head = {
            "node": environment.get("GIPFEL_NODE") or os.uname().nodename.partition(".")[0],
            "rank": int(rank) if rank.isdecimal() else None,
            **({"launch": f"{parts[-3]}/{parts[-1]}"} if len(parts) > 3 else {}),
        }
        self._path = os.path.join(folder, "metrics.jsonl")  # noqa: PTH118
        self._file: int | None = None
        self._retry_s = 0.0

    def write(self, step: int, step_s: float, work_s: float | None) -> None:
        """Append a line; on an error, such as a full disk, drop lines and try again after 10 s."""
        own = sys.modules.get("gipfel_widgets.log")
        if getattr(own, "logs_durations", False) or time.monotonic() < self._retry_s:
            return
        # A program that counts its own steps may count them differently.
        name = "optimizer_step" if getattr(own, "logs_steps", False) else "step"
        values = {name: step, "step_s": round(step_s, 7)}
        if work_s is not None:
            values["work_s"] = round(work_s, 7)
        line = {
            "time_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
            **self._head,
            "values": values,
        }
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                self._file = os.open(self._path, flags, 0o600)
            # One write, so that lines of several ranks don't mix.
            os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError:
            self._retry_s = time.monotonic() + 10.0


class StepHooks:
    """Hooks of one rank, and the state of their measurements."""

    def __init__(self, environment: Any) -> None:
        world = environment.get("WORLD_SIZE") or "1"
        ranks = int(world) if world.isdecimal() else 1
        self.waits = Waits()
        self._pid = os.getpid()
        self._optimizer: Any = None
        self._others = 0
        self._works: bool | None = None
        #: Functions that are called in the training's thread after each step.
        self.callbacks: list[Callable[[], None]] = []
        run = environment.get("GIPFEL_RUN") or ""
        write = MetricsFile(run, environment).write if run else lambda *_: None
        self.log = StepLog(self.waits, write, _LEAST_S * max(1.0, ranks / _FULL_RATE_RANKS))

    def arm(self) -> None:
        """Register the hooks as soon as the program imports torch."""
        after_import("torch.optim.optimizer", self._watch_optimizers)
        after_import("torch.autograd.graph", self._watch_backward)
        after_import("torch.distributed.distributed_c10d", self._watch_work)

    def _watch_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_post_hook(self._after_step)

    def _watch_backward(self, module: Any) -> None:
        # torch has no public way to the end of a backward pass.
        original = module._engine_run_backward  # noqa: SLF001
        watched = self.waits.watched_backward(original, module.Variable._execution_engine)  # noqa: SLF001
        loaded: tuple[Any, ...] = (module, sys.modules.get("torch.autograd"))
        for each in loaded:
            if getattr(each, "_engine_run_backward", None) is original:
                each._engine_run_backward = watched  # noqa: SLF001

    def _watch_work(self, module: Any) -> None:
        module.Work.wait = self.waits.timed(module.Work.wait)
        # DDP broadcasts buffers before a forward pass, and waits for that in C++.
        package = sys.modules["torch.distributed"]
        if hasattr(package, "_broadcast_coalesced"):
            wait = self.waits.timed(package._broadcast_coalesced)  # noqa: SLF001
            package._broadcast_coalesced = wait  # type: ignore[attr-defined]  # noqa: SLF001

    def _after_step(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        if _is_compiling() or os.getpid() != self._pid:
            return
        try:
            if not self._counts(optimizer):
                return
            if self._works is None:
                self._works = self._choose_clock(optimizer)
            self.log.on_step(time.perf_counter(), measures_work=self._works)
            for function in tuple(self.callbacks):
                function()
        except Exception as error:  # noqa: BLE001 - the training must not depend on it
            self._pid = 0
            sys.stderr.write(f"gipfel: steps are no longer logged ({type(error).__name__}: {error})\n")

    def _counts(self, optimizer: Any) -> bool:
        """Return whether this optimizer's steps are counted: the first optimizer's, as long as it is used."""
        chosen = self._optimizer and self._optimizer()
        if chosen is optimizer:
            self._others = 0
            return True
        self._others += 1
        if chosen is not None and self._others < _OTHER_STEPS:
            return False
        self._optimizer, self._others = weakref.ref(optimizer), 0
        return True

    def _choose_clock(self, optimizer: Any) -> bool:
        """Use GPU events for parameters on a GPU; return whether work can be distinguished from waiting."""
        if not _is_distributed():
            return True
        parameter = next(each for group in optimizer.param_groups for each in group["params"])
        kind = parameter.device.type
        if kind == "cpu":
            return True
        # FSDP and tensor parallelism wait on the GPU within the passes, where nothing here sees it.
        sharded = {"DTensor", "FlatParameter"} & {each.__name__ for each in type(parameter).__mro__}
        if kind != "cuda" or sharded:
            return False
        cuda = sys.modules["torch.cuda"]

        def mark() -> Any:
            if cuda.is_current_stream_capturing():
                return None
            event = cuda.Event(enable_timing=True)
            event.record()
            return event

        self.waits.mark = mark
        return True


def _is_compiling() -> bool:
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_compiling())


def arm_step_hooks(environment: Any) -> StepHooks | None:
    """Arm the hooks in a rank's process; None where they are turned off."""
    if environment.get("GIPFEL_STEP_HOOKS", "1").lower() in ("0", "off", "no", "false"):
        return None
    hooks = StepHooks(environment)
    _guarded(hooks.arm)
    return hooks
