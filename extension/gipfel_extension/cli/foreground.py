"""Running a command in the foreground, with this process's terminal, streams and signals."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import FrameType

_FORWARDED = tuple(
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
#: Time within which a signal to a whole process group or job has reached all its processes.
_GROUP_DELAY_S = 0.1
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class Foreground:
    """Runner of one command with this process's terminal, streams, directory, process group and open files.

    Each signal reaches the command once. A signal to the whole process group (Ctrl-C) or job (Slurm) reaches
    the command directly; a signal to this process alone is forwarded. To distinguish them, a monitor
    process in the same group reports the signals that it receives, which are those to the whole group.
    """

    def __init__(self) -> None:
        self._signals, wake = os.pipe()
        os.set_blocking(wake, False)
        # Signals that the caller ignores, such as with nohup, stay ignored here and in the command.
        self._handled = [n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
        for number in (*self._handled, signal.SIGCHLD):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._reports, self._lifetime, self._monitor = _monitor()

    def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end and return its exit status, 128 + n after signal n.

        Raises
        ------
        OSError
            The command can't be started.
        """
        # The command inherits the caller's other open files; this process's own are closed on exec.
        child = subprocess.Popen(argv, env=dict(environment), close_fds=False)
        _close_inherited_files()
        to_this_process: dict[int, float] = {}
        to_group: dict[int, float] = {}
        while (status := child.poll()) is None:
            due = min(to_this_process.values(), default=None)
            patience = None if due is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select(
                [each for each in (self._signals, self._reports) if each >= 0], [], [], patience
            )
            now = time.monotonic()
            if self._reports in ready:
                self._listen(to_this_process, to_group, now)
            if self._signals in ready:
                for number in os.read(self._signals, 512):
                    if number in self._handled and to_group.pop(number, 0.0) < now - _GROUP_DELAY_S:
                        to_this_process[number] = now + _GROUP_DELAY_S
            for number in [number for number, until in to_this_process.items() if until <= now]:
                del to_this_process[number]
                child.send_signal(number)
        return 128 - status if status < 0 else status

    def close(self) -> None:
        """End the monitor process; later signals are no longer forwarded."""
        os.close(self._lifetime)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._monitor, 0)

    def _listen(self, to_this_process: dict[int, float], to_group: dict[int, float], now: float) -> None:
        """Read the monitor's signals, which have reached the whole group and must not be forwarded."""
        numbers = os.read(self._reports, 512)
        if not numbers:
            # The monitor was killed; from now on every signal is forwarded.
            os.close(self._reports)
            self._reports = -1
        for number in numbers:
            if to_this_process.pop(number, None) is None:
                to_group[number] = now


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing: its number was already written to the wakeup pipe."""


def _monitor() -> tuple[int, int, int]:
    """Start the monitor process, which handles the same signals as this process.

    Returns
    -------
    tuple[int, int, int]
        The pipe on which it reports each signal's number; the pipe that ends it when it is closed (also by
        the end of this process); and its PID.
    """
    reports, report_end = os.pipe()
    lifetime_end, lifetime = os.pipe()
    process = os.fork()
    if process:
        os.close(report_end)
        os.close(lifetime_end)
        return reports, lifetime, process
    try:
        os.close(lifetime)
        os.set_blocking(report_end, False)
        signal.set_wakeup_fd(report_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in _open_files() - {lifetime_end, report_end}:
            with contextlib.suppress(OSError):
                os.close(each)
        os.read(lifetime_end, 1)
    finally:
        os._exit(0)


def _close_inherited_files() -> None:
    """Close the files that the command has inherited, so that only the command keeps its output open."""
    null = os.open(os.devnull, os.O_RDWR)
    for each in _open_files():
        if each in (0, 1):
            os.dup2(null, each)
        elif each > 2 and os.get_inheritable(each):
            os.close(each)
    os.close(null)


def _open_files() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - numbers, no paths
    # The list includes the descriptor of the listing itself, which is closed by now.
    return {each for each in found if _is_open(each)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
