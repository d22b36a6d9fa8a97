"""Run programs of this package in a fork of a process that has loaded them, without a new interpreter.

A process calls `allow_forks` to permit that it is forked. Only a process with little memory should: every
page that it or its fork changes is copied. It must have one thread only, since a lock that another
thread held would never be released. `ForkedProgram` starts a function in a fork; `PreloadedProgram` imports a
job's program while the job's other processes are started.
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

from ..namespaces import die_with_parent

_allowed = False
_isolated = False
_MODULE = ("-I", "-m")
_CHDIR_COMMAND = ("env", "--chdir")
_PROGRAM_WORDS = 4  # the interpreter, -I, -m and the module


def allow_forks() -> None:
    """Let programs of this package be forks of this process."""
    global _allowed  # noqa: PLW0603 - a property of the process
    _allowed = True


def can_fork() -> bool:
    """Return whether this process may be forked and has only one thread; threads of libraries count, too."""
    return _allowed and len(list(Path("/proc/self/task").iterdir())) == 1


class ForkedProgram:
    """A program in a fork of this process, in its own session, with an interface like `subprocess.Popen`.

    Its standard input is a pipe, its standard error that of this process, its directory ``/``. If its
    output is captured, use only `communicate` to wait for its end, otherwise only `poll` and `wait`.

    Parameters
    ----------
    argv
        Arguments that ``ps`` shows: those that would start the program as a command.
    main
        Function that runs the program and returns its exit status.
    environment
        Environment variables of the program.
    output
        Standard output: discarded, that of this process, or returned by `communicate`.

    Raises
    ------
    OSError
        The process can't be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        main: Callable[[], int],
        environment: Mapping[str, str],
        *,
        output: Literal["discard", "inherit", "capture"] = "discard",
    ) -> None:
        captured = output == "capture"
        read, write = os.pipe()
        self._output, program_output = os.pipe() if captured else (-1, -1)
        # This pipe closes when the program ends. With captured output the end of that output serves instead:
        # a process that the program leaves behind may redirect its output, but would keep this pipe open.
        self._ended, alive = (-1, -1) if captured else os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()
                os.dup2(read, 0)
                if output != "inherit":
                    os.dup2(program_output if captured else os.open(os.devnull, os.O_WRONLY), 1)
                os.chdir("/")
                become_program(argv, environment, keep=alive)
                status = main()
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # noqa: BLE001 - no code of the parent may run in the fork
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(read)
        os.close(program_output if captured else alive)
        self.stdin = os.fdopen(write, "wb")

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal; None while the program runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the program to end, and return its exit status, negative after a signal.

        Raises
        ------
        subprocess.TimeoutExpired
            The program still runs after `timeout` seconds.
        """
        if self._status is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("forked", timeout or 0)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._ended)
        return self._status

    def communicate(self, content: bytes, timeout: float) -> bytes:
        """Write the program's input, and return its captured output when it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            The program still runs after `timeout` seconds; it is not ended, but its output is closed.
        OSError
            The program does not read its input.
        """
        deadline = time.monotonic() + timeout
        captured = b""
        try:
            with self.stdin:
                self.stdin.write(content)
            while True:
                remaining = max(0.0, deadline - time.monotonic())
                if not select.select([self._output], [], [], remaining)[0]:
                    raise subprocess.TimeoutExpired("forked", timeout)
                piece = os.read(self._output, 1 << 16)
                if not piece:
                    os.waitpid(self.pid, 0)
                    return captured
                captured += piece
        finally:
            os.close(self._output)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self._status is None:
            os.kill(self.pid, number)


def become_program(argv: Sequence[str], environment: Mapping[str, str], *, keep: int = -1) -> None:
    """Replace a fork's name, variables and signal handlers; close files except 0 to 2 and `keep`."""
    variables = dict(environment)  # it may be os.environ
    # Never finalize the parent's objects here: they would close descriptors whose numbers this process uses
    # again.
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != keep:
            with suppress(OSError):
                os.close(descriptor)
    _isolate()
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [argv[0]]
    # The parent's streams may contain unwritten output, or be None.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a descriptor
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    with suppress(OSError, ValueError, IndexError):
        _rename([os.fsencode(word) for word in argv])


def _isolate() -> None:
    """Remove the user's directories from the import path, as ``python -I`` does."""
    global _isolated  # noqa: PLW0603 - a property of the process
    if sys.flags.isolated or _isolated:
        return
    _isolated = True
    first = sys.path[:1] if not sys.flags.safe_path else []
    foreign = {*first, *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [each for each in sys.path if each not in {*foreign, site.USER_SITE}]


def _rename(words: Sequence[bytes]) -> None:
    """Overwrite the arguments of this process, which ``ps`` shows, with other words.

    The parent's environment block follows in memory and is no longer used. It is cleared, and long arguments
    extend into it, as with setproctitle(3); the kernel shows that part, too, if the last byte of the original
    arguments is not NUL.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(each) for each in fields[45:49])  # as in proc(5)
    size = (env_end if env_start == arg_end else arg_end) - arg_start
    text = b"\0".join(words)
    if len(text) >= arg_end - arg_start:
        text = b" ".join(words)[: size - 1]
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(arg_start)
        memory.write(text.ljust(size, b"\0"))


class PreloadedProgram:
    """A Python package or module that is imported in a fork of this process while the job is prepared.

    `run` runs it as ``python -I -m MODULE …`` would; without that call it ends with this process.

    Parameters
    ----------
    argv
        The command that would start the program: interpreter, ``-I``, ``-m``, its module, then arguments.
    bound
        Whether the kernel kills it when this process ends.
    """

    def __init__(self, argv: Sequence[str], *, bound: bool = False) -> None:
        self._argv, self._bound = list(argv), bound
        self._forked = ForkedProgram(argv, self._main, os.environ, output="inherit")

    @classmethod
    def for_command(cls, argv: Sequence[str], *, bound: bool = False) -> "PreloadedProgram | None":
        """Return the program of a command; None if it is not a Python module or can't be forked."""
        is_module = len(argv) >= _PROGRAM_WORDS and (argv[0], *argv[1:3]) == (sys.executable, *_MODULE)
        if not is_module or not can_fork():
            return None
        # A failed fork is ignored: the ordinary start of the command will report it.
        with suppress(OSError):
            return cls(argv, bound=bound)
        return None

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], directory: str
    ) -> ForkedProgram | None:
        """Run the program in a directory with these variables, and return its process.

        `argv` has to be the program's command, which ``env --chdir=…`` may precede; otherwise the fork is
        ended. Return None then, and if the fork has already ended: the caller starts the command in the
        ordinary way.
        """
        prefix, command = list(argv[: -len(self._argv)]), list(argv[-len(self._argv) :])
        # Without a container, `env --chdir=…` enters the working directory of the environment (EDF).
        is_chdir = len(prefix) == 2 and (Path(prefix[0]).name, prefix[1].partition("=")[0]) == _CHDIR_COMMAND
        if is_chdir:
            prefix, directory = [], prefix[1].partition("=")[2]
        if not prefix and command == self._argv:
            settings = {"environment": dict(environment), "directory": directory}
            with suppress(OSError), self._forked.stdin as stdin:
                stdin.write(json.dumps(settings).encode() + b"\n")
                return self._forked
        self.cancel()
        return None

    def cancel(self) -> None:
        """End the process without running the program."""
        with suppress(OSError):
            self._forked.stdin.close()
        self._forked.wait()

    def _main(self) -> int:
        module = self._argv[3]
        if self._bound:
            die_with_parent()
        with suppress(ImportError):  # reported when it is run
            is_package = hasattr(importlib.import_module(module), "__path__")
            executed = f"{module}.__main__" if is_package else module
            importlib.import_module(executed)
            # Keep what it imported, but let runpy execute it again as the main module.
            sys.modules.pop(executed, None)
        line = sys.stdin.readline()
        if not line:
            return 0
        settings = json.loads(line)
        devnull = os.open(os.devnull, os.O_RDONLY)
        os.dup2(devnull, 0)
        os.close(devnull)
        os.environ.clear()
        os.environ.update(settings["environment"])
        os.chdir(settings["directory"])
        sys.argv = ["", *self._argv[_PROGRAM_WORDS:]]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if isinstance(ended.code, str):
                sys.stderr.write(f"{ended.code}\n")
                return 1
            return ended.code or 0
        return 0
