"""Probes of versions: the system, Python packages, and container programs."""

import importlib.metadata
import platform
import re

from packaging.requirements import InvalidRequirement, Requirement

from .examine import Finding, ProbeTopic
from .machine import Machine

SYSTEM = ProbeTopic(name="system", group="Versions")
PACKAGES = ProbeTopic(name="packages", group="Versions")
TRAINING = ProbeTopic(name="torch", group="Versions")
PROGRAMS = ProbeTopic(name="programs", group="Versions")

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
        return SYSTEM.warning(
            f"{text} Containers without root need Linux 5.11 or newer.",
            "Boot a newer kernel, or use the engine podman as root.",
        )
    return SYSTEM.ok(text)


def packages(machine: Machine) -> Finding:  # noqa: ARG001 - those of this interpreter
    """Compare the installed packages with Gipfel's requirements."""
    try:
        requirements = [Requirement(each) for each in importlib.metadata.requires("gipfel") or ()]
    except (importlib.metadata.PackageNotFoundError, InvalidRequirement):
        return PACKAGES.missing("gipfel is not installed in this environment.", "pip install gipfel")
    extras = tuple(each for each in ("lab", "hub") if _has_extra(requirements, each))
    unsatisfied = [
        f"{each.name} {found or 'is missing'}"
        for each in requirements
        if _applies(each, ("", *extras))
        and not each.specifier.contains(found := version_of(each.name), prereleases=True)
    ]
    if unsatisfied:
        extra = f"[{','.join(extras)}]" if extras else ""
        return PACKAGES.missing(
            f"gipfel {version_of('gipfel')} requires other versions of: {', '.join(unsatisfied)}.",
            f"pip install --upgrade 'gipfel{extra}'",
        )
    found = ", ".join(f"{name} {version_of(name)}" for name in _NAMED if version_of(name))
    return PACKAGES.ok(f"gipfel {version_of('gipfel')}, {found}.")


def _has_extra(requirements: list[Requirement], extra: str) -> bool:
    """Return whether an extra is installed, judged by its first package."""
    own = [each for each in requirements if _applies(each, (extra,)) and not _applies(each, ("",))]
    return bool(own) and bool(version_of(own[0].name))


def _applies(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def version_of(name: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def training(machine: Machine) -> Finding:
    """Check for torch, which launches without an EDF use from this environment."""
    version = version_of("torch")
    if not version and machine.in_container:
        return TRAINING.not_applicable(
            "torch is not in the runtime's Python; launches and kernels use the image's."
        )
    if not version:
        return TRAINING.not_applicable(
            "torch is not installed here; a launch in an EDF uses the image's.", "pip install 'gipfel[train]'"
        )
    return TRAINING.ok(f"torch {version}.")


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
        return PROGRAMS.not_applicable("The container programs are on the job's node.")
    if not found:
        return PROGRAMS.not_applicable("No container program is installed here.")
    return PROGRAMS.ok(f"{', '.join(found)}.")
