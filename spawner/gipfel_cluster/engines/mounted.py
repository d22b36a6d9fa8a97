"""Mount SquashFS files and run podman with them: ``python -I -m gipfel_cluster.engines.mounted``.

What to mount is in ``$GIPFEL_MOUNTS``, the command is the arguments. The mounts are in namespaces of their
own, where a rootless podman works as it does below ``podman unshare``. Only the standard library is imported.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import namespaces
from .command import run_podman
from .namespaces import SandboxError
from .squashfs import mount_squashfs
from .subordinate import enter_with_subordinate_ids
from .supervise import hold_signals

#: The environment variable that carries the mounts.
VARIABLE = "GIPFEL_MOUNTS"
_FAILED = 125


@dataclass(frozen=True)
class SquashfsMount:
    """One file, the program that serves it, and an empty folder to be made for it."""

    program: str
    source: str
    target: str


def mounts_to_json(mounts: Sequence[SquashfsMount]) -> str:
    """Write mounts as one line."""
    return json.dumps([dataclasses.asdict(mount) for mount in mounts], separators=(",", ":"))


def main() -> int:
    """Mount and run; return the command's exit status, or 125 and say why on stderr."""
    mounts = [SquashfsMount(**each) for each in json.loads(os.environ.pop(VARIABLE, "[]"))]
    ids = os.geteuid(), os.getegid()
    servers: list[int] = []
    try:
        hold_signals()
        enter_with_subordinate_ids(processes=False)
        namespaces.mount("none", "/", flags=namespaces.RECURSIVE | namespaces.SLAVE)
        for mount in mounts:
            Path(mount.target).mkdir(mode=0o700, parents=True, exist_ok=True)
            servers.append(mount_squashfs(mount.program, mount.source, mount.target, others=True))
        environment = dict(os.environ)
        if ids[0]:
            environment["_CONTAINERS_USERNS_CONFIGURED"] = "done"
            environment["_CONTAINERS_ROOTLESS_UID"], environment["_CONTAINERS_ROOTLESS_GID"] = map(str, ids)
        return run_podman(sys.argv[1:], environment)
    except (SandboxError, OSError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return _FAILED
    finally:
        for server in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
