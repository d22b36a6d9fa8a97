"""Mistakes about the image."""

import re
from collections.abc import Iterator

from ..dialects import Dialect
from ..entry import Entry, Source
from ..expand import unbraced_variables
from ..model import Diagnostic
from ..placeholders import placeholder
from ..reference import reference_problem
from .rule import Rule, Subject
from .values import INVISIBLE

SUFFIXES = (".sqsh", ".squashfs", ".sqfs")
_SCHEME = re.compile(r"[a-z]+://")
#: What may stand before a name. Sources: Pyxis, args.c; raster hands the name on to podman.
_SCHEMES: dict[Dialect, frozenset[str]] = {
    "ce": frozenset(),
    "pyxis": frozenset({"docker://", "dockerd://"}),
    "sarus": frozenset({"docker://"}),
}


class NoImage(Rule):
    """An EDF that starts no container by itself."""

    code = "no-image"
    dialects = ("ce", "pyxis")
    severity = "note"
    reason = "no image is set"
    consequence = "nothing is entered unless --container-image gives one"
    fix = 'Add image = "…" to run in a container.'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        written = subject.document.scalars.get("image")
        below = "image" in subject.document.env or "image" in subject.document.annotations
        if subject.whole and not below and (written is None or not written.text):
            yield self.at(written or Entry("", (), subject.documents[-1].source or Source("", "")))


class ImageWithoutPath(Rule):
    """A file's name that doesn't begin as a path of an EDF does."""

    code = "image-path"
    reason = "{image!r} begins with neither '/' nor './'"
    consequence = "it is taken for the name of an image in a registry"
    fix = "Write {right} for a file."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.scalars.get("image")
        if entry and (right := _as_path(entry.text)) and not _is_explained(entry):
            yield self.at(entry, image=entry.text, right=right)


class ImageName(Rule):
    """A name that no registry has."""

    code = "image-name"
    reason = "no registry has an image {image!r}, because {problem}"
    consequence = "it can't be pulled"
    fix = "Write {right}."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry, image = subject.document.scalars.get("image"), subject.edf.image
        if entry is None or not image or image.startswith("/") or "${" in image:
            return
        if _as_path(entry.text) or _is_explained(entry):
            return
        scheme = _SCHEME.match(image)
        if scheme and scheme[0] in _SCHEMES[subject.dialect]:
            image = image[scheme.end() :]
        if problem := reference_problem(image):
            is_known = scheme is not None and scheme[0] in _SCHEMES["pyxis"] | {"podman://"}
            right = image[scheme.end() :] if scheme and is_known else "[USER@][REGISTRY#]IMAGE[:TAG]"
            yield self.at(entry, image=image, problem=problem, right=right)


def _as_path(image: str) -> str:
    """Return what to write for an image that means a file and isn't written as one; nothing for any other."""
    if image.startswith("~/"):
        return "${HOME}" + image[1:]
    if image.startswith("file://"):
        return "/" + image.removeprefix("file://").lstrip("/")
    is_file = image.endswith(SUFFIXES) and not image.startswith(("/", "./", "../", "$"))
    return f"./{image}" if is_file else ""


def _is_explained(entry: Entry) -> bool:
    """Return whether another rule says what is wrong with the name."""
    unbraced = unbraced_variables(entry.text.removeprefix("$oauthtoken@"))
    return bool(unbraced or INVISIBLE.search(entry.text) or placeholder(entry.text, is_path=True))


class ImageIsHost(Rule):
    """The root of the machine in the place of an image."""

    code = "image-is-host"
    severity = "error"
    reason = "the image '/' is this machine itself, with every file system that is mounted on it"
    consequence = "no container can be made of it"
    fix = "Take image out to run without a container, or give the folder of an unpacked image."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.scalars.get("image")
        if entry and subject.edf.image.startswith("/") and not subject.edf.image.strip("/."):
            yield self.at(entry)


class MuslImage(Rule):
    """An image whose C library is not glibc."""

    code = "musl"
    reason = "{image!r} is an image with musl in the place of glibc"
    consequence = (
        "ldconfig fails in the hooks, and no library of the host, CUDA and libfabric among them, loads"
    )
    fix = 'Take an image of Debian or the like, or set cxi.enabled = "false" and ENROOT_SLURM_HOOK=0.'
    _pattern = re.compile(r"(?:^|[/#:_.-])(?:alpine|musl)(?=$|[0-9:@_.-])")

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.scalars.get("image")
        is_adapted = (
            subject.annotation("com.hooks.cxi.enabled") == "false"
            and subject.edf.env.get("ENROOT_SLURM_HOOK") == "0"
        )
        if entry and self._pattern.search(entry.text) and not is_adapted:
            yield self.at(entry, image=entry.text)


IMAGE_RULES: tuple[Rule, ...] = (NoImage(), ImageWithoutPath(), ImageName(), ImageIsHost(), MuslImage())
