"""Lint rules about what one dialect lacks or reads differently: Pyxis, the Container Engine, the Sarus Suite.

Source for Sarus: raster, which reads EDFs for it; the numbers are those of its errors.
"""

import re
from collections.abc import Iterator

from .document import Entry, Source
from .expand import split_fields
from .model import Diagnostic, Mount
from .rule import MountRule, Rule, Subject


class SquashfsMount(MountRule):
    """``:sqsh``, which only the CE mounts."""

    code = "ce-only-sqsh"
    dialects = ("sarus", "pyxis")
    severity = "error"
    reason = "only the Container Engine mounts a SquashFS file with ':sqsh'"
    consequence = "Sarus drops the flag and binds the file itself, Pyxis refuses it"
    fix = "Unpack the file and mount the directory."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return "sqsh" in mount.flags


class SarusOnlyDevices(Rule):
    """``devices``, which only Sarus knows."""

    code = "sarus-only-devices"
    dialects = ("ce", "pyxis")
    reason = "only Sarus knows devices"
    consequence = "another engine ignores the key, and the container gets what its site gives"
    fix = "Take it out, or check with --dialect sarus."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        yield from (self.at(entry) for entry in subject.document.devices[:1])


class PyxisAnnotations(Rule):
    """Annotations, for which Pyxis has no option."""

    code = "pyxis-annotations"
    dialects = ("pyxis",)
    reason = "Pyxis has no option for annotations"
    consequence = "hooks see them only as OCI_ANNOTATION_… variables, where the site's hooks look for these"
    fix = "Set what the hook would set in [env]."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        yield from (self.at(entry) for entry in list(subject.document.annotations.values())[:1])


class PyxisUnset(Rule):
    """A variable taken away, which Pyxis can't."""

    code = "pyxis-unset"
    dialects = ("pyxis",)
    reason = "Pyxis can't unset {name}"
    consequence = "the image's value stays"
    fix = "Start the program with 'env -u {name}'."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.env.items():
            if not entry.text:
                yield self.at(entry, name=name)


class PyxisSeparator(MountRule):
    """A comma or colon in the path of a mount."""

    code = "pyxis-separator"
    dialects = ("pyxis",)
    severity = "error"
    reason = "Pyxis can't escape the comma or colon in a mount's path"
    consequence = "the path is torn in two"
    fix = "Mount it through a link without that character."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return any(character in mount.source + mount.destination for character in ",:")


class PyxisHostPath(Rule):
    """A search path that is meant to extend the image's."""

    code = "pyxis-host-path"
    dialects = ("pyxis",)
    reason = "the image's {name} can't be read before the image is pulled"
    consequence = "that of the submitting host is put in, and the image's directories are gone"
    fix = "Import the image into a .sqsh file, or write the whole {name}."
    _names = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PYTHONPATH", "MANPATH")

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if not subject.edf.image or subject.edf.image.startswith("/"):
            return
        for name in self._names:
            entry = subject.document.env.get(name)
            if entry and f"${{{name}}}" in entry.text:
                yield self.at(entry, name=name)


DIALECT_RULES: tuple[Rule, ...] = (
    SquashfsMount(),
    SarusOnlyDevices(),
    PyxisAnnotations(),
    PyxisUnset(),
    PyxisSeparator(),
    PyxisHostPath(),
)


class SarusNoImage(Rule):
    """A file without an image, which Sarus wants in each, in bases too."""

    code = "sarus-no-image"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus wants an image in every file, also in a base"
    consequence = "the job ends before the container starts"
    fix = 'Add image = "…" to this file.'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for document in subject.documents if subject.whole else ():
            if "image" not in document.scalars:
                yield self.at(Entry("", (), document.source or Source("", "")))


class SarusExtension(Rule):
    """A file whose name ends otherwise than in ``.toml``."""

    code = "sarus-extension"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus reads only files whose names end in .toml, in small letters"
    consequence = "it refuses this one"
    fix = "Rename it."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for document in subject.documents:
            if document.source and not document.source.file.endswith(".toml"):
                yield self.at(Entry("", (), document.source))


class SarusCharacters(Rule):
    """A value that Sarus does not hand to its shell."""

    code = "sarus-characters"
    dialects = ("sarus",)
    severity = "error"
    reason = "the value holds {text}, and Sarus expands values by a shell"
    consequence = "it refuses the file with code 18"
    fix = "Take it out; a double quote may stay behind a backslash."
    _banned = re.compile(r'''[;`]|\$\(|(?<!\\)"''')

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in subject.entries:
            if entry.path[0] != "image" and (match := self._banned.search(entry.text)):
                yield self.at(entry, text=match[0])


class SarusNetwork(Rule):
    """NCCL's plugin without the network below it, which no other hook brings."""

    code = "sarus-cxi"
    dialects = ("sarus",)
    reason = "in Sarus the hook aws_ofi_nccl does not bring the hook cxi"
    consequence = "NCCL finds no libfabric of the host and uses TCP"
    fix = 'Add com.hooks.cxi.enabled = "true".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if subject.hook("aws_ofi_nccl") and not subject.hook_is_meant("cxi"):
            yield self.at(subject.document.annotations["com.hooks.aws_ofi_nccl.enabled"])


class SarusOneField(Rule):
    """A mount of one field, which only CE and Pyxis take for the same path on both sides."""

    code = "sarus-one-field"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus refuses a mount of one field"
    consequence = "the job ends with code 8 before the container starts"
    fix = "Write {mount}:{mount}."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in subject.document.mounts:
            if len(split_fields(entry.text)) == 1:
                yield self.at(entry, mount=entry.text)


class SarusSplit(Rule):
    """A colon inside a variable, where Sarus splits too."""

    code = "sarus-split"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus splits a mount at its colons before it looks for variables"
    consequence = "the default is torn in two and another path is mounted, or none"
    fix = "Set the variable, and write it without a default."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in subject.document.mounts:
            if len(split_fields(entry.text)) != entry.text.count(":") + 1:
                yield self.at(entry)


class SarusImage(Rule):
    """An image that Sarus takes literally, or can't read."""

    code = "sarus-image"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus takes images from registries only, and their names without variables"
    consequence = "the image {image!r} isn't found"
    fix = "Push the image to a registry and give that name."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.scalars.get("image")
        if entry and (entry.text.startswith(("/", ".")) or "$" in entry.text):
            yield self.at(entry, image=entry.text)


class CeOnlyHook(Rule):
    """Hooks that Sarus does not have."""

    code = "ce-only-hook"
    dialects = ("sarus",)
    reason = "only the Container Engine has the hook {hook}"
    consequence = "Sarus ignores the annotation"
    fix = "Take it out, or check with --dialect ce."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.annotations.items():
            hook = name.removeprefix("com.hooks.").partition(".")[0]
            if name.startswith("com.hooks.") and hook in {"ssh", "netstack"}:
                yield self.at(entry, hook=hook)


SARUS_RULES: tuple[Rule, ...] = (
    SarusNoImage(),
    SarusExtension(),
    SarusCharacters(),
    SarusNetwork(),
    SarusOneField(),
    SarusSplit(),
    SarusImage(),
    CeOnlyHook(),
)
