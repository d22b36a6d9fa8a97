"""bwrap and podman as children: their options, and the exit status of the command."""

import posix
import select
import time

from ...namespaces import SandboxError
from .supervise import DEFAULTED, shell_status, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECONDS = 30.0
_SIGKILL = 9
_CHILD = b'"child-pid": '


class Bwrap:
    """bwrap as a child, started while its options are still being found out: it is loaded meanwhile.

    A context manager: what it has not run by the end of the block is ended, and nothing was made.

    Raises
    ------
    OSError
        There is no such program.
    """

    def __init__(self, program: str, command: "Sequence[str]") -> None:
        self._command = command[0]
        given, self._options = posix.pipe()
        reader, writer = posix.pipe()
        for inherited in (given, writer):
            posix.set_inheritable(inherited, True)  # noqa: FBT003 - positional only
        # Neither variables nor paths belong in an argv, which everybody on the node can read.
        argv = [program, "--json-status-fd", str(writer), "--args", str(given), "--", *command]
        self._child = posix.posix_spawn(program, argv, posix.environ, setsigmask=[], setsigdef=DEFAULTED)
        posix.close(given)
        posix.close(writer)
        self._said = _StatusReader(reader)

    def __enter__(self) -> "Bwrap":
        """Return itself: bwrap runs since it was made."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End it if it still waits for its options, before they end and it takes them for complete."""
        if self._child:
            posix.kill(self._child, _SIGKILL)
            posix.waitpid(self._child, 0)

    def run(self, options: "Sequence[str]") -> int:
        """Make the container and run the command in it to its end, passing signals on.

        Returns
        -------
        int
            The command's exit status; 128 + n where signal n ended it.

        Raises
        ------
        SandboxError
            bwrap could not start the command; its reason is on stderr.
        """
        self._give(options)
        # bwrap passes no signals on itself.
        process = self._said.command() or self._child
        child, self._child = self._child, 0

        def forward(number: int) -> None:
            try:
                posix.kill(process, number)
            except ProcessLookupError:
                pass

        ended: dict[int, int] = {}
        code = wait_for(child, forward, ended)
        if code < 0 and (process in ended or _is_alive(process)):
            # A Ctrl-C at the terminal ends bwrap too; a command that handles it keeps running, as our child.
            code = wait_for(process, forward, ended)
        if code == 1 and not self._said.exited():
            raise SandboxError(f"The command {self._command!r} could not be started in the container.")
        return shell_status(code)

    def _give(self, options: "Sequence[str]") -> None:
        if any("\0" in option for option in options):
            raise SandboxError(
                "A variable or path of the container has a NUL character, which none can hold."
            )
        try:
            with open(self._options, "wb") as file:
                file.write(b"".join(option.encode(errors="surrogateescape") + b"\0" for option in options))
        except BrokenPipeError:
            # It has ended, and `run` finds out how.
            pass


def run_podman(argv: list[str], environment: "Mapping[str, str]") -> int:
    """Run podman to its end, which passes signals on itself.

    Returns
    -------
    int
        The command's exit status as podman reports it; 125 where podman made no container and wrote why.
    """
    child = posix.posix_spawn(argv[0], argv, environment, setsigmask=[], setsigdef=DEFAULTED)

    def forward(number: int) -> None:
        try:
            posix.kill(child, number)
        except ProcessLookupError:
            pass

    return shell_status(wait_for(child, forward))


def _is_alive(process: int) -> bool:
    try:
        posix.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class _StatusReader:
    """The lines of JSON that bwrap writes, each in several pieces."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._text = b""

    def command(self) -> int:
        """Wait for the id of the command's process; 0 if bwrap ended without one."""
        end = time.monotonic() + _SECONDS
        while b"\n" not in self._text:
            if not self._ready(end - time.monotonic()):
                raise SandboxError(f"bwrap did not start the command within {_SECONDS:.0f} s.")
            if not self._read():
                return 0
        after = self._text.partition(_CHILD)[2]
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
