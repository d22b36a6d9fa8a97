"""Lint rules about features that a dialect lacks or reads differently: Pyxis, Container Engine, Sarus Suite.

Source for Sarus: raster, its reader of EDFs; the codes in the messages are raster's error codes.
"""

import re
from collections.abc import Iterator

from .document import Entry, Source
from .expand import split_fields
from .model import Diagnostic, Mount
from .rule import LintContext, MountRule, Rule


class SquashfsMount(MountRule):
    """The mount flag ``sqsh``, which only the CE supports."""

    code = "ce-only-sqsh"
    dialects = ("sarus", "pyxis")
    severity = "error"
    reason = "only the Container Engine mounts a SquashFS file with ':sqsh'"
    consequence = "Sarus drops the flag and binds the file itself, Pyxis refuses it"
    fix = "Unpack the file and mount the directory."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return "sqsh" in mount.flags


class SarusOnlyDevices(Rule):
    """The key ``devices``, which only Sarus reads."""

    code = "sarus-only-devices"
    dialects = ("ce", "pyxis")
    reason = "only Sarus reads devices"
    consequence = "other engines ignore the key, and the container gets the devices that its site configures"
    fix = "Remove it, or check with --dialect sarus."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        yield from (self.diagnostic(entry) for entry in context.document.devices[:1])


class PyxisAnnotations(Rule):
    """Annotations, which Pyxis has no option for."""

    code = "pyxis-annotations"
    dialects = ("pyxis",)
    reason = "Pyxis has no option for annotations"
    consequence = "hooks get them only as OCI_ANNOTATION_… variables, if the site's hooks read these"
    fix = "Set the hook's variables in [env]."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        yield from (self.diagnostic(entry) for entry in list(context.document.annotations.values())[:1])


class PyxisUnset(Rule):
    """A variable with an empty value, which Pyxis can't unset."""

    code = "pyxis-unset"
    dialects = ("pyxis",)
    reason = "Pyxis can't unset {name}"
    consequence = "the image's value stays"
    fix = "Start the program with 'env -u {name}'."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in context.document.env.items():
            if not entry.text:
                yield self.diagnostic(entry, name=name)


class PyxisSeparator(MountRule):
    """A comma or colon in the path of a mount."""

    code = "pyxis-separator"
    dialects = ("pyxis",)
    severity = "error"
    reason = "Pyxis can't escape the comma or colon in a mount's path"
    consequence = "the path is split at this character"
    fix = "Mount it through a link without that character."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return any(character in mount.source + mount.destination for character in ",:")


class PyxisHostPath(Rule):
    """A search path that is meant to extend the image's."""

    code = "pyxis-host-path"
    dialects = ("pyxis",)
    reason = "the image's {name} can't be read before the image is pulled"
    consequence = "the submitting host's value is used, and the image's directories are missing from it"
    fix = "Import the image into a .sqsh file, or write the whole {name}."
    _names = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PYTHONPATH", "MANPATH")

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        if not context.edf.image or context.edf.image.startswith("/"):
            return
        for name in self._names:
            entry = context.document.env.get(name)
            if entry and f"${{{name}}}" in entry.text:
                yield self.diagnostic(entry, name=name)


DIALECT_RULES: tuple[Rule, ...] = (
    SquashfsMount(),
    SarusOnlyDevices(),
    PyxisAnnotations(),
    PyxisUnset(),
    PyxisSeparator(),
    PyxisHostPath(),
)


class SarusNoImage(Rule):
    """A file without an image: Sarus requires one in every file, also in bases."""

    code = "sarus-no-image"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus requires an image in every file, also in a base"
    consequence = "the job ends before the container starts"
    fix = 'Add image = "…" to this file.'

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for document in context.documents if context.is_complete else ():
            if "image" not in document.scalars:
                yield self.diagnostic(Entry("", (), document.source or Source("", "")))


class SarusExtension(Rule):
    """A file whose name does not end in ``.toml``."""

    code = "sarus-extension"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus reads only files whose names end in .toml, in small letters"
    consequence = "it refuses this one"
    fix = "Rename it."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for document in context.documents:
            if document.source and not document.source.file.endswith(".toml"):
                yield self.diagnostic(Entry("", (), document.source))


class SarusCharacters(Rule):
    """A character that Sarus forbids in values, since it expands them with a shell."""

    code = "sarus-characters"
    dialects = ("sarus",)
    severity = "error"
    reason = "the value contains {text}, and Sarus expands values with a shell"
    consequence = "it refuses the file with code 18"
    fix = "Remove it; write a double quote with a backslash before it."
    _banned = re.compile(r'''[;`]|\$\(|(?<!\\)"''')

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in context.entries:
            if entry.path[0] != "image" and (match := self._banned.search(entry.text)):
                yield self.diagnostic(entry, text=match[0])


class SarusNetwork(Rule):
    """The hook ``aws_ofi_nccl`` without the hook ``cxi``, which Sarus does not add by itself."""

    code = "sarus-cxi"
    dialects = ("sarus",)
    reason = "in Sarus the hook aws_ofi_nccl does not enable the hook cxi"
    consequence = "NCCL finds no libfabric of the host and uses TCP"
    fix = 'Add com.hooks.cxi.enabled = "true".'

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        if context.hook_is_enabled("aws_ofi_nccl") and not context.hook_is_intended("cxi"):
            yield self.diagnostic(context.document.annotations["com.hooks.aws_ofi_nccl.enabled"])


class SarusOneField(Rule):
    """A mount of one field, which only CE and Pyxis read as the same path on both sides."""

    code = "sarus-one-field"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus refuses a mount of one field"
    consequence = "the job ends with code 8 before the container starts"
    fix = "Write {mount}:{mount}."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in context.document.mounts:
            if len(split_fields(entry.text)) == 1:
                yield self.diagnostic(entry, mount=entry.text)


class SarusSplit(Rule):
    """A colon inside a variable, at which Sarus splits the mount."""

    code = "sarus-split"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus splits a mount at its colons before it expands variables"
    consequence = "the default is split and another path is mounted, or none"
    fix = "Set the variable, and write it without a default."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in context.document.mounts:
            if len(split_fields(entry.text)) != entry.text.count(":") + 1:
                yield self.diagnostic(entry)


class SarusImage(Rule):
    """An image that is a path or contains a variable, which Sarus does not support."""

    code = "sarus-image"
    dialects = ("sarus",)
    severity = "error"
    reason = "Sarus reads images from registries only, and does not expand variables in their names"
    consequence = "the image {image!r} isn't found"
    fix = "Push the image to a registry and give that name."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        entry = context.document.scalars.get("image")
        if entry and (entry.text.startswith(("/", ".")) or "$" in entry.text):
            yield self.diagnostic(entry, image=entry.text)


class CeOnlyHook(Rule):
    """A hook that Sarus does not have."""

    code = "ce-only-hook"
    dialects = ("sarus",)
    reason = "only the Container Engine has the hook {hook}"
    consequence = "Sarus ignores the annotation"
    fix = "Remove it, or check with --dialect ce."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in context.document.annotations.items():
            hook = name.removeprefix("com.hooks.").partition(".")[0]
            if name.startswith("com.hooks.") and hook in {"ssh", "netstack"}:
                yield self.diagnostic(entry, hook=hook)


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
