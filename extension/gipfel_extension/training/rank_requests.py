"""Watcher thread of a rank: it reports that the rank is alive, and answers requests to look deeper.

Each second it looks at files of the launch's directory: ``dump`` (the flight recorder), ``stacks.json`` and
``trace.json`` (what to do and for which ranks). Answers are files, too: ``flight_recorder/``, ``stacks/``,
``profile/``, ``memory/``, and ``answers/<request>-<rank>.json`` with the result. ``beats/<rank>`` has the
rank's steps, its phase and the line of the user's code that it is in.

Each rank runs the copy in the launch's directory with the image's Python, 3.9 or newer, and only the
standard library. Stacks come from a signal that faulthandler handles in C, so that a rank answers that
holds Python's lock.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from typing import Any

#: Signal that writes the stacks of all threads; a real-time signal, which programs hardly use.
STACKS_SIGNAL = signal.SIGRTMIN + 12
_LOOK_S = 1.0
_BEAT_S = 5.0
#: Ranks that may each write their beat in that time.
_FULL_RATE_RANKS = 64
_BEAT_BYTES = 1024
_MOST_REQUEST_BYTES = 1 << 20
_MOST_FRAMES = 400
#: Longest wait for the steps of a trace.
_TRACE_LIMIT_S = 600.0
_MOST_EVENTS = 100_000
_PHASES = (
    ("checkpoint", re.compile(r"(^|_)(checkpoint|save|dump|async_save)(_|$)")),
    ("evaluation", re.compile(r"(^|_)(evaluate|evaluation|eval|validate|validation|val|test)(_|$)")),
)
_NOT_A_PHASE = re.compile(r"train|fit|step")


class RankWatch:
    """Watcher of one rank.

    Parameters
    ----------
    folder
        The launch's directory.
    hooks
        The rank's `StepHooks`, or None.
    dump
        Writes the flight recorder's dump.
    hang_after_s
        Seconds after which the alarm says that the launch hangs; beats come at least ten times in it.
    """

    def __init__(
        self, folder: str, hooks: Any, dump: Callable[[], None], hang_after_s: float = 300.0
    ) -> None:
        self._folder = folder
        self._hooks = hooks
        self._dump = dump
        self._rank = int(os.environ.get("RANK") or 0)
        world = int(os.environ.get("WORLD_SIZE") or 1)
        usual_s = min(_BEAT_S, hang_after_s / 10 or _BEAT_S)
        self._beat_s = usual_s * max(1.0, world / _FULL_RATE_RANKS)
        self._look_s = min(_LOOK_S, usual_s)
        self._main = threading.main_thread().ident or 0
        self._beat_file: int | None = None
        self._stacks_file: Any = None
        self._seen = {name: self._touched_ns(name) for name in ("dump", "trace.json")}
        self._cpu = (time.monotonic(), time.process_time())

    def start(self) -> None:
        """Arm the signal for stacks, write the first beat, and start the thread."""
        try:
            path = self._make("stacks", f"rank-{self._rank}.txt")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._stacks_file = os.fdopen(os.open(path, flags, 0o600), "w")
            faulthandler.register(STACKS_SIGNAL, file=self._stacks_file, all_threads=True)
        except (OSError, RuntimeError, ValueError) as error:
            sys.stderr.write(f"gipfel: stacks can't be written: {error}\n")
        self._beat()
        threading.Thread(target=self._run, name="gipfel-watch", daemon=True).start()

    def _run(self) -> None:
        next_beat_s = time.monotonic() + self._beat_s
        while True:
            time.sleep(self._look_s)
            try:
                if self._is_new("dump"):
                    self._dump()
                if self._is_new("trace.json"):
                    self._on_trace()
                if time.monotonic() >= next_beat_s:
                    next_beat_s = time.monotonic() + self._beat_s
                    self._beat()
            except Exception as error:  # noqa: BLE001 - the training must not depend on it
                sys.stderr.write(f"gipfel: a request failed ({type(error).__name__}: {error})\n")

    def _beat(self) -> None:
        """Write steps, phase and line in place, as one line of a fixed length."""
        now, cpu = time.monotonic(), time.process_time()
        busy = (cpu - self._cpu[1]) / max(1e-3, now - self._cpu[0])
        self._cpu = now, cpu
        log = self._hooks.log if self._hooks else None
        logged = getattr(sys.modules.get("gipfel_widgets.log"), "calls", 0)
        phase, line = self.position()
        content = {
            "rank": self._rank, "pid": os.getpid(), "time_ns": time.time_ns(),
            "steps": (log.count if log else 0) + logged, "phase": phase, "line": line, "busy": round(busy, 3),
        }  # fmt: skip
        text = json.dumps(content).encode()[: _BEAT_BYTES - 1]
        if self._beat_file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._beat_file = os.open(self._make("beats", str(self._rank)), flags, 0o600)
        os.pwrite(self._beat_file, text.ljust(_BEAT_BYTES - 1) + b"\n", 0)

    def position(self) -> tuple[str, str]:
        """Return the phase that the main thread's functions show, and the innermost line of user code."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - Python's way to other threads
        phase, line = "", ""
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            own = os.path.dirname(code.co_filename) == self._folder  # noqa: PTH120
            if not own and not line and _is_users(code.co_filename):
                line = f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})"[:200]  # noqa: PTH119
            phase = phase or _phase_of(code.co_name, code.co_filename)
            frame = frame.f_back
        return phase, line

    def _on_trace(self) -> None:
        """Carry out a request for a trace or a memory snapshot, if it is for this rank."""
        with open(os.path.join(self._folder, "trace.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            request = json.loads(file.read(_MOST_REQUEST_BYTES))
        if self._rank not in request["ranks"]:
            return
        work = _MemorySnapshot if request.get("what") == "memory" else _Trace
        threading.Thread(target=self._answer, args=(request, work), daemon=True).start()

    def _answer(self, request: Any, work: Any) -> None:
        try:
            path = work(self._folder, self._rank, self._hooks, int(request["steps"])).run(self._make)
            answer = {"path": path, "bytes": os.stat(path).st_size}  # noqa: PTH116
        except Exception as error:  # noqa: BLE001 - the reason is shown where it was requested
            answer = {"error": f"{error}" or type(error).__name__}
        path = self._make("answers", f"{request['id']}-{self._rank}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"rank": self._rank, **answer}, file)
        os.replace(path + ".part", path)  # noqa: PTH105

    def _is_new(self, name: str) -> bool:
        touched = self._touched_ns(name)
        if touched == self._seen[name]:
            return False
        self._seen[name] = touched
        return bool(touched)

    def _touched_ns(self, name: str) -> int:
        try:
            return os.stat(os.path.join(self._folder, name)).st_mtime_ns  # noqa: PTH116, PTH118
        except OSError:
            return 0

    def _make(self, *parts: str) -> str:
        path = os.path.join(self._folder, *parts)  # noqa: PTH118
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        return path


def answer_stacks(folder: str, rank: int) -> None:
    """Carry out a request for stacks, if it is for this rank.

    The process that started the rank's program calls it, so that a program that is stopped or holds Python's
    lock is reported, too.
    """
    try:
        with open(os.path.join(folder, "stacks.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            request = json.loads(file.read(_MOST_REQUEST_BYTES))
        if rank not in request["ranks"]:
            return
        problem = _send_signal(folder, rank)
        path = os.path.join(folder, "answers", f"{request['id']}-{rank}.json")  # noqa: PTH118
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        with open(path + ".part", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"rank": rank, **({"error": problem} if problem else {})}, file)
        os.replace(path + ".part", path)  # noqa: PTH105
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"gipfel: a request for stacks failed: {error}\n")


def _send_signal(folder: str, rank: int) -> str:
    """Send the signal for stacks to a rank's program, which may be a notebook's kernel; return a problem."""
    try:
        with open(os.path.join(folder, "beats", str(rank)), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            pid = int(json.loads(file.read(_BEAT_BYTES))["pid"])
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:  # noqa: PTH123
            status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    except (OSError, ValueError, KeyError, TypeError):
        return "its program has not armed the signal for stacks, or has ended"
    state = status.get("State", "").strip()
    if state[:1] in ("T", "t"):
        return f"its process is stopped: {state}"
    # Without a handler, the signal would end the program.
    if not int(status.get("SigCgt", "0"), 16) >> (STACKS_SIGNAL - 1) & 1:
        return "its program has removed the handler of the signal for stacks"
    os.kill(pid, STACKS_SIGNAL)
    return f"its process waits in the kernel, such as for storage: {state}" if state[:1] == "D" else ""


class _Steps:
    """Work that begins after one step of the training's thread and ends after several more."""

    def __init__(self, folder: str, rank: int, hooks: Any, steps: int) -> None:
        self._folder = folder
        self._rank = rank
        self._hooks = hooks
        self._steps = steps
        self._count = -1
        self._done = threading.Event()
        self._error: Exception | None = None

    def run(self, make: Callable[..., str]) -> str:
        """Wait for the steps and return the path of the result.

        Raises
        ------
        RuntimeError
            The steps did not come, or the work failed.
        """
        path = self.path(make)
        if self._hooks is None:
            raise RuntimeError("its step hooks are turned off (GIPFEL_STEP_HOOKS, --no-step-hooks)")
        self._hooks.callbacks.append(self._after_step)
        try:
            if not self._done.wait(_TRACE_LIMIT_S):
                seen = max(0, self._count)
                raise RuntimeError(
                    f"{seen} of {self._steps} optimizer steps came within {_TRACE_LIMIT_S:.0f} s"
                )
        finally:
            if self._after_step in self._hooks.callbacks:
                self._hooks.callbacks.remove(self._after_step)
        if self._error is not None:
            raise RuntimeError(str(self._error))
        self.write(path + ".part")
        # Renamed when complete, because it may be read while the training runs.
        os.replace(path + ".part", path)  # noqa: PTH105
        return path

    def path(self, make: Callable[..., str]) -> str:
        """Return where the result is written."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin, in the training's thread."""
        raise NotImplementedError

    def end(self) -> None:
        """End, in the training's thread."""
        raise NotImplementedError

    def write(self, path: str) -> None:
        """Write the result, in another thread."""
        raise NotImplementedError

    def _after_step(self) -> None:
        self._count += 1
        try:
            if self._count == 0:
                self.begin()
            if self._count < self._steps:
                return
            self.end()
        except Exception as error:  # noqa: BLE001 - the training must not depend on it
            self._error = error
        self._hooks.callbacks.remove(self._after_step)
        self._done.set()


class _Trace(_Steps):
    """A trace of torch's profiler, in Chrome's format."""

    _profile: Any = None

    def path(self, make: Callable[..., str]) -> str:
        return make("profile", f"rank-{self._rank}.json")

    def begin(self) -> None:
        import torch  # noqa: PLC0415

        profile = torch.profiler.profile(with_stack=True)
        # Two profilers in one process don't work, and the program may have its own.
        profile.start()
        self._profile = profile

    def end(self) -> None:
        self._profile.stop()

    def write(self, path: str) -> None:
        self._profile.export_chrome_trace(path)


class _MemorySnapshot(_Steps):
    """A snapshot of the CUDA allocator, with the stacks of what was allocated during the steps."""

    _memory: Any = None

    def path(self, make: Callable[..., str]) -> str:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            raise RuntimeError("it uses no GPU, and only memory of GPUs has snapshots")
        self._memory = torch.cuda.memory
        return make("memory", f"rank-{self._rank}.pickle")

    def begin(self) -> None:
        self._memory._record_memory_history(max_entries=_MOST_EVENTS)  # noqa: SLF001 - torch documents it

    def end(self) -> None:
        self._part = self._memory._snapshot()  # noqa: SLF001
        self._memory._record_memory_history(enabled=None)  # noqa: SLF001

    def write(self, path: str) -> None:
        import pickle  # noqa: PLC0415 - written here, and read by torch's viewer

        with open(path, "wb") as file:  # noqa: PTH123
            pickle.dump(self._part, file)


def _is_users(name: str) -> bool:
    """Return whether a source file is the user's: neither Python's, nor a package's, nor generated."""
    return not (name.startswith(_LIBRARIES) or "-packages/" in name or name.startswith("<frozen"))


_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


def _phase_of(function: str, file: str) -> str:
    """Return the phase that a function on the stack belongs to; empty for none."""
    if "torch/distributed/checkpoint/" in file or (
        file.endswith("torch/serialization.py") and function == "save"
    ):
        return "checkpoint"
    if _NOT_A_PHASE.search(function):
        return ""
    return next((phase for phase, pattern in _PHASES if pattern.search(function)), "")
