"""Probes of versions: the system, Python's packages, and the programs that are called."""

import importlib.metadata
import platform
import re

from packaging.requirements import InvalidRequirement, Requirement

from .examine import Finding, Subject
from .machine import Machine

SYSTEM = Subject(name="system", group="Versions")
PACKAGES = Subject(name="packages", group="Versions")
TRAINING = Subject(name="torch", group="Versions")
PROGRAMS = Subject(name="programs", group="Versions")

#: Overlays in user namespaces need it.
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
    """Name the system and see that its kernel is new enough for containers without root."""
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
    """Compare what is installed with what Gipfel asks for."""
    try:
        wanted = [Requirement(each) for each in importlib.metadata.requires("gipfel") or ()]
    except (importlib.metadata.PackageNotFoundError, InvalidRequirement):
        return PACKAGES.missing("gipfel itself is not installed here.", "pip install gipfel")
    extras = tuple(each for each in ("lab", "hub") if _has_extra(wanted, each))
    lacking = [
        f"{each.name} {found or 'is missing'}"
        for each in wanted
        if _applies(each, ("", *extras))
        and not each.specifier.contains(found := version_of(each.name), prereleases=True)
    ]
    if lacking:
        extra = f"[{','.join(extras)}]" if extras else ""
        return PACKAGES.missing(
            f"Not what gipfel {version_of('gipfel')} asks for: {', '.join(lacking)}.",
            f"pip install --upgrade 'gipfel{extra}'",
        )
    found = ", ".join(f"{name} {version_of(name)}" for name in _NAMED if version_of(name))
    return PACKAGES.ok(f"gipfel {version_of('gipfel')}, {found}.")


def _has_extra(wanted: list[Requirement], extra: str) -> bool:
    """Return whether an extra was installed: its first package is here."""
    own = [each for each in wanted if _applies(each, (extra,)) and not _applies(each, ("",))]
    return bool(own) and bool(version_of(own[0].name))


def _applies(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def version_of(name: str) -> str:
    """Return the version of a package that is installed; empty where it is not."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def training(machine: Machine) -> Finding:
    """Look for torch, which launches without an EDF take from here."""
    version = version_of("torch")
    if not version and machine.in_container:
        return TRAINING.not_applicable("Not in Gipfel's own Python; launches and kernels use the image's.")
    if not version:
        return TRAINING.not_applicable(
            "Not installed here; a launch in an EDF uses its image's.", "pip install 'gipfel[train]'"
        )
    return TRAINING.ok(f"torch {version}.")


def programs(machine: Machine) -> Finding:
    """Name the versions of the programs that are here."""
    found = []
    for program, option in _PROGRAMS:
        path = machine.which(program)
        if path is None:
            continue
        answer = machine.run((path, option))
        number = _NUMBER.search(f"{answer.output}\n{answer.errors}")
        found.append(f"{program} {number[0] if number else 'of an unknown version'}")
    if not found and machine.in_container:
        return PROGRAMS.not_applicable("The job's node has those that containers need.")
    if not found:
        return PROGRAMS.not_applicable("None of those that containers need is here.")
    return PROGRAMS.ok(f"{', '.join(found)}.")
