"""A name that no other recorder of this node uses in this run folder."""

import errno
import fcntl
import os
from pathlib import Path

from ..events import file_name

_MOST = 100


class OwnName:
    """Held as long as this process lives, by a lock that ends with it.

    Parameters
    ----------
    wanted
        The name; where another recorder has it, ``<name>-2`` and so on is taken.
    """

    def __init__(self, telemetry: Path, node: str, wanted: str) -> None:
        self.wanted = self.name = wanted
        self._handle: int | None = None
        for number in range(1, _MOST):
            name = wanted if number == 1 else f"{wanted}-{number}"
            if self._locked(telemetry / f".{file_name(node)}-{file_name(name)}.lock"):
                self.name = name
                return

    @property
    def taken(self) -> bool:
        """Whether another recorder has the name that was wanted."""
        return self.name != self.wanted

    def _locked(self, path: Path) -> bool:
        """Whether the name is ours; also where locks, or files, can't be made: then nobody can tell."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
        self._handle = handle
        return True
