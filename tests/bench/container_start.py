"""Time from the exec of the rendered argv to the first instruction, beside a command written by hand.

Prints a row for the host and one for bubblewrap as JSON. By hand is what a person would type for the same
container: for the host the command after ``cd``, for bubblewrap ``unshare``, ``mount``, ``squashfuse``, the
overlay and ``bwrap`` one after the other in a shell. Rendering is apart in each row, in seconds.
"""

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from parts.containers import COMMAND, VARIABLES, make_root, medians, pack, rendered

BOUND = 1.1
SLOWEST_RENDERING = 0.5  # seconds
_BY_HAND = """set -e
mount --make-rslave /
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t tmpfs -o nosuid,nodev,mode=0700 tmpfs {folder}
cd {folder}
mkdir lower upper work merged
squashfuse -o uid=0,gid=0 {image} lower
mkdir -p upper/etc upper/dev upper/proc upper/sys upper/tmp upper/root
cp /etc/resolv.conf /etc/hosts upper/etc/
grep -v ^root: lower/etc/passwd > upper/etc/passwd || true
echo root:x:0:0::/root:/bin/sh >> upper/etc/passwd
echo root:x:0: > upper/etc/group
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr overlay merged
cd /
exec bwrap --unshare-user --uid {user} --gid {group} --bind {folder}/merged / --dev-bind /dev /dev \
  --bind /proc /proc --ro-bind /sys /sys --perms 1777 --tmpfs /tmp --chdir / --clearenv {variables} \
  -- {command}
"""


def main(rounds: int) -> int:
    """Measure; 1 where a bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        make_root(folder / "root")
        rows = [_host(folder, rounds), _bubblewrap(folder, rounds)]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _host(folder: Path, rounds: int) -> dict[str, object]:
    ours, rendering = rendered("", folder, sys.executable)
    by_hand = ("/bin/sh", "-c", f"cd / && exec {shlex.join(COMMAND)}")
    return _row(
        "start-host", *medians((ours.argv, ours.environment), (by_hand, VARIABLES), rounds), rendering
    )


def _bubblewrap(folder: Path, rounds: int) -> dict[str, object]:
    image = pack(folder / "root", folder / "image.sqsh")
    for part in ("scratch", "hand"):
        (folder / part).mkdir()
    ours, rendering = rendered(image, folder / "scratch", sys.executable)
    variables = " ".join(f"--setenv {key} {shlex.quote(value)}" for key, value in VARIABLES.items())
    script = _BY_HAND.format(
        folder=folder / "hand",
        image=image,
        user=os.geteuid(),
        group=os.getegid(),
        variables=variables,
        command=shlex.join(COMMAND),
    )
    unshare = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child")
    by_hand = (*unshare, "/bin/sh", "-c", script)
    measured = medians((ours.argv, ours.environment), (by_hand, VARIABLES), rounds)
    return _row("start-bubblewrap", *measured, rendering)


def _row(name: str, ours: float, peer: float, rendering: float) -> dict[str, object]:
    ratio = ours / peer
    holds = ratio <= BOUND and rendering < SLOWEST_RENDERING
    values = {"name": name, "ours": ours, "peer": peer, "unit": "s", "ratio": ratio, "bound": BOUND}
    return {**values, "holds": holds, "rendering": rendering}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
