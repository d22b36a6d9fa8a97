"""SquashFS files mounted by a plain user, inside a user namespace."""

import os
import select
import time

from .namespaces import SandboxError
from .supervise import DEFAULTED, asked_to_end

_SECONDS = 30.0
_MILLISECONDS = 20


def mount_squashfs(program: str, image: str, target: str, *, others: bool = False) -> int:
    """Mount an image at an empty folder and wait for it; see `SquashfsServer`.

    Returns
    -------
    int
        The process that serves it.

    Raises
    ------
    SandboxError
        It can't be mounted, not within 30 s, or we are asked to end meanwhile.
    """
    server = SquashfsServer(program, image, target, others=others)
    server.wait()
    return server.process


class SquashfsServer:
    """A process that mounts an image at an empty folder, its files being root's of this namespace.

    It is started at once, so that other things can be done until `wait`; it ends with this PID namespace.

    Parameters
    ----------
    others
        Let users of namespaces below this one in.
    """

    def __init__(self, program: str, image: str, target: str, *, others: bool = False) -> None:
        self._image = image
        self._target = target
        self._before = os.stat(target).st_dev
        # The kernel tells of every new mount here.
        self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._words = os.memfd_create("squashfuse")
        options = "uid=0,gid=0,allow_other" if others else "uid=0,gid=0"
        # Whoever lets others in ends it by SIGTERM.
        later = () if others else _LATER
        self.process = _serve([program, "-f", "-o", options, image, target], self._words, later)

    def wait(self) -> None:
        """Wait until the image is there.

        Raises
        ------
        SandboxError
            It can't be mounted, not within 30 s, or we are asked to end meanwhile.
        """
        end = time.monotonic() + _SECONDS
        poll = select.poll()
        poll.register(self._mounts, select.POLLPRI)
        while os.stat(self._target).st_dev == self._before:
            ended, _status = os.waitpid(self.process, os.WNOHANG)
            if ended:
                said = os.pread(self._words, 500, 0).decode(errors="replace").split("\n")[0].strip()
                raise SandboxError(
                    f"The image {self._image} can't be mounted: {said or 'squashfuse gave no reason'}."
                )
            if time.monotonic() > end:
                raise SandboxError(f"The image {self._image} could not be mounted within {_SECONDS:.0f} s.")
            if asked_to_end():
                raise SandboxError("Asked to end before the container was there.")
            poll.poll(_MILLISECONDS)
        os.close(self._mounts)
        os.close(self._words)


_LATER = (15, 2, 1)  # SIGTERM, SIGINT, SIGHUP


def _serve(argv: list[str], words: int, later: tuple[int, ...]) -> int:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        return os.posix_spawn(
            argv[0],
            argv,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, words, 1),
                (os.POSIX_SPAWN_DUP2, words, 2),
            ],
            # A Ctrl-C at the terminal is for the command, not for its file system.
            setpgroup=0,
            # Slurm asks every process of a job to end: the file system goes last, with this namespace.
            setsigmask=later,
            setsigdef=DEFAULTED,
        )
    finally:
        os.close(nothing)
