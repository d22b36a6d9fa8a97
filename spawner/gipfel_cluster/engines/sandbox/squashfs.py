"""Mount SquashFS files as a plain user, inside a user namespace."""

import posix
import select
import time

from ...namespaces import SandboxError
from .supervise import RESET_SIGNALS, pending_end_signal

_MOUNT_SECONDS = 30.0
_POLL_MILLISECONDS = 20
#: An image never changes: the kernel may cache its names, missing names and pages.
_CACHE_SECONDS = 86400  # seconds
_OPTIONS = (
    f"uid=0,gid=0,kernel_cache,entry_timeout={_CACHE_SECONDS},attr_timeout={_CACHE_SECONDS}"
    f",negative_timeout={_CACHE_SECONDS}"
)


class SquashfsServer:
    """A process that mounts an image at an empty directory; its files belong to root of this namespace.

    The constructor starts it, so that other work can be done until `wait`. It ends with this PID namespace.

    Parameters
    ----------
    allow_other
        Allow access from user namespaces below this one.
    """

    def __init__(self, program: str, image: str, target: str, *, allow_other: bool = False) -> None:
        self._image = image
        self._target = target
        self._device_before = posix.stat(target).st_dev
        # The kernel reports new mounts on this file.
        self._mountinfo = posix.open("/proc/self/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
        self._log = posix.memfd_create("squashfuse")
        options = f"{_OPTIONS},allow_other" if allow_other else _OPTIONS
        # With allow_other the caller ends the process by SIGTERM.
        blocked = () if allow_other else _TERMINATION_SIGNALS
        self.process = _serve([program, "-f", "-o", options, image, target], self._log, blocked)

    def wait(self) -> None:
        """Wait until the image is mounted.

        Raises
        ------
        SandboxError
            It can't be mounted within 30 s, or this process gets a signal to end meanwhile.
        """
        end = time.monotonic() + _MOUNT_SECONDS
        poll = select.poll()
        poll.register(self._mountinfo, select.POLLPRI)
        while posix.stat(self._target).st_dev == self._device_before:
            ended, _status = posix.waitpid(self.process, posix.WNOHANG)
            if ended:
                message = posix.pread(self._log, 500, 0).decode(errors="replace").split("\n")[0].strip()
                raise SandboxError(
                    f"The image {self._image} can't be mounted: {message or 'squashfuse gave no reason'}."
                )
            if time.monotonic() > end:
                raise SandboxError(
                    f"The image {self._image} could not be mounted within {_MOUNT_SECONDS:.0f} s."
                )
            if pending_end_signal():
                raise SandboxError("The container was stopped before it had started.")
            poll.poll(_POLL_MILLISECONDS)
        posix.close(self._mountinfo)
        posix.close(self._log)


_TERMINATION_SIGNALS = (15, 2, 1)  # SIGTERM, SIGINT, SIGHUP


def _serve(argv: list[str], log: int, blocked: tuple[int, ...]) -> int:
    nothing = posix.open("/dev/null", posix.O_RDWR)
    try:
        return posix.posix_spawn(
            argv[0],
            argv,
            posix.environ,
            file_actions=[
                (posix.POSIX_SPAWN_DUP2, nothing, 0),
                (posix.POSIX_SPAWN_DUP2, log, 1),
                (posix.POSIX_SPAWN_DUP2, log, 2),
            ],
            # A Ctrl-C at the terminal must end the command, not its file system.
            setpgroup=0,
            # Slurm sends SIGTERM to all processes of a job: the file system must end with this namespace.
            setsigmask=blocked,
            setsigdef=RESET_SIGNALS,
        )
    finally:
        posix.close(nothing)
