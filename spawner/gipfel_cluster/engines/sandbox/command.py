"""Run bwrap or podman as a child process and return the command's exit status."""

import posix
import select
import time

from ...namespaces import SandboxError
from .supervise import RESET_SIGNALS, forward_to, shell_status, wait_for_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_START_SECONDS = 30.0
_SIGKILL = 9
_CHILD_PID_KEY = b'"child-pid": '


class Bwrap:
    """bwrap as a child process. To save its loading time, it is started before its options are known.

    It is a context manager: if `run` was not called by the end of the block, bwrap is killed before it
    creates anything.

    Raises
    ------
    OSError
        The program does not exist.
    """

    def __init__(self, program: str, command: "Sequence[str]") -> None:
        self._command = command[0]
        options, self._options = posix.pipe()
        reader, writer = posix.pipe()
        for inherited in (options, writer):
            posix.set_inheritable(inherited, True)  # noqa: FBT003 - positional only
        # Variables and paths must not be in an argv, which all users of the node can read.
        argv = [program, "--json-status-fd", str(writer), "--args", str(options), "--", *command]
        self._child = posix.posix_spawn(program, argv, posix.environ, setsigmask=[], setsigdef=RESET_SIGNALS)
        posix.close(options)
        posix.close(writer)
        self._status = _StatusReader(reader)

    def __enter__(self) -> "Bwrap":
        """Return itself: the constructor has started bwrap."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Kill bwrap if it still waits for its options.

        When the pipe closes, it would take what it has read for the complete list.
        """
        if self._child:
            posix.kill(self._child, _SIGKILL)
            posix.waitpid(self._child, 0)

    def run(self, options: "Sequence[str]") -> int:
        """Create the container and run the command in it to its end, forwarding signals.

        Returns
        -------
        int
            The command's exit status; 128 + n if signal n ended it.

        Raises
        ------
        SandboxError
            bwrap could not start the command; its reason is on stderr.
        """
        self._send_options(options)
        # bwrap does not forward signals itself.
        process = self._status.command() or self._child
        child, self._child = self._child, 0

        forward = forward_to(process)
        ended: dict[int, int] = {}
        code = wait_for_child(child, forward, ended)
        if code < 0 and (process in ended or _is_alive(process)):
            # A Ctrl-C at the terminal ends bwrap, too. A command that handles it keeps running, and becomes
            # our child, because this process is PID 1 of the container.
            code = wait_for_child(process, forward, ended)
        if code == 1 and not self._status.exited():
            raise SandboxError(f"The command {self._command!r} could not be started in the container.")
        return shell_status(code)

    def _send_options(self, options: "Sequence[str]") -> None:
        if any("\0" in option for option in options):
            raise SandboxError(
                "A variable or path of the container has a NUL character, which is not allowed."
            )
        try:
            with open(self._options, "wb") as file:
                file.write(b"".join(option.encode(errors="surrogateescape") + b"\0" for option in options))
        except BrokenPipeError:
            # bwrap has ended; `run` reports its status.
            pass


def run_podman(argv: list[str], environment: "Mapping[str, str]") -> int:
    """Run podman, which forwards signals itself, to its end.

    Returns
    -------
    int
        The command's exit status as podman reports it; 125 if podman failed and wrote the reason.
    """
    child = posix.posix_spawn(argv[0], argv, environment, setsigmask=[], setsigdef=RESET_SIGNALS)
    return shell_status(wait_for_child(child, forward_to(child)))


def _is_alive(process: int) -> bool:
    try:
        posix.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class _StatusReader:
    """Reads the lines of JSON that bwrap writes to ``--json-status-fd``, each in several pieces."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._text = b""

    def command(self) -> int:
        """Wait for the id of the command's process and return it; 0 if bwrap ended without one."""
        end = time.monotonic() + _START_SECONDS
        while b"\n" not in self._text:
            if not self._ready(end - time.monotonic()):
                raise SandboxError(f"bwrap did not start the command within {_START_SECONDS:.0f} s.")
            if not self._read():
                return 0
        after = self._text.partition(_CHILD_PID_KEY)[2]
        digits = after[: len(after) - len(after.lstrip(b"0123456789"))]
        return int(digits or b"0")

    def exited(self) -> bool:
        """Return whether the command was started and has ended; call it after bwrap has ended."""
        while self._ready(0) and self._read():
            pass
        return b"exit-code" in self._text

    def _ready(self, seconds: float) -> bool:
        return bool(select.select([self._reader], [], [], max(0, seconds))[0])

    def _read(self) -> bool:
        piece = posix.read(self._reader, 4096)
        self._text += piece
        return bool(piece)
