"""Mistakes about the image."""

import re
from collections.abc import Iterator

from ..model import Diagnostic
from .rule import Rule, Subject

SUFFIXES = (".sqsh", ".squashfs", ".sqfs")


class ImageWithoutPath(Rule):
    """A file's name without a folder."""

    code = "image-path"
    reason = "{image!r} begins with neither '/' nor './'"
    consequence = "it is taken for the name of an image in a registry"
    fix = "Write ./{image} for a file."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.scalars.get("image")
        if entry and entry.text.endswith(SUFFIXES) and not entry.text.startswith(("/", "./", "../", "${")):
            yield self.at(entry, image=entry.text)


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
        if entry and self._pattern.search(entry.text):
            yield self.at(entry, image=entry.text)


IMAGE_RULES: tuple[Rule, ...] = (ImageWithoutPath(), ImageIsHost(), MuslImage())
