"""A SquashFS file mounted by a plain user, inside a user namespace."""

import os
import time
from pathlib import Path

from .namespaces import SandboxError
from .supervise import DEFAULTED, asked_to_end

_SECONDS = 30.0


def mount_squashfs(program: str, image: str, target: str, *, others: bool = False) -> int:
    """Mount an image at an empty folder, its files being root's of this namespace.

    The process that serves it ends with this PID namespace.

    Parameters
    ----------
    others
        Let users of namespaces below this one in.

    Returns
    -------
    int
        The process that serves it.

    Raises
    ------
    SandboxError
        It can't be mounted, not within 30 s, or we are asked to end meanwhile.
    """
    before = Path(target).stat().st_dev
    words = os.memfd_create("squashfuse")
    process = _serve(program, image, target, words, "uid=0,gid=0,allow_other" if others else "uid=0,gid=0")
    end = time.monotonic() + _SECONDS
    pause = 0.002
    while Path(target).stat().st_dev == before:
        ended, _status = os.waitpid(process, os.WNOHANG)
        if ended:
            said = os.pread(words, 500, 0).decode(errors="replace").split("\n")[0].strip()
            raise SandboxError(f"The image {image} can't be mounted: {said or 'squashfuse gave no reason'}.")
        if time.monotonic() > end:
            raise SandboxError(f"The image {image} could not be mounted within {_SECONDS:.0f} s.")
        if asked_to_end():
            raise SandboxError("Asked to end before the container was there.")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.close(words)
    return process


def _serve(program: str, image: str, target: str, words: int, options: str) -> int:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        return os.posix_spawn(
            program,
            [program, "-f", "-o", options, image, target],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, words, 1),
                (os.POSIX_SPAWN_DUP2, words, 2),
            ],
            # A Ctrl-C at the terminal is for the command, not for its file system.
            setpgroup=0,
            setsigmask=[],
            setsigdef=DEFAULTED,
        )
    finally:
        os.close(nothing)
