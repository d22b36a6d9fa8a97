"""Looks into one rank: stacks, a flame graph, a trace of torch's profiler, a snapshot of a GPU's memory.

A request is ``{"id", "what", "ranks", "method", "native", "seconds", "steps"}``. Its results are in the
launch's directory in ``deeper/<id>/``: a file of each rank, and ``answer-<rank>.json`` with its path, or with
the reason why there is none.

`look_from_outside` runs in the process that started the rank, `look_from_inside` in the rank's own process.
Both run from the copy of this file in the launch's directory, with the image's Python, 3.9 or newer, and only
the standard library.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

#: The signal for which rank_requests.py registers faulthandler.
STACKS_SIGNAL = signal.SIGRTMIN + 12
_PROGRESS_BYTES = 1024
_MOST_REQUEST_BYTES = 1 << 20
#: Longest wait in seconds for the steps of a trace.
_TRACE_LIMIT_S = 600.0
_MOST_EVENTS = 100_000
_IDENTIFIER = re.compile(r"[a-z]+-[0-9TZ]{8,24}-[0-9a-f]{4,16}")
_MOST_SECONDS = 600.0
#: Samples per second of a flame graph.
_RATE = 100
_PY_SPY_S = 30.0
#: Longest wait in seconds for stacks after the signal.
_SIGNAL_S = 8.0
#: Seconds without growth after which the file of stacks is complete: faulthandler writes line by line.
_SETTLE_S = 0.3
_LOOK_S = 0.05  # between two checks of that file
#: Seconds for which a rank waits for the word that py-spy failed and that it has to sample itself.
_FALLBACK_S = 20.0
_MOST_STACK_BYTES = 4 << 20
_CAP_SYS_PTRACE = 19
_PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


def look_from_outside(folder: str, rank: int) -> None:
    """Start a thread that carries out the request for stacks or a flame graph, if it is for this rank."""
    try:
        with open(os.path.join(folder, "stacks.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            request = json.loads(file.read(_MOST_REQUEST_BYTES))
        if rank not in request["ranks"]:
            return
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"gipfel: a request for stacks failed: {error}\n")
        return
    threading.Thread(target=_answer, args=(folder, rank, request, _from_outside), daemon=True).start()


def look_from_inside(folder: str, rank: int, hooks: Any, request: Any) -> None:
    """Carry out a request for a trace, a snapshot, or a flame graph that py-spy can't make."""
    if request["what"] == "flame":
        marker = _path(folder, request, f"sample-{rank}")
        deadline = time.monotonic() + _FALLBACK_S
        while not os.path.exists(marker):  # noqa: PTH110
            if time.monotonic() > deadline:
                return
            time.sleep(_LOOK_S)
        _answer(folder, rank, request, _sampled)
        return
    work = _MemorySnapshot if request["what"] == "memory" else _Trace

    def run(_folder: str, _rank: int, _request: Any) -> dict[str, Any]:
        return {"path": work(folder, rank, hooks, int(request["steps"])).run(request)}

    _answer(folder, rank, request, run)


def _answer(
    folder: str, rank: int, request: Any, look: Callable[[str, int, Any], dict[str, Any] | None]
) -> None:
    """Write the result of a look with the size of its file, or why it failed; write nothing for None."""
    try:
        found = look(folder, rank, request)
        if found is None:
            return
        if found.get("path"):
            found["bytes"] = os.stat(found["path"]).st_size  # noqa: PTH116
    except Exception as error:  # noqa: BLE001 - the reason is shown where it was requested
        found = {"error": f"{error}" or type(error).__name__}
    try:
        path = _path(folder, request, f"answer-{rank}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"rank": rank, **found}, file)
        os.replace(path + ".part", path)  # noqa: PTH105
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: a request can't be answered: {error}\n")


def _path(folder: str, request: Any, name: str) -> str:
    """Return the path of a file of this request; its directory is made."""
    if not _IDENTIFIER.fullmatch(str(request["id"])):
        raise ValueError("its ID is not valid")
    path = os.path.join(folder, "deeper", request["id"], name)  # noqa: PTH118
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
    return path


def _from_outside(folder: str, rank: int, request: Any) -> dict[str, Any] | None:
    pid, status = _program(folder, rank)
    flame, note = request["what"] == "flame", ""
    path = _path(folder, request, f"rank-{rank}" + (".speedscope.json" if flame else ".txt"))
    if request.get("method") != "signal":
        note = _run_py_spy(pid, path, request, flame)
        if not note:
            return {"path": path, "method": "py-spy"}
        if request.get("method") == "py-spy":
            raise RuntimeError(note)
    if flame:
        # The rank must sample itself: without ptrace, no other process can read its stacks.
        with open(_path(folder, request, f"sample-{rank}"), "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(note)
        return None
    _write_by_signal(folder, rank, pid, status, path)
    return {"path": path, "method": "signal", "note": note}


def _program(folder: str, rank: int) -> tuple[int, dict[str, str]]:
    """Return PID and status of a rank's program, which may be a notebook's kernel."""
    try:
        with open(os.path.join(folder, "progress", str(rank)), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            pid = int(json.loads(file.read(_PROGRESS_BYTES))["pid"])
        return pid, _status(pid)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeError("its program has no handler of the signal for stacks yet, or has ended") from error


def _status(pid: int | str) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:  # noqa: PTH123
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def _write_by_signal(folder: str, rank: int, pid: int, status: dict[str, str], path: str) -> None:
    """Make faulthandler write the stacks, and copy them; raise RuntimeError with the reason if it can't."""
    state = status.get("State", "")
    if state[:1] in ("T", "t"):
        raise RuntimeError(f"its process is stopped: {state}")
    # Without a handler, the signal would end the program.
    if not int(status.get("SigCgt", "0"), 16) >> (STACKS_SIGNAL - 1) & 1:
        raise RuntimeError("its program has removed the handler of the signal for stacks")
    source = os.path.join(folder, "stacks", f"rank-{rank}.txt")  # noqa: PTH118
    before = os.stat(source).st_size  # noqa: PTH116
    os.kill(pid, STACKS_SIGNAL)
    deadline, size, changed = time.monotonic() + _SIGNAL_S, before, 0.0
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        now = os.stat(source).st_size  # noqa: PTH116
        if now != size:
            size, changed = now, time.monotonic()
        elif size > before and time.monotonic() - changed > _SETTLE_S:
            break
    if size == before:
        waits = f": its process waits in the kernel, such as for storage: {state}" if state[:1] == "D" else ""
        raise RuntimeError(f"it does not answer a signal{waits}")
    with open(source, "rb") as file, open(path + ".part", "wb") as copy:  # noqa: PTH123
        file.seek(max(before, size - _MOST_STACK_BYTES))
        copy.write(file.read(_MOST_STACK_BYTES))
    os.replace(path + ".part", path)  # noqa: PTH105


def _run_py_spy(pid: int, path: str, request: Any, flame: bool) -> str:  # noqa: FBT001
    """Write stacks or a flame graph with py-spy; return the reason if that is not possible."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")  # noqa: PTH118, PTH120
    program = shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")
    if not program:
        return "py-spy is not installed in the image or environment of the ranks (pip install py-spy)"
    seconds = min(_MOST_SECONDS, max(1.0, float(request.get("seconds") or 10)))
    command = [program, "dump", "--full-filenames", "--pid", str(pid)]
    if flame:
        command = [program, "record", "--idle", "--format", "speedscope", "--rate", str(_RATE), "--pid"]
        command += [str(pid), "--duration", str(round(seconds)), "--output", path + ".part"]
    if request.get("native"):
        command.append("--native")
    try:
        limit_s = _PY_SPY_S + (seconds if flame else 0)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return permission_problem(lines, _read(_PTRACE_SCOPE), _status("self"))
    if not flame:
        with open(path + ".part", "wb") as file:  # noqa: PTH123
            file.write(done.stdout[:_MOST_STACK_BYTES])
    os.replace(path + ".part", path)  # noqa: PTH105
    return ""


def permission_problem(lines: list[str], scope: str, status: dict[str, str]) -> str:
    """Return why py-spy failed: the permission that is missing and who can give it, else its message.

    `lines` are py-spy's stderr, `scope` is ``kernel.yama.ptrace_scope``, `status` ``/proc/self/status``.
    """
    message = " ".join(line.strip() for line in lines[-3:])[:300]
    if not re.search(r"permission denied|operation not permitted|EPERM|os error 1\b", message, re.IGNORECASE):
        return f"py-spy failed: {message or 'without a message'}"
    if int(status.get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1:
        why = (
            "although CAP_SYS_PTRACE is there: a security module or seccomp filter of the container denies it"
        )
        return f"py-spy may not attach, {why}; allow the system call ptrace there"
    if scope in ("2", "3"):
        who = "needs CAP_SYS_PTRACE" if scope == "2" else "is off until the next boot"
        return (
            f"py-spy may not attach: kernel.yama.ptrace_scope is {scope}, so that ptrace {who}; ask the site"
        )
    if scope == "1":
        return (
            "py-spy may not attach: kernel.yama.ptrace_scope is 1, and the program is not a child of the "
            "process that runs py-spy; the site may set it to 0"
        )
    return (
        "py-spy may not attach: CAP_SYS_PTRACE is missing, and the container denies ptrace (its seccomp "
        "profile, or another user namespace); start it with ptrace allowed, as with --cap-add SYS_PTRACE"
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return file.read(64).strip()
    except OSError:
        return ""


def _sampled(folder: str, rank: int, request: Any) -> dict[str, Any]:
    """Sample the stacks of all threads of this process, and write them for speedscope."""
    seconds = min(_MOST_SECONDS, max(1.0, float(request.get("seconds") or 10)))
    own, counts, ticks = threading.get_ident(), {}, 0  # type: ignore[var-annotated]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1 / _RATE)
        ticks += 1
        for thread, frame in sys._current_frames().items():  # noqa: SLF001 - Python's way to other threads
            if thread != own:
                key = (thread, _frames(frame))
                counts[key] = counts.get(key, 0) + 1
    path = _path(folder, request, f"rank-{rank}.speedscope.json")
    with open(path + ".part", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(_speedscope(counts, f"rank {rank}", seconds / max(1, ticks)), file)
    os.replace(path + ".part", path)  # noqa: PTH105
    note = _read(_path(folder, request, f"sample-{rank}"))
    held = ticks < 0.5 * _RATE * seconds
    some = f"only {ticks} samples came: the program holds Python's lock for long" if held else ""
    return {"path": path, "method": "sampler", "note": "; ".join(each for each in (note, some) if each)}


def _frames(frame: Any) -> tuple[tuple[str, str, int], ...]:
    found: list[tuple[str, str, int]] = []
    while frame is not None and len(found) < 200:
        found.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found))


def _speedscope(counts: dict[Any, int], name: str, weight: float) -> dict[str, Any]:
    """Return samples in the file format of speedscope, a profile per thread, the main thread first."""
    indexes: dict[tuple[str, str, int], int] = {}
    names = {each.ident: each.name for each in threading.enumerate()}
    threads: dict[int, dict[str, Any]] = {}
    for (thread, frames), count in counts.items():
        profile = threads.setdefault(thread, {"samples": [], "weights": []})
        profile["samples"].append([indexes.setdefault(each, len(indexes)) for each in frames])
        profile["weights"].append(count * weight)
    main = threading.main_thread().ident
    profiles = [
        {"type": "sampled", "name": f"{name}, {names.get(thread, thread)}", "unit": "seconds",
         "startValue": 0, "endValue": sum(own["weights"]), **own}
        for thread, own in sorted(threads.items(), key=lambda each: each[0] != main)
    ]  # fmt: skip
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "shared": {"frames": [{"name": f, "file": path, "line": line} for f, path, line in indexes]},
        "profiles": profiles,
    }


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

    def run(self, request: Any) -> str:
        """Wait for the steps and return the path of the result.

        Raises
        ------
        RuntimeError
            The training made no steps in time, or the work failed.
        """
        path = _path(self._folder, request, self.check())
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

    # `begin` and `end` run in the training's thread, `write` in another one.
    check: Callable[[], str]  # the name of the result's file; fails if there can't be one
    begin: Callable[[], None]
    end: Callable[[], None]
    write: Callable[[str], None]

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

    def check(self) -> str:
        return f"rank-{self._rank}.json"

    def begin(self) -> None:
        import torch  # noqa: PLC0415

        profile = torch.profiler.profile(with_stack=True)
        # Fails where the program's own profiler runs: that error becomes the answer.
        profile.start()
        self._profile = profile

    def end(self) -> None:
        self._profile.stop()

    def write(self, path: str) -> None:
        self._profile.export_chrome_trace(path)


class _MemorySnapshot(_Steps):
    """A snapshot of the CUDA allocator, with the stacks of allocations during the steps."""

    _memory: Any = None

    def check(self) -> str:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            raise RuntimeError("it uses no GPU, and only memory of GPUs has snapshots")
        self._memory = torch.cuda.memory
        return f"rank-{self._rank}.pickle"

    def begin(self) -> None:
        self._memory._record_memory_history(max_entries=_MOST_EVENTS)  # noqa: SLF001 - torch documents it

    def end(self) -> None:
        self._part = self._memory._snapshot()  # noqa: SLF001
        self._memory._record_memory_history(enabled=None)  # noqa: SLF001

    def write(self, path: str) -> None:
        import pickle  # noqa: PLC0415 - written here, and read by torch's viewer

        with open(path, "wb") as file:  # noqa: PTH123
            pickle.dump(self._part, file)
