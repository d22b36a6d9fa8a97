"""Start the ssh server beside a command and become the command.

Only what every Python has in itself is imported, because the command waits for it.
"""

# The module signal without its enumerations.
import _signal  # type: ignore[import-not-found]
import os
import sys

from .variable import VARIABLE, environment_of

_SERVE = ("-I", "-m", "gipfel_cluster.hooks.inside.serve")
_NOT_FOUND, _NOT_STARTED = 127, 126


def main(words: list[str]) -> int:
    """Become the command, whose process this is, so that signals and its exit status are its own."""
    # Python changes the locale of its own environment; the command gets what the container was given.
    given = environment_of("self")
    if VARIABLE in given:
        _start_server(given)
    # Python ignores these; a command expects them as they are by default.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    try:
        given.pop(VARIABLE, None)
        os.execvpe(words[0], words, given)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"gipfel: The command {words[0]!r} could not be started: {error.strerror}.\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED


def _start_server(environment: dict[bytes, bytes]) -> None:
    try:
        command = os.pidfd_open(os.getpid())
    except OSError:
        # Without it the server ends with the container only.
        command = -1
    # The child between orphans the server, so that the command never has to wait for it.
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        if command >= 0:
            os.close(command)
        return
    try:
        if os.fork() == 0:
            os.setsid()
            _keep_only(command)
            os.execve(sys.executable, [sys.executable, *_SERVE, str(command)], environment)  # noqa: S606
    finally:
        os._exit(0)


def _keep_only(command: int) -> None:
    """Close the command's files, all but stderr: their readers wait until the last writer closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is slow to load
        if int(name) > 2 and int(name) != command:
            try:
                os.close(int(name))
            except OSError:
                continue
    if command >= 0:
        os.set_inheritable(command, True)  # noqa: FBT003 - positional only


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
