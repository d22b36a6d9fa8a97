"""Signals on their way to the command, and its exit status on the way back."""

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    # The part in C; what `signal` adds are enumerations, which take longer than all that is done here.
    import _signal as signal

FORWARDED = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT}
)
_WAITED = FORWARDED | {signal.SIGCHLD}
#: Python ignores these; a command expects them as they are by default.
DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ)


def hold_signals() -> None:
    """Keep signals for `wait_for`; to be called before any child is started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)


def pending_end_signal() -> int:
    """Return the held signal that asks this process to end, or 0."""
    pending = signal.sigpending() & (FORWARDED - {signal.SIGUSR1, signal.SIGUSR2})
    return int(min(pending, default=0))


def wait_for(child: int, forward: "Callable[[int], None]", ended: dict[int, int] | None = None) -> int:
    """Pass signals on and reap every child until one has ended.

    Parameters
    ----------
    ended
        Exit codes of those that ended earlier; those that end meanwhile are added.

    Returns
    -------
    int
        Its exit status, or -n where signal n ended it.
    """
    ended = {} if ended is None else ended
    while child not in ended:
        information = signal.sigwaitinfo(_WAITED)
        if information.si_signo == signal.SIGCHLD:
            _reap(ended)
        elif information.si_code <= 0:
            # Above 0 the kernel sent it: a Ctrl-C at the terminal, which reaches its foreground anyway.
            forward(information.si_signo)
    return ended[child]


def shell_status(code: int) -> int:
    """Turn -n for signal n into 128 + n, as shells do."""
    return code if code >= 0 else 128 - code


def _reap(ended: dict[int, int]) -> None:
    try:
        while True:
            process, status = posix.waitpid(-1, posix.WNOHANG)
            if process == 0:
                return
            ended[process] = posix.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return
