"""Run programs of this package in a fork of a process that has loaded them, which starts no interpreter.

A program says by `allow_forks` that it may be forked: it is one of this package and holds nothing large. A
fork has one thread only, since a lock that another one held would never be released. `ForkedProgram` starts
one, and `LoadingProgram` lets a job's own program load while its recorder and broker are started.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import site
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

_allowed = False
_isolated = False
_MODULE = ("-I", "-m")
_ENTER = ("env", "--chdir")
_WORDS = 4  # the interpreter, -I, -m and the module


def allow_forks() -> None:
    """Let programs of this package be forks of this process."""
    global _allowed  # noqa: PLW0603 - of the process, as what it runs is
    _allowed = True


def can_fork() -> bool:
    """Return whether this process may be forked and has one thread, those of libraries counted."""
    try:
        return _allowed and len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class ForkedProgram:
    """A forked program in its own session, with a pipe as its input, as `subprocess.Popen` would start it.

    Parameters
    ----------
    argv
        The argv that would start it; ``ps`` shows it.
    main
        Function that runs it and returns its exit status.
    environment
        Its variables.
    output
        Destination of its output: nowhere, the output of this process, or `answer_to`.

    Raises
    ------
    OSError
        Another process can't be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        main: Callable[[], int],
        environment: Mapping[str, str],
        *,
        output: Literal["none", "parent", "answer"] = "none",
    ) -> None:
        answers = output == "answer"
        given, write = os.pipe()
        self._answer, answering = os.pipe() if answers else (-1, -1)
        # Open as long as the program lives. One that answers may leave a process behind: its output ends.
        self._ended, alive = (-1, -1) if answers else os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()
                os.dup2(given, 0)
                if output != "parent":
                    os.dup2(answering if answers else os.open(os.devnull, os.O_WRONLY), 1)
                os.chdir("/")
                become_program(argv, environment, keep=alive)
                status = main()
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # noqa: BLE001 - nothing of this process's own may run in the other one
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(given)
        os.close(answering if answers else alive)
        self.stdin = os.fdopen(write, "wb")

    def poll(self) -> int | None:
        """Return its exit status, negative after a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status, negative after a signal.

        Raises
        ------
        subprocess.TimeoutExpired
            It still runs after so many seconds.
        """
        if self._status is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("forked", timeout or 0)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._ended)
        return self._status

    def answer_to(self, question: bytes, timeout: float) -> bytes:
        """Write all of its input, and return its output when it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            It still runs after so many seconds.
        OSError
            It does not read its input.
        """
        deadline = time.monotonic() + timeout
        answer = b""
        try:
            with self.stdin:
                self.stdin.write(question)
            while True:
                left = max(0.0, deadline - time.monotonic())
                if not select.select([self._answer], [], [], left)[0]:
                    raise subprocess.TimeoutExpired("forked", timeout)
                piece = os.read(self._answer, 1 << 16)
                if not piece:
                    os.waitpid(self.pid, 0)
                    return answer
                answer += piece
        finally:
            os.close(self._answer)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._status is None:
            os.kill(self.pid, number)


def become_program(argv: Sequence[str], environment: Mapping[str, str], *, keep: int = -1) -> None:
    """Drop what a forked process has of its parent: name, variables, signals, and files except 0 to 2."""
    # What the parent has lost already would be collected here, and close files of this process.
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for held in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if held > 2 and held != keep:
            with suppress(OSError):
                os.close(held)
    _isolate()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [argv[0]]
    # The parent's hold what it has not written yet, or are missing.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a descriptor
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    with suppress(OSError, ValueError, IndexError):
        _rename([os.fsencode(word) for word in argv])


def _isolate() -> None:
    """Import what this program still lacks as ``python -I`` does, without the user's own folders."""
    global _isolated  # noqa: PLW0603 - of the process, as its path is
    if sys.flags.isolated or _isolated:
        return
    _isolated = True
    first = sys.path[:1] if not sys.flags.safe_path else []
    foreign = {*first, *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [each for each in sys.path if each not in {*foreign, site.USER_SITE}]


def _rename(words: Sequence[bytes]) -> None:
    """Write the words over the arguments that this process was started with, which ``ps`` shows.

    The parent's variables lie behind them and are in use no more: they are wiped, and longer words reach
    over them, as those of setproctitle(3); the kernel shows these where the arguments end with a letter.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end, behind, last = (int(each) for each in fields[45:49])  # arg_start to env_end of proc(5)
    room = (last if behind == end else end) - start
    text = b"\0".join(words)
    if len(text) >= end - start:
        text = b" ".join(words)[: room - 1]
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(text.ljust(room, b"\0"))


class LoadingProgram:
    """A Python module that loads in a fork of this process while the job is prepared.

    It runs as ``python -I -m PACKAGE …`` would once it is begun; without that it ends with this process.

    Parameters
    ----------
    argv
        The argv that would start it.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._forked = ForkedProgram(argv, self._main, os.environ, output="parent")

    @classmethod
    def of(cls, argv: Sequence[str]) -> "LoadingProgram | None":
        """Return the program of a command; None where it is not such a module, or can't be a fork of this."""
        ours = len(argv) >= _WORDS and (argv[0], *argv[1:3]) == (sys.executable, *_MODULE)
        if not ours or not can_fork():
            return None
        # Without another process, starting the command reports it.
        with suppress(OSError):
            return cls(argv)
        return None

    def begin(
        self, argv: Sequence[str], environment: Mapping[str, str], directory: str
    ) -> ForkedProgram | None:
        """Run it as this command would, in a directory; None where the command is another one."""
        enter, command = list(argv[: -len(self._argv)]), list(argv[-len(self._argv) :])
        # Without a container, `env` enters the working folder of the EDF.
        if len(enter) == len(_ENTER) and (Path(enter[0]).name, enter[1].partition("=")[0]) == _ENTER:
            enter, directory = [], enter[1].partition("=")[2]
        if not enter and command == self._argv:
            given = {"environment": dict(environment), "directory": directory}
            with suppress(OSError), self._forked.stdin as stdin:
                stdin.write(json.dumps(given).encode() + b"\n")
                return self._forked
        self.dismiss()
        return None

    def dismiss(self) -> None:
        """End it before it has begun."""
        with suppress(OSError):
            self._forked.stdin.close()
        self._forked.wait()

    def _main(self) -> int:
        module = self._argv[3]
        with suppress(ImportError):  # reported when it is run
            importlib.import_module(f"{module}.__main__")
        # Its imports stay; it is imported once more as the program.
        sys.modules.pop(f"{module}.__main__", None)
        line = sys.stdin.readline()
        if not line:
            return 0
        given = json.loads(line)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.environ.clear()
        os.environ.update(given["environment"])
        os.chdir(given["directory"])
        sys.argv = ["", *self._argv[_WORDS:]]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if isinstance(ended.code, str):
                sys.stderr.write(f"{ended.code}\n")
                return 1
            return ended.code or 0
        return 0
