"""Programs of this package in a fork of a process that has loaded them, which starts no interpreter.

A fork is only safe where no other thread runs: see `is_alone`.
"""

import gc
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def is_alone() -> bool:
    """Return whether this process has one thread only, those of libraries counted."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class ForkedProgram:
    """A program in a session of its own, with a pipe as its input, as `subprocess.Popen` would start it.

    Parameters
    ----------
    argv
        What it would be started by; ``ps`` shows it.
    main
        Runs it, and returns its exit status.
    environment
        Its variables.

    Raises
    ------
    OSError
        There can't be another process.
    """

    def __init__(self, argv: Sequence[str], main: Callable[[], int], environment: Mapping[str, str]) -> None:
        given, write = os.pipe()
        self._ended, alive = os.pipe()
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.setsid()
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(given, 0)
                os.dup2(nowhere, 1)
                os.chdir("/")
                become_program(argv, environment, keep=alive)
                status = main()
                sys.stderr.flush()
            except BaseException:  # noqa: BLE001 - nothing of this process's own may run in the other one
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(given)
        os.close(alive)
        self.stdin = os.fdopen(write, "wb")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; negative after a signal.

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

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._status is None:
            os.kill(self.pid, number)


def become_program(argv: Sequence[str], environment: Mapping[str, str], *, keep: int = -1) -> None:
    """Leave what a forked process has of its parent: name, variables, signals, and files but for 0 to 2."""
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
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [argv[0]]
    with suppress(OSError, ValueError, IndexError):
        _rename(b"\0".join(os.fsencode(word) for word in argv))


def _rename(words: bytes) -> None:
    """Write the words over the arguments that this process was started with, which ``ps`` shows."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    room = end - start
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(words[: room - 1].ljust(room, b"\0"))
