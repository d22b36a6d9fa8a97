"""Probes of containers: engines, user namespaces, FUSE, subordinate IDs, and the runtime.

They run outside containers only; see `gipfel_extension.doctor.probes`.
"""

import os
from collections.abc import Callable

from gipfel_cluster.broker.context import find_runtime
from gipfel_cluster.engines.bubblewrap import NAMESPACES_REFUSED
from gipfel_cluster.model import GipfelError

from .examine import Finding, ProbeTopic
from .machine import Machine

NAMESPACES = ProbeTopic(name="user namespaces", group="Containers")
FUSE = ProbeTopic(name="FUSE", group="Containers")
SUBORDINATE = ProbeTopic(name="subordinate ids", group="Containers")
RUNTIME = ProbeTopic(name="runtime", group="Containers")

_DEFAULT_ENGINE = "bubblewrap"
_PROBE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
_INSTALL = {
    "bubblewrap": "sudo apt install bubblewrap squashfuse",
    "podman": "sudo apt install podman uidmap squashfuse catatonit",
    "apptainer": "Install the package apptainer, from its site or your distribution's backports",
    "ce": "Only where the Container Engine of CSCS is installed",
    "pyxis": "Only where Pyxis is a plugin of Slurm",
}
#: Kernel settings, each with the value that disables user namespaces, and the setting that enables them.
_SYSCTLS = (
    ("/proc/sys/user/max_user_namespaces", 0, "user.max_user_namespaces=65536"),
    ("/proc/sys/kernel/unprivileged_userns_clone", 0, "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 1,
     "kernel.apparmor_restrict_unprivileged_userns=0"),
)  # fmt: skip


def engine(name: str) -> tuple[ProbeTopic, Callable[[Machine], Finding]]:
    """Return topic and probe of an engine; only the engine in ``GIPFEL_ENGINE`` is required."""
    topic = ProbeTopic(name=f"engine {name}", group="Containers")

    def check(machine: Machine) -> Finding:
        chosen = machine.environment.get("GIPFEL_ENGINE", "")
        problem = machine.engines[name]()
        if problem is None:
            return topic.ok("Runs containers here.")
        fix = _INSTALL.get(name, "Install the programs that it needs.")
        # The probe of user namespaces prints the fix.
        fix = fix if NAMESPACES_REFUSED not in problem else "See user namespaces below."
        if chosen == name:
            return topic.missing(f"{problem} It is selected by GIPFEL_ENGINE.", fix)
        if not chosen and name == _DEFAULT_ENGINE:
            return topic.warning(f"{problem} EDFs with an image can't be started.", fix)
        return topic.not_applicable(problem, fix)

    return topic, check


def namespaces(machine: Machine) -> Finding:
    """Try to create the namespaces that a container without root needs."""
    answer = machine.run(_PROBE)
    if answer.ok:
        return NAMESPACES.ok("This user can create them.")
    lines = [line for path, disabled_value, line in _SYSCTLS if machine.number(path) == disabled_value]
    fix = "; ".join(f"sudo sysctl -w {line}" for line in lines)
    quoted = " ".join(f"'{line}'" for line in lines)
    persistent = (
        f"   (permanently: printf '%s\\n' {quoted} | sudo tee /etc/sysctl.d/90-gipfel.conf)" if lines else ""
    )
    return NAMESPACES.warning(
        f"Containers without root can't be created: {answer.error}.",
        fix + persistent or "Inside another container: podman run --security-opt seccomp=unconfined …",
    )


def fuse(machine: Machine) -> Finding:
    """Check that .sqsh images can be mounted."""
    device = machine.path("/dev/fuse")
    if not device.exists():
        return FUSE.warning("There is no /dev/fuse, so .sqsh images can't be mounted.", "sudo modprobe fuse")
    if not os.access(device, os.R_OK | os.W_OK):
        return FUSE.warning(
            "This user has no access to /dev/fuse, so .sqsh images can't be mounted.",
            "sudo chmod 666 /dev/fuse",
        )
    if machine.which("squashfuse") is None:
        return FUSE.warning(
            "squashfuse is not installed, so .sqsh images can't be mounted.", "sudo apt install squashfuse"
        )
    return FUSE.ok(".sqsh images can be mounted.")


def subordinate(machine: Machine) -> Finding:
    """Check that this user has subordinate UIDs and GIDs, which podman needs."""
    if machine.uid == 0:
        return SUBORDINATE.not_applicable("root needs no subordinate IDs.")
    owners = {machine.user, str(machine.uid)}
    without = [path for path in ("/etc/subuid", "/etc/subgid") if not _has_range(machine.read(path), owners)]
    report: Callable[[str, str], Finding] = SUBORDINATE.not_applicable
    if machine.environment.get("GIPFEL_ENGINE") == "podman":
        report = SUBORDINATE.missing
    elif machine.which("podman"):
        report = SUBORDINATE.warning
    if without:
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        return report(
            f"{machine.user} has no line in {' and '.join(without)}, which the engine podman needs.",
            f"sudo usermod {ranges} {machine.user}  # each user needs a different range",
        )
    if machine.which("newuidmap") is None:
        return report("newuidmap is not installed, which the engine podman needs.", "sudo apt install uidmap")
    return SUBORDINATE.ok("They are in /etc/subuid and /etc/subgid.")


def _has_range(text: str, owners: set[str]) -> bool:
    return any(line.split(":")[0].strip() in owners for line in text.splitlines())


def runtime(machine: Machine) -> Finding:
    """Check that there is a runtime to mount into images."""
    chosen = machine.environment.get("GIPFEL_RUNTIME", "")
    try:
        found = find_runtime("", {"HOME": machine.home, **machine.environment})
    except GipfelError as error:
        report: Callable[[str, str], Finding] = RUNTIME.missing if chosen else RUNTIME.warning
        return report(error.problem, error.fix)
    if found is None:
        return RUNTIME.warning(
            "There is no runtime, so images without Jupyter can't serve notebooks.",
            "gipfel runtime build ~/.gipfel/runtime",
        )
    return RUNTIME.ok(f"{found.root}, gipfel {found.version}.")
