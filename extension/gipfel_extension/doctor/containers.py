"""Probes of containers and versions: engines, user namespaces, FUSE, the runtime, and Python packages."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable

from packaging.requirements import InvalidRequirement, Requirement

from gipfel_cluster.broker.context import find_runtime
from gipfel_cluster.engines.bubblewrap import NAMESPACES_REFUSED
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime.distributions import installed_version

from .examine import Finding, Machine, missing, not_applicable, ok, warning

#: Minimum kernel version for overlay mounts in user namespaces.
_KERNEL = (5, 11)
_NAMED = ("jupyterlab", "jupyterhub", "ipykernel", "papermill", "numpy", "pyarrow")
_PROGRAMS = (
    ("bwrap", "--version"),
    ("podman", "--version"),
    ("apptainer", "--version"),
    ("squashfuse", "--help"),
    ("unsquashfs", "-version"),
    ("node", "--version"),
)
_NUMBER = re.compile(r"\d+(?:\.\d+)+")

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
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=65536"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
     "kernel.apparmor_restrict_unprivileged_userns=0"),
)  # fmt: skip


def system(machine: Machine) -> Finding:
    """Report the system's version, and check that its kernel is new enough for containers without root."""
    release = machine.read("/proc/sys/kernel/osrelease").strip() or platform.release()
    names = dict(line.split("=", 1) for line in machine.read("/etc/os-release").splitlines() if "=" in line)
    distribution = names.get("PRETTY_NAME", "").strip('"') or "Linux"
    libc = " ".join(platform.libc_ver())
    python = f"Python {platform.python_version()}"
    text = f"{distribution}, kernel {release}, {platform.machine()}, {libc}, {python}."
    numbers = tuple(int(each) for each in re.findall(r"\d+", release)[:2])
    if numbers and numbers < _KERNEL and not machine.in_container:
        return warning(
            f"{text} Containers without root need Linux 5.11 or newer.",
            "Boot a newer kernel, or use the engine podman as root.",
        )
    return ok(text)


def packages(machine: Machine) -> Finding:  # noqa: ARG001 - those of this interpreter
    """Compare the installed packages with Gipfel's requirements."""
    try:
        requirements = [Requirement(each) for each in importlib.metadata.requires("gipfel") or ()]
    except (importlib.metadata.PackageNotFoundError, InvalidRequirement):
        return missing("gipfel is not installed in this environment.", "pip install gipfel")
    extras = tuple(each for each in ("lab", "hub") if _has_extra(requirements, each))
    unsatisfied = [
        f"{each.name} {found or 'is missing'}"
        for each in requirements
        if _applies(each, ("", *extras))
        and not each.specifier.contains(found := installed_version(each.name), prereleases=True)
    ]
    if unsatisfied:
        extra = f"[{','.join(extras)}]" if extras else ""
        return missing(
            f"gipfel {installed_version('gipfel')} requires other versions of: {', '.join(unsatisfied)}.",
            f"pip install --upgrade 'gipfel{extra}'",
        )
    found = ", ".join(f"{name} {installed_version(name)}" for name in _NAMED if installed_version(name))
    return ok(f"gipfel {installed_version('gipfel')}, {found}.")


def _has_extra(requirements: list[Requirement], extra: str) -> bool:
    """Return whether an extra is installed, judged by its first package."""
    own = [each for each in requirements if _applies(each, (extra,)) and not _applies(each, ("",))]
    return bool(own) and bool(installed_version(own[0].name))


def _applies(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def training(machine: Machine) -> Finding:
    """Check for torch, which launches without an EDF use from this environment."""
    version = installed_version("torch")
    if not version and machine.in_container:
        return not_applicable("torch is not in the runtime's Python; launches and kernels use the image's.")
    if not version:
        return not_applicable(
            "torch is not installed here; a launch in an EDF uses the image's.", "pip install 'gipfel[train]'"
        )
    return ok(f"torch {version}.")


def programs(machine: Machine) -> Finding:
    """Report the versions of the installed container programs."""
    found = []
    for program, option in _PROGRAMS:
        path = machine.which(program)
        if path is None:
            continue
        answer = machine.run((path, option))
        number = _NUMBER.search(f"{answer.output}\n{answer.errors}")
        found.append(f"{program} {number[0] if number else 'of an unknown version'}")
    if not found and machine.in_container:
        return not_applicable("The container programs are on the job's node.")
    if not found:
        return not_applicable("No container program is installed here.")
    return ok(f"{', '.join(found)}.")


def engine(name: str, machine: Machine) -> Finding:
    """Check an engine; only the engine in ``GIPFEL_ENGINE`` is required."""
    chosen = machine.environment.get("GIPFEL_ENGINE", "")
    problem = machine.engines[name]()
    if problem is None:
        return ok("Runs containers here.")
    fix = _INSTALL.get(name, "Install the programs that it needs.")
    # The probe of user namespaces prints the fix.
    fix = fix if NAMESPACES_REFUSED not in problem else "See user namespaces below."
    if chosen == name:
        return missing(f"{problem} It is selected by GIPFEL_ENGINE.", fix)
    if not chosen and name == _DEFAULT_ENGINE:
        return warning(f"{problem} EDFs with an image can't be started.", fix)
    return not_applicable(problem, fix)


def namespaces(machine: Machine) -> Finding:
    """Try to create the namespaces that a container without root needs."""
    answer = machine.run(_PROBE)
    if answer.ok:
        return ok("This user can create them.")
    lines = [line for path, disabled_value, line in _SYSCTLS if machine.read(path).strip() == disabled_value]
    fix = "; ".join(f"sudo sysctl -w {line}" for line in lines)
    quoted = " ".join(f"'{line}'" for line in lines)
    persistent = (
        f"   (permanently: printf '%s\\n' {quoted} | sudo tee /etc/sysctl.d/90-gipfel.conf)" if lines else ""
    )
    return warning(
        f"Containers without root can't be created: {answer.error}.",
        fix + persistent or "Inside another container: podman run --security-opt seccomp=unconfined …",
    )


def fuse(machine: Machine) -> Finding:
    """Check that .sqsh images can be mounted."""
    device = machine.path("/dev/fuse")
    problems = (
        (not device.exists(), "There is no /dev/fuse", "sudo modprobe fuse"),
        (
            not os.access(device, os.R_OK | os.W_OK),
            "This user has no access to /dev/fuse",
            "sudo chmod 666 /dev/fuse",
        ),
        (
            machine.which("squashfuse") is None,
            "squashfuse is not installed",
            "sudo apt install squashfuse",
        ),
    )
    for applies, problem, fix in problems:
        if applies:
            return warning(f"{problem}, so .sqsh images can't be mounted.", fix)
    return ok(".sqsh images can be mounted.")


def subordinate(machine: Machine) -> Finding:
    """Check that this user has subordinate UIDs and GIDs, which podman needs."""
    if machine.uid == 0:
        return not_applicable("root needs no subordinate IDs.")
    owners = {machine.user, str(machine.uid)}
    without = [path for path in ("/etc/subuid", "/etc/subgid") if not _has_range(machine.read(path), owners)]
    report: Callable[[str, str], Finding] = not_applicable
    if machine.environment.get("GIPFEL_ENGINE") == "podman":
        report = missing
    elif machine.which("podman"):
        report = warning
    if without:
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        return report(
            f"{machine.user} has no line in {' and '.join(without)}, which the engine podman needs.",
            f"sudo usermod {ranges} {machine.user}  # each user needs a different range",
        )
    if machine.which("newuidmap") is None:
        return report("newuidmap is not installed, which the engine podman needs.", "sudo apt install uidmap")
    return ok("They are in /etc/subuid and /etc/subgid.")


def _has_range(text: str, owners: set[str]) -> bool:
    return any(line.split(":")[0].strip() in owners for line in text.splitlines())


def runtime(machine: Machine) -> Finding:
    """Check that there is a runtime to mount into images."""
    chosen = machine.environment.get("GIPFEL_RUNTIME", "")
    try:
        found = find_runtime("", {"HOME": machine.home, **machine.environment})
    except GipfelError as error:
        return (missing if chosen else warning)(error.problem, error.fix)
    if found is None:
        return warning(
            "There is no runtime, so images without Jupyter can't serve notebooks.",
            "gipfel runtime build ~/.gipfel/runtime",
        )
    return ok(f"{found.root}, gipfel {found.version}.")
