"""Start the ssh server and replace this process by the command.

Only modules that every Python has loaded already are imported, because the command waits for it.
`environment_of` reads the variables that a process was started with, as bytes.
"""

# The module signal without its enumerations.
import _signal  # type: ignore[import-not-found]
import os
import sys

#: The environment variable with an `SshServerSpec`; it is removed from the command's environment.
VARIABLE = b"GIPFEL_SSH"


def environment_of(process: str) -> dict[bytes, bytes]:
    """Return the variables that a process was started with; its own changes are not included.

    Raises
    ------
    OSError
        The process does not exist or belongs to another user.
    """
    with open(f"/proc/{process}/environ", "rb") as file:  # noqa: PTH123 - the command waits; pathlib is slow
        content = file.read()
    return dict(entry.split(b"=", 1) for entry in content.split(b"\0") if b"=" in entry)


_SERVE = ("-I", "-m", "gipfel_cluster.hooks.inside.serve")
_NOT_FOUND, _NOT_STARTED = 127, 126


def main(words: list[str]) -> int:
    """Replace this process by the command, so that it gets all signals and sets the exit status."""
    # Python changes locale variables in its environment; the command gets the container's values.
    environment = environment_of("self")
    if VARIABLE in environment:
        _start_server(environment)
    # Python ignores these signals; a command expects their default action.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    try:
        environment.pop(VARIABLE, None)
        os.execvpe(words[0], words, environment)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"gipfel: The command {words[0]!r} could not be started: {error.strerror}.\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED


def _start_server(environment: dict[bytes, bytes]) -> None:
    try:
        command = os.pidfd_open(os.getpid())
    except OSError:
        # Without a pidfd the server ends with the container.
        command = -1
    # A double fork makes the server an orphan, so that the command need not reap it.
    if child := os.fork():
        os.waitpid(child, 0)
        if command >= 0:
            os.close(command)
        return
    try:
        if os.fork() == 0:
            os.setsid()
            _close_other_files(command)
            os.execve(sys.executable, [sys.executable, *_SERVE, str(command)], environment)  # noqa: S606
    finally:
        os._exit(0)


def _close_other_files(command: int) -> None:
    """Close all files but stderr and the pidfd: readers of the command's files wait for their last writer."""
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
