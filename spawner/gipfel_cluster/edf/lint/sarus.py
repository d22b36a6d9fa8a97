"""Rules for keys that the Sarus Suite lacks or reads differently.

Source: raster, which reads EDFs for it; the numbers are those of its errors.
"""

import re
from collections.abc import Iterator

from ..entry import Entry, Source
from ..expand import split_fields
from ..model import Diagnostic
from .rule import Rule, Subject


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
