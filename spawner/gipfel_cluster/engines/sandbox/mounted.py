"""Mount SquashFS files and run podman with them: ``start.py mounted COMMAND…``.

What to mount is in ``$GIPFEL_MOUNTS``. The mounts are in namespaces of their own, where a rootless podman
works as it does below ``podman unshare``.
"""

import os
import sys

from . import namespaces
from .command import run_podman
from .namespaces import SandboxError
from .plan import read_json
from .squashfs import mount_squashfs
from .subordinate import enter_with_subordinate_ids
from .supervise import hold_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The environment variable that carries the mounts.
VARIABLE = "GIPFEL_MOUNTS"
_FAILED = 125
_SIGTERM = 15


def mounts_to_json(program: str, mounts: "Sequence[tuple[str, str]]") -> str:
    """Write as one line which files the program is to serve, each at an empty folder to be made for it."""
    import json

    return json.dumps([program, mounts], separators=(",", ":"))


def run() -> int:
    """Mount and run; return the command's exit status, or 125 and say why on stderr."""
    program, mounts = read_json(os.environ.pop(VARIABLE))
    ids = os.geteuid(), os.getegid()
    servers: list[int] = []
    try:
        hold_signals()
        enter_with_subordinate_ids(processes=False)
        namespaces.mount("none", "/", flags=namespaces.RECURSIVE | namespaces.SLAVE)
        for source, target in mounts:
            os.makedirs(target, mode=0o700, exist_ok=True)
            servers.append(mount_squashfs(program, source, target, others=True))
        environment = dict(os.environ)
        if ids[0]:
            environment["_CONTAINERS_USERNS_CONFIGURED"] = "done"
            environment["_CONTAINERS_ROOTLESS_UID"], environment["_CONTAINERS_ROOTLESS_GID"] = map(str, ids)
        return run_podman(sys.argv[2:], environment)
    except (SandboxError, OSError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return _FAILED
    finally:
        for server in servers:
            try:
                os.kill(server, _SIGTERM)
            except ProcessLookupError:
                pass
