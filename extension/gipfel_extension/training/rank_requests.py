"""Watcher thread of a rank: it reports that the rank is alive, and notices requests to look deeper.

Each second it checks files in the launch's directory: ``dump`` (the flight recorder), ``stacks.json`` and
``trace.json`` (what to do and for which ranks), which rank_looks.py carries out. ``progress/<rank>`` has the
rank's steps, its phase and the line of the user's code that it is in.

Each rank runs the copy in the launch's directory with the image's Python, 3.9 or newer, and only the
standard library. faulthandler handles the signal for stacks in C, so even a rank that holds
Python's lock (GIL) writes them.
"""

from __future__ import annotations

import faulthandler
import importlib.util
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

#: Signal that makes a rank write the stacks of all threads; a real-time signal, since programs rarely use
#: these.
STACKS_SIGNAL = signal.SIGRTMIN + 12
_LOOK_S = 1.0
_REPORT_S = 5.0
#: Number of ranks up to which each writes its progress at that interval; with more, each writes less often.
_FULL_RATE_RANKS = 64
_PROGRESS_BYTES = 1024
_MOST_REQUEST_BYTES = 1 << 20
_MOST_FRAMES = 400
_REQUESTS = ("stacks.json", "trace.json")
_PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
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
        Function that writes the flight recorder's dump.
    hang_after_s
        Seconds after which the alarm reports a hang; progress is written at least ten times in it.
    """

    def __init__(
        self, folder: str, hooks: Any, dump: Callable[[], None], hang_after_s: float = 300.0
    ) -> None:
        self._folder = folder
        self._hooks = hooks
        self._dump = dump
        self._rank = int(os.environ.get("RANK") or 0)
        world = int(os.environ.get("WORLD_SIZE") or 1)
        usual_s = min(_REPORT_S, hang_after_s / 10 or _REPORT_S)
        self._report_s = usual_s * max(1.0, world / _FULL_RATE_RANKS)
        self._look_s = min(_LOOK_S, usual_s)
        self._main = threading.main_thread().ident or 0
        self._progress_file: int | None = None
        self._stacks_file: Any = None
        self._seen = {name: self._touched_ns(name) for name in ("dump", *_REQUESTS)}
        self._cpu = (time.monotonic(), time.process_time())

    def start(self) -> None:
        """Arm the signal for stacks, write the first progress, and start the thread."""
        try:
            path = self._make("stacks", f"rank-{self._rank}.txt")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._stacks_file = os.fdopen(os.open(path, flags, 0o600), "w")
            faulthandler.register(STACKS_SIGNAL, file=self._stacks_file, all_threads=True)
        except (OSError, RuntimeError, ValueError) as error:
            sys.stderr.write(f"gipfel: stacks can't be written: {error}\n")
        _permit_parent()
        self._report_progress()
        threading.Thread(target=self._run, name="gipfel-watch", daemon=True).start()

    def _run(self) -> None:
        next_report_s = time.monotonic() + self._report_s
        while True:
            time.sleep(self._look_s)
            try:
                if self._is_new("dump"):
                    self._dump()
                for name in _REQUESTS:
                    if self._is_new(name):
                        self._on_request(name)
                if time.monotonic() >= next_report_s:
                    next_report_s = time.monotonic() + self._report_s
                    self._report_progress()
            except Exception as error:  # noqa: BLE001 - the training must not depend on it
                sys.stderr.write(f"gipfel: a request failed ({type(error).__name__}: {error})\n")

    def _report_progress(self) -> None:
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
        text = json.dumps(content).encode()[: _PROGRESS_BYTES - 1]
        if self._progress_file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._progress_file = os.open(self._make("progress", str(self._rank)), flags, 0o600)
        os.pwrite(self._progress_file, text.ljust(_PROGRESS_BYTES - 1) + b"\n", 0)

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

    def _on_request(self, name: str) -> None:
        """Carry out a request from within this process, if it is for this rank."""
        with open(os.path.join(self._folder, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            request = json.loads(file.read(_MOST_REQUEST_BYTES))
        # Stacks come from outside: a program that is stopped or holds Python's lock would not answer.
        if self._rank in request["ranks"] and request["what"] != "stacks":
            looks = _load_looks(self._folder)
            arguments = (self._folder, self._rank, self._hooks, request)
            threading.Thread(target=looks.look_from_inside, args=arguments, daemon=True).start()

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


def _load_looks(folder: str) -> Any:
    """Return rank_looks.py of the launch's directory; it is loaded at the first request."""
    name = "gipfel_rank_looks"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "rank_looks.py"))  # noqa: PTH118
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def _permit_parent() -> None:
    """Permit the parent process to attach py-spy to this one, where Yama restricts ptrace."""
    try:
        with open(_PTRACE_SCOPE, encoding="utf-8") as file:  # noqa: PTH123
            scope = file.read(8).strip()
    except OSError:
        return
    if scope == "1":
        import ctypes  # noqa: PLC0415 - seldom needed

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, os.getppid(), 0, 0, 0)


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
