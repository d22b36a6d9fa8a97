"""The program that makes the container, as a child: what it is given, and what it tells of the command."""

import os
import select
import time

from .namespaces import SandboxError
from .supervise import DEFAULTED, shell_status, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECONDS = 30.0
_CHILD = b'"child-pid": '


def run_bwrap(bwrap: str, options: "Sequence[str]", command: "Sequence[str]") -> int:
    """Run a command by bwrap to its end, passing signals on.

    Returns
    -------
    int
        The command's exit status; 128 + n where signal n ended it.

    Raises
    ------
    SandboxError
        bwrap has said on stderr why it could not start the command.
    """
    given = _options_file(options)
    reader, writer = os.pipe()
    for inherited in (given, writer):
        os.set_inheritable(inherited, True)  # noqa: FBT003 - positional only
    argv = [bwrap, "--json-status-fd", str(writer), "--args", str(given), "--", *command]
    child = os.posix_spawn(bwrap, argv, os.environ, setsigmask=[], setsigdef=DEFAULTED)
    os.close(given)
    os.close(writer)
    said = _Said(reader)
    # bwrap passes no signals on itself.
    process = said.command() or child

    def forward(number: int) -> None:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass

    ended: dict[int, int] = {}
    code = wait_for(child, forward, ended)
    if code < 0 and (process in ended or _is_alive(process)):
        # A Ctrl-C at the terminal ends bwrap too; a command that handles it goes on, now as a child of ours.
        code = wait_for(process, forward, ended)
    if code == 1 and not said.exited():
        raise SandboxError(f"The command {command[0]!r} could not be started in the container.")
    return shell_status(code)


def run_podman(argv: list[str], environment: "Mapping[str, str]") -> int:
    """Run podman to its end, which passes signals on itself.

    Returns
    -------
    int
        The command's exit status as podman tells it; 125 where podman has said why there is no container.
    """
    child = os.posix_spawn(argv[0], argv, environment, setsigmask=[], setsigdef=DEFAULTED)

    def forward(number: int) -> None:
        try:
            os.kill(child, number)
        except ProcessLookupError:
            pass

    return shell_status(wait_for(child, forward))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _options_file(options: "Sequence[str]") -> int:
    if any("\0" in option for option in options):
        raise SandboxError("A variable or path of the container has a NUL character, which none can hold.")
    if any("\0" in option for option in options):
        raise SandboxError("A variable or path of the container has a NUL character, which none can hold.")
    # Neither variables nor paths belong in an argv, which everybody on the node can read.
    given = os.memfd_create("options")
    with os.fdopen(os.dup(given), "wb") as file:
        file.write(b"".join(os.fsencode(option) + b"\0" for option in options))
    os.lseek(given, 0, os.SEEK_SET)
    return given


class _Said:
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
        """Tell whether the command was started and has ended; to be asked when bwrap has."""
        while self._ready(0) and self._read():
            pass
        return b"exit-code" in self._text

    def _ready(self, seconds: float) -> bool:
        return bool(select.select([self._reader], [], [], max(0, seconds))[0])

    def _read(self) -> bool:
        piece = os.read(self._reader, 4096)
        self._text += piece
        return bool(piece)
