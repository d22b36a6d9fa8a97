"""Probes of containers: engines, what the kernel and the account grant them, and the runtime."""

import os
from collections.abc import Callable

from gipfel_cluster.broker.context import find_runtime
from gipfel_cluster.model import GipfelError

from .examine import Finding, Subject
from .machine import Machine

NAMESPACES = Subject(name="user namespaces", group="Containers")
FUSE = Subject(name="FUSE", group="Containers")
SUBORDINATE = Subject(name="subordinate ids", group="Containers")
RUNTIME = Subject(name="runtime", group="Containers")

_INSIDE = "This is a container: its job's node runs further ones."
_DEFAULT_ENGINE = "bubblewrap"
_PROBE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
_INSTALL = {
    "bubblewrap": "sudo apt install bubblewrap squashfuse",
    "podman": "sudo apt install podman uidmap squashfuse catatonit",
    "apptainer": "Install the package apptainer, from its site or your distribution's backports",
    "ce": "Only where the Container Engine of CSCS is installed",
    "pyxis": "Only where Pyxis is a plugin of Slurm",
}
#: Each with the value that refuses namespaces, and the line that allows them.
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", 0, "user.max_user_namespaces=65536"),
    ("/proc/sys/kernel/unprivileged_userns_clone", 0, "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 1,
     "kernel.apparmor_restrict_unprivileged_userns=0"),
)  # fmt: skip


def engine(name: str) -> tuple[Subject, Callable[[Machine], Finding]]:
    """Return what looks whether an engine runs here; only the one that is chosen is needed."""
    subject = Subject(name=f"engine {name}", group="Containers")

    def look(machine: Machine) -> Finding:
        if machine.in_container:
            return subject.not_applicable(_INSIDE)
        chosen = machine.environment.get("GIPFEL_ENGINE", "")
        why = machine.engines[name]()
        if why is None:
            return subject.ok("Runs containers here.")
        fix = _INSTALL.get(name, "Install what its package needs.")
        # Words about the machine's refusal come with a probe of their own.
        fix = fix if "namespaces" not in why else "See user namespaces below."
        if chosen == name:
            return subject.missing(f"{why} GIPFEL_ENGINE chooses it.", fix)
        if not chosen and name == _DEFAULT_ENGINE:
            return subject.warning(f"{why} EDFs with an image can't be started.", fix)
        return subject.not_applicable(why, fix)

    return subject, look


def namespaces(machine: Machine) -> Finding:
    """Try the namespaces that a container without root needs."""
    if machine.in_container:
        return NAMESPACES.not_applicable(_INSIDE)
    answer = machine.run(_PROBE)
    if answer.ok:
        return NAMESPACES.ok("This user may make them.")
    lines = [line for path, refusing, line in _SWITCHES if machine.number(path) == refusing]
    fix = "; ".join(f"sudo sysctl -w {line}" for line in lines)
    keep = f"   (for good: echo '{lines[0]}' | sudo tee /etc/sysctl.d/90-gipfel.conf)" if lines else ""
    return NAMESPACES.warning(
        f"Containers without root can't be made: {answer.why}.",
        fix + keep or "Outside of another container: podman run --security-opt seccomp=unconfined …",
    )


def fuse(machine: Machine) -> Finding:
    """See whether .sqsh images can be mounted."""
    if machine.in_container:
        return FUSE.not_applicable(_INSIDE)
    device = machine.path("/dev/fuse")
    if not device.exists():
        return FUSE.warning("There is no /dev/fuse, so .sqsh images can't be mounted.", "sudo modprobe fuse")
    if not os.access(device, os.R_OK | os.W_OK):
        return FUSE.warning(
            "/dev/fuse may not be used by this user, so .sqsh images can't be mounted.",
            "sudo chmod 666 /dev/fuse",
        )
    if machine.which("squashfuse") is None:
        return FUSE.warning(
            "squashfuse is not installed, so .sqsh images can't be mounted.", "sudo apt install squashfuse"
        )
    return FUSE.ok(".sqsh images can be mounted.")


def subordinate(machine: Machine) -> Finding:
    """See whether this user has ids beside the own one, which podman needs."""
    if machine.in_container:
        return SUBORDINATE.not_applicable(_INSIDE)
    if machine.uid == 0:
        return SUBORDINATE.not_applicable("root needs none.")
    owners = {machine.user, str(machine.uid)}
    lacking = [path for path in ("/etc/subuid", "/etc/subgid") if not _listed(machine.read(path), owners)]
    refuse: Callable[[str, str], Finding] = SUBORDINATE.not_applicable
    if machine.environment.get("GIPFEL_ENGINE") == "podman":
        refuse = SUBORDINATE.missing
    elif machine.which("podman"):
        refuse = SUBORDINATE.warning
    if lacking:
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        return refuse(
            f"{machine.user} has no line in {' and '.join(lacking)}, which the engine podman needs.",
            f"sudo usermod {ranges} {machine.user}  # a range of its own for each user",
        )
    if machine.which("newuidmap") is None:
        return refuse("newuidmap is not installed, which the engine podman needs.", "sudo apt install uidmap")
    return SUBORDINATE.ok("In /etc/subuid and /etc/subgid.")


def _listed(text: str, owners: set[str]) -> bool:
    return any(line.split(":")[0].strip() in owners for line in text.splitlines())


def runtime(machine: Machine) -> Finding:
    """Look for the server that is mounted into images."""
    if machine.in_container:
        return RUNTIME.not_applicable(_INSIDE)
    chosen = machine.environment.get("GIPFEL_RUNTIME", "")
    try:
        found = find_runtime("", {"HOME": machine.home, **machine.environment})
    except GipfelError as error:
        refuse: Callable[[str, str], Finding] = RUNTIME.missing if chosen else RUNTIME.warning
        return refuse(error.problem, error.fix)
    if found is None:
        return RUNTIME.warning(
            "There is none: images that lack Jupyter can't serve notebooks.",
            "gipfel runtime build ~/.gipfel/runtime",
        )
    return RUNTIME.ok(f"{found.root}, gipfel {found.version}.")
