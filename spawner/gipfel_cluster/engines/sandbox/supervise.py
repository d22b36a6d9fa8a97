"""Forward signals to a child process, wait for it, and translate its exit status."""

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    # The part in C: the enumerations of `signal` take longer to load than all of this module.
    import _signal as signal

FORWARDED = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT}
)
_BLOCKED = FORWARDED | {signal.SIGCHLD}
#: Signals that Python ignores; a command expects their default action.
RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)


def block_signals() -> None:
    """Block signals until `wait_for_child`; call it before any child is started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)


def pending_end_signal() -> int:
    """Return the pending signal that asks this process to end, or 0."""
    pending = signal.sigpending() & (FORWARDED - {signal.SIGUSR1, signal.SIGUSR2})
    return int(min(pending, default=0))


def wait_for_child(child: int, forward: "Callable[[int], None]", ended: dict[int, int] | None = None) -> int:
    """Forward signals and reap all children until ``child`` has ended.

    Parameters
    ----------
    ended
        Exit codes of children that ended earlier; those that end meanwhile are added.

    Returns
    -------
    int
        The child's exit status, or -n if signal n ended it.
    """
    ended = {} if ended is None else ended
    while child not in ended:
        information = signal.sigwaitinfo(_BLOCKED)
        if information.si_signo == signal.SIGCHLD:
            _reap(ended)
        elif information.si_code <= 0:
            # A code above 0 means the kernel sent it, for a Ctrl-C at the terminal, which the child gets too.
            forward(information.si_signo)
    return ended[child]


def forward_to(process: int) -> "Callable[[int], None]":
    """Return a function that sends a signal to a process, unless it has ended."""

    def forward(number: int) -> None:
        try:
            posix.kill(process, number)
        except ProcessLookupError:
            pass

    return forward


def shell_status(code: int) -> int:
    """Return the exit status of a shell: 128 + n for -n, which means signal n."""
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
