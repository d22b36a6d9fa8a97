"""Probes of directories: writable, with space, and shared between nodes or this machine's alone."""

import os
import tempfile
from pathlib import Path

from .examine import Finding, Subject
from .machine import Machine

HOME = Subject(name="home", group="Directories")
RUNS = Subject(name="run folders", group="Directories")
SCRATCH = Subject(name="scratch", group="Directories")
LOCAL = Subject(name="temporary files", group="Directories")

# Where `ScratchFolder` is, whatever TMPDIR says.
_TEMPORARY = Path("/tmp")  # noqa: S108 - looked at
_LITTLE_BYTES = 1 << 30
_NOTHING_BYTES = 16 << 20
_SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "wekafs", "panfs", "afs", "cifs", "smb3",
     "pvfs2", "orangefs", "glusterfs", "fuse.glusterfs", "9p", "virtiofs", "dvs", "fuse.sshfs")
)  # fmt: skip
# Of a container's own root, which ends with it.
_PASSING = frozenset(("overlay", "tmpfs", "ramfs", "fuse.fuse-overlayfs"))
_ESCAPED = (("\\040", " "), ("\\011", "\t"), ("\\134", "\\"))


def home(machine: Machine) -> Finding:
    """Look at the home directory, where EDFs and settings are."""
    if not machine.home:
        return HOME.missing(f"User {machine.user} has no home directory.", "export HOME=DIRECTORY")
    found = _examined(machine, HOME, Path(machine.home), "export HOME=DIRECTORY that you may write to")
    if found.status == "ok" and machine.in_container and file_system(machine, Path(machine.home)) in _PASSING:
        return HOME.warning(
            f"{machine.home} is the container's own: what is written there is gone when the job ends.",
            'Save where the lab opens, or add to the EDF: mounts = ["${HOME}/work:/work"]',
        )
    return found


def runs(machine: Machine) -> Finding:
    """Look at the directory of all run folders; in a container, which has the job's alone, at that one."""
    own = machine.environment.get("GIPFEL_RUN", "")
    if machine.in_container:
        return _examined(machine, RUNS, Path(own), "Stop this server and start it again.")
    given = machine.environment.get("GIPFEL_RUNS", "")
    path = Path(given or Path(machine.home or "/", ".gipfel", "runs"))
    if given.startswith("~"):
        path = Path(machine.home or "/", given.lstrip("~").lstrip("/"))
    return _examined(machine, RUNS, path, "export GIPFEL_RUNS=DIRECTORY that you may write to")


def scratch(machine: Machine) -> Finding:
    """Look at the site's fast file system for large files, by the variable that sites set."""
    given = machine.environment.get("SCRATCH", "")
    if not given:
        return SCRATCH.not_applicable("$SCRATCH is not set; sites with a fast file system set it.")
    found = _examined(machine, SCRATCH, Path(given), "Ask for a directory of yours there, or unset SCRATCH")
    return found.model_copy(update={"status": "warning"}) if found.status == "missing" else found


def local(machine: Machine) -> Finding:
    """Look at /tmp, where sockets and containers' own directories are."""
    found = _examined(machine, LOCAL, _TEMPORARY, "sudo chmod 1777 /tmp")
    if found.status == "ok" and is_shared(file_system(machine, _TEMPORARY)):
        return LOCAL.warning(f"{found.what} Sockets need a local one.", "sudo mount -t tmpfs tmpfs /tmp")
    return found


def _examined(machine: Machine, subject: Subject, path: Path, fix: str) -> Finding:
    there = machine.path(path)
    what = str(path)
    while not there.exists() and there != machine.root:
        # It is made when it is first needed.
        there, path = there.parent, path.parent
    kind = file_system(machine, path)
    shared = "shared" if is_shared(kind) else "local"
    place = f"{shared} ({kind})" if kind else "on a file system that is not known"
    free = _free(there)
    if free < _NOTHING_BYTES:
        return subject.missing(f"{what}: no space is left, {place}.", f"du -xh -d 2 {path} | sort -h")
    try:
        # Permissions alone say nothing of quotas and of file systems that became read-only.
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return subject.missing(f"{what} can't be written to: {error.strerror}, {place}.", fix)
    text = f"{what}: writable, {_gib(free)} free, {place}."
    if free < _LITTLE_BYTES:
        return subject.warning(text, f"du -xh -d 2 {path} | sort -h")
    return subject.ok(text)


def _free(path: Path) -> int:
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def _gib(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def is_shared(kind: str) -> bool:
    """Tell whether a file system is one that several nodes see."""
    return kind in _SHARED


def file_system(machine: Machine, path: Path) -> str:
    """Return the type of the file system of a path, empty where it is not known. Source: proc_mounts(5)."""
    best, kind = "", ""
    for line in machine.read("/proc/self/mounts").splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        target = fields[1]
        for written, meant in _ESCAPED:
            target = target.replace(written, meant)
        # The last of several mounts on one place is the one that is seen; an automounter's is below its own.
        if path.is_relative_to(target) and len(target) >= len(best):
            best, kind = target, fields[2]
    return kind
