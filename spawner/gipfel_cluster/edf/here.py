"""Whether what an EDF asks for is on this machine and readable by this user."""

import os
from pathlib import Path

from ..model import GipfelError
from .architecture import can_run, image_architecture
from .image import check_image
from .inside import is_inside
from .model import Diagnostic, Edf, Mount, Severity
from .reference import reference_problem

#: A part of a path that is known in a job only.
_LATER = "${SLURM_"


def check_here(edf: Edf, *, pulls: bool = True, machine: str = "") -> tuple[Diagnostic, ...]:
    """See that the image is there, whole and for this machine, and every mount's source readable.

    Parameters
    ----------
    pulls
        Whether the engine fetches images from a registry; where it doesn't, such an image is an error.
    machine
        What ``uname -m`` says; by default it is asked.
    """
    checks = _Checks(edf)
    checks.image(machine or os.uname().machine, pulls=pulls)
    checks.mounts()
    checks.workdir()
    return tuple(checks.found)


def unseen(edf: Edf) -> tuple[Diagnostic, ...]:
    """Warnings about what `check_here` could not see, so that nobody takes silence for a yes."""
    checks = _Checks(edf)
    path = edf.image_path
    if path is not None and not _problem(path) and image_architecture(path) is None:
        checks.add(
            "architecture-unknown",
            "image",
            f"no program could be read in the image {path}, so nobody knows whether it fits this machine.",
            "Install squashfs-tools, or see 'file' on a program in the image.",
            "warning",
        )
    return tuple(checks.found)


def check_mount(mount: Mount) -> None:
    """See on this machine, as this user, that the source of a mount is there and can be read.

    Raises
    ------
    GipfelError
        It is not, or is to be mounted as a SquashFS and is none, or names no file at all.
    """
    if mount.is_special:
        raise GipfelError(
            f"The mount {mount} has no source: only the engines ce and pyxis make it.",
            "Take it out, or choose one of these engines.",
        )
    if "sqsh" in mount.flags:
        try:
            check_image(Path(mount.source))
        except GipfelError as error:
            raise GipfelError(
                error.problem.replace("The image", "The mount's image", 1), error.fix
            ) from error
        return
    source = Path(mount.source)
    try:
        source.stat()
    except OSError as error:
        raise GipfelError(
            f"The mount's source {source} can't be mounted: {error.strerror}.",
            "Make it, or take the mount out.",
        ) from error
    if not os.access(source, os.X_OK if source.is_dir() else os.R_OK):
        raise GipfelError(
            f"The mount's source {source} can't be read by you.", "Ask its owner for read permission."
        )


def _problem(image: Path) -> GipfelError | None:
    try:
        check_image(image)
    except GipfelError as error:
        return error
    return None


class _Checks:
    def __init__(self, edf: Edf) -> None:
        self._edf = edf
        self.found: list[Diagnostic] = []

    def add(self, code: str, key: str, problem: str, fix: str, severity: Severity = "error") -> None:
        file = self._edf.path or self._edf.name
        self.found.append(
            Diagnostic(severity=severity, code=code, file=file, line=None, key=key, message=problem, fix=fix)
        )

    def image(self, machine: str, *, pulls: bool) -> None:
        path = self._edf.image_path
        if _LATER in self._edf.image:
            return
        if path is None:
            self._reference(pulls=pulls)
        elif error := _problem(path):
            self.add("image", "image", error.problem, error.fix)
        elif (found := image_architecture(path)) and not can_run(machine, found):
            self.add(
                "architecture",
                "image",
                f"The image {path} is for {found}, and this machine is {machine}: nothing in it starts.",
                f"Import the image for {machine}.",
            )

    def _reference(self, *, pulls: bool) -> None:
        image = self._edf.image
        if image and (problem := reference_problem(image)):
            self.add(
                "reference",
                "image",
                f"No registry has an image {image!r}: {problem}.",
                "Write [USER@][REGISTRY#]IMAGE[:TAG], or begin a file with '/' or './'.",
            )
        elif image:
            self.add(
                "image",
                "image",
                f"The image {image!r} is in a registry, not on this machine"
                + (": ce, pyxis, podman and apptainer pull it at start." if pulls else "."),
                "Import it into a .sqsh file and give that file's path"
                + (" to start without a download." if pulls else "."),
                "warning" if pulls else "error",
            )

    def mounts(self) -> None:
        for position, mount in enumerate(self._edf.mounts):
            if mount.is_special or _LATER in mount.source:
                continue
            try:
                check_mount(mount)
            except GipfelError as error:
                self.add("mount-source", f"mounts[{position}]", error.problem, error.fix)

    def workdir(self) -> None:
        path, workdir = self._edf.image_path, self._edf.workdir
        if path is None or not workdir or any(each.key == "image" for each in self.found):
            return
        if _LATER in str(path) or _LATER in workdir:
            return
        for mount in reversed(self._edf.mounts):
            inner = os.path.relpath(workdir, mount.destination)
            if inner.partition("/")[0] == "..":
                continue
            is_bound = not mount.is_special and "sqsh" not in mount.flags
            if is_bound and not os.path.lexists(Path(mount.source) / inner):
                self._warn_workdir(f"{mount.source} has no {inner}")
            return
        if workdir != "/" and is_inside(path, workdir.strip("/")) is False:
            self._warn_workdir("no mount leads there, and the image has no such folder")

    def _warn_workdir(self, why: str) -> None:
        self.add(
            "workdir",
            "workdir",
            f"{why}: a program can't start in {self._edf.workdir}.",
            "Mount it, make it, or choose another folder.",
            "warning",
        )
