"""SquashFS files mounted by a plain user, inside a user namespace."""

import posix
import select
import time

from ...namespaces import SandboxError
from .supervise import DEFAULTED, pending_end_signal

_SECONDS = 30.0
_MILLISECONDS = 20
#: An image never changes: the kernel may keep its names, also of what is not there, and its pages.
_KEPT = 86400  # seconds
_OPTIONS = f"uid=0,gid=0,kernel_cache,entry_timeout={_KEPT},attr_timeout={_KEPT},negative_timeout={_KEPT}"


def mount_squashfs(program: str, image: str, target: str, *, others: bool = False) -> int:
    """Mount an image at an empty directory and wait for it; see `SquashfsServer`.

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
    """A process that mounts an image at an empty directory, its files being root's of this namespace.

    It is started at once, so that other things can be done until `wait`; it ends with this PID namespace.

    Parameters
    ----------
    others
        Let users of namespaces below this one in.
    """

    def __init__(self, program: str, image: str, target: str, *, others: bool = False) -> None:
        self._image = image
        self._target = target
        self._before = posix.stat(target).st_dev
        # The kernel reports every new mount here.
        self._mounts = posix.open("/proc/self/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
        self._words = posix.memfd_create("squashfuse")
        options = f"{_OPTIONS},allow_other" if others else _OPTIONS
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
        while posix.stat(self._target).st_dev == self._before:
            ended, _status = posix.waitpid(self.process, posix.WNOHANG)
            if ended:
                said = posix.pread(self._words, 500, 0).decode(errors="replace").split("\n")[0].strip()
                raise SandboxError(
                    f"The image {self._image} can't be mounted: {said or 'squashfuse gave no reason'}."
                )
            if time.monotonic() > end:
                raise SandboxError(f"The image {self._image} could not be mounted within {_SECONDS:.0f} s.")
            if pending_end_signal():
                raise SandboxError("Asked to end before the container was there.")
            poll.poll(_MILLISECONDS)
        posix.close(self._mounts)
        posix.close(self._words)


_LATER = (15, 2, 1)  # SIGTERM, SIGINT, SIGHUP


def _serve(argv: list[str], words: int, later: tuple[int, ...]) -> int:
    nothing = posix.open("/dev/null", posix.O_RDWR)
    try:
        return posix.posix_spawn(
            argv[0],
            argv,
            posix.environ,
            file_actions=[
                (posix.POSIX_SPAWN_DUP2, nothing, 0),
                (posix.POSIX_SPAWN_DUP2, words, 1),
                (posix.POSIX_SPAWN_DUP2, words, 2),
            ],
            # A Ctrl-C at the terminal is for the command, not for its file system.
            setpgroup=0,
            # Slurm asks every process of a job to end: the file system goes last, with this namespace.
            setsigmask=later,
            setsigdef=DEFAULTED,
        )
    finally:
        posix.close(nothing)
