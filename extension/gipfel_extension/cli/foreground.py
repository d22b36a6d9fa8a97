"""A command in the foreground: as if it had been started alone, while this process waits beside it."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import FrameType

_PASSED_ON = tuple(
    getattr(signal, name)
    for name in (
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGTERM",
        "SIGUSR1",
        "SIGUSR2",
        "SIGALRM",
        "SIGXCPU",
        "SIGWINCH",
    )
)
#: Within this a signal that was sent to a whole group or job has reached everyone.
_SPREAD_S = 0.1
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class Foreground:
    """Runs one command with this process's terminal, streams, folder, process group and open files.

    A signal reaches the command once. What comes to a whole process group (Ctrl-C) or job (Slurm) reaches the
    command by itself; what comes to this process alone is passed on. The two look the same, so a bystander
    tells them apart: a small process in the same group, which hears the first kind and not the second.
    """

    def __init__(self) -> None:
        self._signals, wake = os.pipe()
        os.set_blocking(wake, False)
        # Those that the caller ignores, as nohup does, stay ignored here and in the command.
        self._handled = [n for n in _PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
        for number in (*self._handled, signal.SIGCHLD):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._heard, self._held, self._bystander = _bystander()

    def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end and return its exit status, 128 + n after signal n.

        Raises
        ------
        OSError
            It can't be started.
        """
        # What else the caller has open is the command's too; what is ours is closed on exec.
        child = subprocess.Popen(argv, env=dict(environment), close_fds=False)
        _let_go_of_files()
        alone: dict[int, float] = {}
        spread: dict[int, float] = {}
        while (status := child.poll()) is None:
            due = min(alone.values(), default=None)
            patience = None if due is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select(
                [each for each in (self._signals, self._heard) if each >= 0], [], [], patience
            )
            now = time.monotonic()
            if self._heard in ready:
                self._listen(alone, spread, now)
            if self._signals in ready:
                for number in os.read(self._signals, 512):
                    if number in self._handled and spread.pop(number, 0.0) < now - _SPREAD_S:
                        alone[number] = now + _SPREAD_S
            for number in [number for number, until in alone.items() if until <= now]:
                del alone[number]
                child.send_signal(number)
        return 128 - status if status < 0 else status

    def close(self) -> None:
        """End the bystander, by its id; signals that come from now on are let pass."""
        os.close(self._held)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._bystander, 0)

    def _listen(self, alone: dict[int, float], spread: dict[int, float], now: float) -> None:
        """Take what the bystander has heard: everybody got it, whether it came here before or comes after."""
        heard = os.read(self._heard, 512)
        if not heard:
            # It was killed; from now on every signal is passed on.
            os.close(self._heard)
            self._heard = -1
        for number in heard:
            if alone.pop(number, None) is None:
                spread[number] = now


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Be there: the signal's number is written to the pipe before this is called."""


def _bystander() -> tuple[int, int, int]:
    """Start the bystander, which handles signals as this process does.

    Returns
    -------
    tuple[int, int, int]
        The pipe on which it writes the number of each signal that it gets, the one that ends it when it is
        closed, which this process's death does too, and its process.
    """
    heard, tell = os.pipe()
    hold, held = os.pipe()
    process = os.fork()
    if process:
        os.close(tell)
        os.close(hold)
        return heard, held, process
    try:
        os.close(held)
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in _open_files() - {hold, tell}:
            with contextlib.suppress(OSError):
                os.close(each)
        os.read(hold, 1)
    finally:
        os._exit(0)


def _let_go_of_files() -> None:
    """Close what is now the command's, so that whoever reads its output sees when the command closes it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in _open_files():
        if each in (0, 1):
            os.dup2(nowhere, each)
        elif each > 2 and os.get_inheritable(each):
            os.close(each)
    os.close(nowhere)


def _open_files() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - numbers, no paths
    # The listing's own is in it, and closed by now.
    return {each for each in found if _is_open(each)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
