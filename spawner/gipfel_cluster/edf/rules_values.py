"""Lint rules about the text of a value, and about the image."""

import re
from collections.abc import Iterator

from ..environment import BINDING, PLACES
from .document import Entry, Source
from .expand import unbraced_variables
from .keys import KEYS
from .model import Diagnostic, Dialect
from .mounts import placeholder
from .reference import reference_problem
from .rule import Rule, Subject

_KEYS = frozenset(KEYS)
#: Tables in which texts are anything, not paths or names.
_FREE = frozenset(("env", "annotations"))
_MOST_NAMES = 10  # in one value
#: The literal name of the user of NVIDIA's registry.
_NGC_USER = re.compile(r"(?:[a-z]+://)?\$oauthtoken@")
#: Spaces without a width, joiners, marks of direction, the space that doesn't break a line.
INVISIBLE = re.compile("[\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")
SUFFIXES = (".sqsh", ".squashfs", ".sqfs")
_SCHEME = re.compile(r"[a-z]+://")
#: Schemes allowed before a name. Sources: Pyxis, args.c; raster hands the name on to podman.
_SCHEMES: dict[Dialect, frozenset[str]] = {
    "ce": frozenset(),
    "pyxis": frozenset({"docker://", "dockerd://"}),
    "sarus": frozenset({"docker://"}),
}


class UnbracedVariable(Rule):
    """``$NAME``, which shells and Sarus expand and other EDFs don't."""

    code = "unbraced-variable"
    dialects = ("ce", "pyxis")
    reason = "${name} has no braces"
    consequence = "it stays as it is"
    fix = "Write ${{{name}}}."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in subject.entries if unbraced_variables(subject.text) else ():
            if "$" in entry.text:
                names = unbraced_variables(entry.text)
                if entry.key == "image" and _NGC_USER.match(entry.text):
                    names = tuple(name for name in names if name != "oauthtoken")
                yield from (self.at(entry, name=name) for name in names[:_MOST_NAMES])


class Placeholder(Rule):
    """A placeholder that was never filled in."""

    code = "placeholder"
    reason = "{text!r} is a placeholder"
    consequence = "the value is taken as it is"
    fix = "Put your own value there."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if not placeholder(subject.text, is_path=True):
            return
        for entry in subject.entries:
            is_path = entry.path[0] not in _FREE or entry.text.startswith("/")
            if text := placeholder(entry.text, is_path=is_path):
                yield self.at(entry, text=text)


class InvisibleCharacter(Rule):
    """An invisible character that came with a copied text."""

    code = "invisible-character"
    reason = "it holds the invisible character {character}"
    consequence = "no file and no image has this name"
    fix = "Type the value again."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in () if subject.text.isascii() else subject.entries:
            if entry.text.isascii() or entry.path[0] in _FREE:
                continue
            if match := INVISIBLE.search(entry.text):
                yield self.at(entry, character=f"U+{ord(match[0]):04X}")


class KeyInTable(Rule):
    """A key of the EDF below the header of a table, where it belongs to that table."""

    code = "key-in-table"
    reason = "below [{table}] it is {what}, not the EDF's {key}"
    consequence = "the EDF is used without it"
    fix = "Move it above the first line in brackets."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name in subject.document.env.keys() & _KEYS:
            yield self.at(subject.document.env[name], table="env", what="a variable", key=name)
        for name, entry in subject.document.annotations.items():
            first, last = name.partition(".")[0], name.rpartition(".")[2]
            key = first if first in _KEYS and first != "annotations" else last
            if key in _KEYS:
                table = ".".join(map(str, entry.path[:-1]))
                yield self.at(entry, table=table, what="an annotation", key=key)


class Secret(Rule):
    """A password or token that anybody who may read the file may use."""

    code = "secret"
    beside_errors = True
    reason = "{name} looks like a secret"
    consequence = "whoever can read the file, and every log that shows the environment, has it"
    fix = 'Write {name} = "${{{name}}}" and set it where you submit, or use a file of mode 600.'
    _name = re.compile(
        r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)$"
        r"|(?:^|_)(?:APIKEY|SECRET_ACCESS_KEY)$",
        re.IGNORECASE,
    )
    _value = re.compile(
        r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}"
        r"|xox[abp]-[\w-]{10,}|sk-[A-Za-z0-9_-]{20,}|nvapi-[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY"
    )

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.env.items():
            named = self._name.search(name) and entry.text and "${" not in entry.text
            if (named and not entry.text.startswith("/")) or self._value.search(entry.text):
                yield self.at(entry, name=name)


class HiddenDevices(Rule):
    """GPUs that the EDF itself takes away."""

    code = "hidden-gpus"
    reason = "{name} is {value!r}"
    consequence = "the container gets neither the GPUs nor the driver's libraries"
    fix = 'Take it out, or write "all".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.env.get("NVIDIA_VISIBLE_DEVICES")
        if entry is not None and entry.text in {"", "void", "none"}:
            yield self.at(entry, name="NVIDIA_VISIBLE_DEVICES", value=entry.text)


class BoundVariable(Rule):
    """A variable that is the job's own."""

    code = "bound-variable"
    reason = "{name} is the job's own"
    consequence = "in a job of Gipfel the hub's or the scheduler's value stays, and this one has no effect"
    fix = "Take it out, or set it in the set-up steps beside the EDF."
    _families = tuple(name[:-1] for name in BINDING if name.endswith("*"))
    _names = frozenset(BINDING)

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.env.items():
            if name in self._names or name.startswith(self._families):
                yield self.at(entry, name=name)


class HostPlaces(Rule):
    """A list of places that extends the host's, since the image's can't be read."""

    code = "host-places"
    dialects = ("ce", "pyxis")
    severity = "note"
    reason = "the image is in a registry, so its {name} can't be read here"
    consequence = "the engines pyxis, podman and apptainer take this host's in its place"
    fix = "For them, write the image's {name} in full, or import the image into a .sqsh file."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if not subject.edf.image or subject.edf.image.startswith("/"):
            return
        for name, entry in subject.document.env.items():
            is_places = name in PLACES or name.startswith("LD_")
            if is_places and re.search(rf"(?<!\$)\${{{re.escape(name)}[}}:]", entry.text):
                yield self.at(entry, name=name)


VALUE_RULES: tuple[Rule, ...] = (
    UnbracedVariable(),
    Placeholder(),
    InvisibleCharacter(),
    KeyInTable(),
    Secret(),
    HiddenDevices(),
    BoundVariable(),
    HostPlaces(),
)


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
    """Return whether another rule reports what is wrong with the name."""
    unbraced = unbraced_variables(entry.text.removeprefix("$oauthtoken@"))
    return bool(unbraced or INVISIBLE.search(entry.text) or placeholder(entry.text, is_path=True))


class ImageIsHost(Rule):
    """The root of the machine in the place of an image."""

    code = "image-is-host"
    severity = "error"
    reason = "the image '/' is this machine itself, with every file system that is mounted on it"
    consequence = "no container can be made of it"
    fix = "Take image out to run without a container, or give the directory of an unpacked image."

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
