"""Probes of directories: whether they are writable, have free space, and are shared between nodes."""

import os
import tempfile
from pathlib import Path

from .examine import Finding, ProbeTopic
from .machine import Machine

HOME = ProbeTopic(name="home", group="Directories")
RUNS = ProbeTopic(name="run folders", group="Directories")
SCRATCH = ProbeTopic(name="scratch", group="Directories")
LOCAL = ProbeTopic(name="temporary files", group="Directories")

# Gipfel's temporary directories are here even if TMPDIR is set.
_TEMPORARY = Path("/tmp")  # noqa: S108 - looked at
_LOW_BYTES = 1 << 30
_FULL_BYTES = 16 << 20
_SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "wekafs", "panfs", "afs", "cifs", "smb3",
     "pvfs2", "orangefs", "glusterfs", "fuse.glusterfs", "9p", "virtiofs", "dvs", "fuse.sshfs")
)  # fmt: skip
# File systems of a container's root, which are deleted with the container.
_EPHEMERAL = frozenset(("overlay", "tmpfs", "ramfs", "fuse.fuse-overlayfs"))
_ESCAPED = (("\\040", " "), ("\\011", "\t"), ("\\134", "\\"))


def home(machine: Machine) -> Finding:
    """Check the home directory, which contains EDFs and settings."""
    if not machine.home:
        return HOME.missing(f"User {machine.user} has no home directory.", "export HOME=DIRECTORY")
    found = _check_directory(machine, HOME, Path(machine.home), "export HOME=DIRECTORY that you may write to")
    kind = file_system(machine, Path(machine.home))
    if found.status == "ok" and machine.in_container and kind in _EPHEMERAL:
        return HOME.warning(
            f"{machine.home} is inside the container: its files are deleted when the job ends.",
            'Save files where JupyterLab opens, or add to the EDF: mounts = ["${HOME}/work:/work"]',
        )
    return found


def runs(machine: Machine) -> Finding:
    """Check the directory of the run folders; in a container, only the job's run folder is mounted."""
    own = machine.environment.get("GIPFEL_RUN", "")
    if machine.in_container:
        return _check_directory(machine, RUNS, Path(own), "Stop this server and start it again.")
    given = machine.environment.get("GIPFEL_RUNS", "")
    path = Path(given or Path(machine.home or "/", ".gipfel", "runs"))
    if given.startswith("~"):
        path = Path(machine.home or "/", given.lstrip("~").lstrip("/"))
    return _check_directory(machine, RUNS, path, "export GIPFEL_RUNS=DIRECTORY that you may write to")


def scratch(machine: Machine) -> Finding:
    """Check ``$SCRATCH``, which sites set to their fast file system for large files."""
    given = machine.environment.get("SCRATCH", "")
    if not given:
        return SCRATCH.not_applicable("$SCRATCH is not set; sites with a fast file system set it.")
    found = _check_directory(machine, SCRATCH, Path(given), "Ask for a directory there, or unset SCRATCH")
    return found.model_copy(update={"status": "warning"}) if found.status == "missing" else found


def local(machine: Machine) -> Finding:
    """Check /tmp, which contains sockets and the temporary directories of containers."""
    found = _check_directory(machine, LOCAL, _TEMPORARY, "sudo chmod 1777 /tmp")
    if found.status == "ok" and is_shared(file_system(machine, _TEMPORARY)):
        return LOCAL.warning(
            f"{found.message} Sockets need a local file system.", "sudo mount -t tmpfs tmpfs /tmp"
        )
    return found


def _check_directory(machine: Machine, topic: ProbeTopic, path: Path, fix: str) -> Finding:
    there = machine.path(path)
    name = str(path)
    while not there.exists() and there != machine.root:
        # The directory is created at its first use.
        there, path = there.parent, path.parent
    kind = file_system(machine, path)
    shared = "shared" if is_shared(kind) else "local"
    location = f"{shared} ({kind})" if kind else "on an unknown file system"
    free = _free(there)
    if free < _FULL_BYTES:
        return topic.missing(f"{name}: no space left, {location}.", f"du -xh -d 2 {path} | sort -h")
    try:
        # Permissions do not show an exceeded quota or a read-only file system.
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return topic.missing(f"{name} can't be written to: {error.strerror}, {location}.", fix)
    text = f"{name}: writable, {_gib(free)} free, {location}."
    if free < _LOW_BYTES:
        return topic.warning(text, f"du -xh -d 2 {path} | sort -h")
    return topic.ok(text)


def _free(path: Path) -> int:
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def _gib(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def is_shared(kind: str) -> bool:
    """Return whether a type of file system is shared between nodes."""
    return kind in _SHARED


def file_system(machine: Machine, path: Path) -> str:
    """Return the type of a path's file system, empty if it is unknown. Source: proc_mounts(5)."""
    best, kind = "", ""
    for line in machine.read("/proc/self/mounts").splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        target = fields[1]
        for escape, character in _ESCAPED:
            target = target.replace(escape, character)
        # Of several mounts on one path, the last one is visible.
        if path.is_relative_to(target) and len(target) >= len(best):
            best, kind = target, fields[2]
    return kind
