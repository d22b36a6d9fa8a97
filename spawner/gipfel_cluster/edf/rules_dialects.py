"""Lint rules about features that a dialect lacks or reads differently: Pyxis, Container Engine, Sarus Suite.

Source for Sarus: raster, its reader of EDFs; the codes in the messages are raster's error codes.
"""

import re
from collections.abc import Iterator

from .document import Entry, Source
from .expand import split_fields
from .model import Mount
from .rule import LintContext, Mistake, Rule, each_mount, rule


@rule(
    "ce-only-sqsh",
    dialects=("sarus", "pyxis"),
    severity="error",
    reason="only the Container Engine mounts a SquashFS file with ':sqsh'",
    consequence="Sarus drops the flag and binds the file itself, Pyxis refuses it",
    fix="Unpack the file and mount the directory.",
)
@each_mount
def squashfs_mount(mount: Mount) -> bool:
    """Find the mount flag ``sqsh``, which only the CE supports."""
    return "sqsh" in mount.flags


@rule(
    "sarus-only-devices",
    dialects=("ce", "pyxis"),
    reason="only Sarus reads devices",
    consequence="other engines ignore the key, and the container gets the devices that its site configures",
    fix="Remove it, or check with --dialect sarus.",
)
def sarus_only_devices(context: LintContext) -> Iterator[Mistake]:
    """Find the key ``devices``, which only Sarus reads."""
    yield from ((entry, {}) for entry in context.document.devices[:1])


@rule(
    "pyxis-annotations",
    dialects=("pyxis",),
    reason="Pyxis has no option for annotations",
    consequence="hooks get them only as OCI_ANNOTATION_… variables, if the site's hooks read these",
    fix="Set the hook's variables in [env].",
)
def pyxis_annotations(context: LintContext) -> Iterator[Mistake]:
    """Find annotations, which Pyxis has no option for."""
    yield from ((entry, {}) for entry in list(context.document.annotations.values())[:1])


@rule(
    "pyxis-unset",
    dialects=("pyxis",),
    reason="Pyxis can't unset {name}",
    consequence="the image's value stays",
    fix="Start the program with 'env -u {name}'.",
)
def pyxis_unset(context: LintContext) -> Iterator[Mistake]:
    """Find a variable with an empty value, which Pyxis can't unset."""
    for name, entry in context.document.env.items():
        if not entry.text:
            yield entry, {"name": name}


@rule(
    "pyxis-separator",
    dialects=("pyxis",),
    severity="error",
    reason="Pyxis can't escape the comma or colon in a mount's path",
    consequence="the path is split at this character",
    fix="Mount it through a link without that character.",
)
@each_mount
def pyxis_separator(mount: Mount) -> bool:
    """Find a comma or colon in the path of a mount."""
    return any(character in mount.source + mount.destination for character in ",:")


_SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PYTHONPATH", "MANPATH")


@rule(
    "pyxis-host-path",
    dialects=("pyxis",),
    reason="the image's {name} can't be read before the image is pulled",
    consequence="the submitting host's value is used, and the image's directories are missing from it",
    fix="Import the image into a .sqsh file, or write the whole {name}.",
)
def pyxis_host_path(context: LintContext) -> Iterator[Mistake]:
    """Find a search path that is meant to extend the image's."""
    if not context.edf.image or context.edf.image.startswith("/"):
        return
    for name in _SEARCH_PATHS:
        entry = context.document.env.get(name)
        if entry and f"${{{name}}}" in entry.text:
            yield entry, {"name": name}


DIALECT_RULES: tuple[Rule, ...] = (
    squashfs_mount,
    sarus_only_devices,
    pyxis_annotations,
    pyxis_unset,
    pyxis_separator,
    pyxis_host_path,
)


@rule(
    "sarus-no-image",
    dialects=("sarus",),
    severity="error",
    reason="Sarus requires an image in every file, also in a base",
    consequence="the job ends before the container starts",
    fix='Add image = "…" to this file.',
)
def sarus_no_image(context: LintContext) -> Iterator[Mistake]:
    """Find a file without an image: Sarus requires one in every file, also in bases."""
    for document in context.documents if context.is_complete else ():
        if "image" not in document.scalars:
            yield Entry("", (), document.source or Source("", "")), {}


@rule(
    "sarus-extension",
    dialects=("sarus",),
    severity="error",
    reason="Sarus reads only files whose names end in .toml, in small letters",
    consequence="it refuses this one",
    fix="Rename it.",
)
def sarus_extension(context: LintContext) -> Iterator[Mistake]:
    """Find a file whose name does not end in ``.toml``."""
    for document in context.documents:
        if document.source and not document.source.file.endswith(".toml"):
            yield Entry("", (), document.source), {}


_BANNED = re.compile(r'''[;`]|\$\(|(?<!\\)"''')


@rule(
    "sarus-characters",
    dialects=("sarus",),
    severity="error",
    reason="the value contains {text}, and Sarus expands values with a shell",
    consequence="it refuses the file with code 18",
    fix="Remove it; write a double quote with a backslash before it.",
)
def sarus_characters(context: LintContext) -> Iterator[Mistake]:
    """Find a character that Sarus forbids in values, since it expands them with a shell."""
    for entry in context.entries:
        if entry.path[0] != "image" and (match := _BANNED.search(entry.text)):
            yield entry, {"text": match[0]}


@rule(
    "sarus-cxi",
    dialects=("sarus",),
    reason="in Sarus the hook aws_ofi_nccl does not enable the hook cxi",
    consequence="NCCL finds no libfabric of the host and uses TCP",
    fix='Add com.hooks.cxi.enabled = "true".',
)
def sarus_network(context: LintContext) -> Iterator[Mistake]:
    """Find the hook ``aws_ofi_nccl`` without the hook ``cxi``, which Sarus does not add by itself."""
    if context.hook_is_enabled("aws_ofi_nccl") and not context.hook_is_intended("cxi"):
        yield context.document.annotations["com.hooks.aws_ofi_nccl.enabled"], {}


@rule(
    "sarus-one-field",
    dialects=("sarus",),
    severity="error",
    reason="Sarus refuses a mount of one field",
    consequence="the job ends with code 8 before the container starts",
    fix="Write {mount}:{mount}.",
)
def sarus_one_field(context: LintContext) -> Iterator[Mistake]:
    """Find a mount of one field, which only CE and Pyxis read as the same path on both sides."""
    for entry in context.document.mounts:
        if len(split_fields(entry.text)) == 1:
            yield entry, {"mount": entry.text}


@rule(
    "sarus-split",
    dialects=("sarus",),
    severity="error",
    reason="Sarus splits a mount at its colons before it expands variables",
    consequence="the default is split and another path is mounted, or none",
    fix="Set the variable, and write it without a default.",
)
def sarus_split(context: LintContext) -> Iterator[Mistake]:
    """Find a colon inside a variable, at which Sarus splits the mount."""
    for entry in context.document.mounts:
        if len(split_fields(entry.text)) != entry.text.count(":") + 1:
            yield entry, {}


@rule(
    "sarus-image",
    dialects=("sarus",),
    severity="error",
    reason="Sarus reads images from registries only, and does not expand variables in their names",
    consequence="the image {image!r} isn't found",
    fix="Push the image to a registry and give that name.",
)
def sarus_image(context: LintContext) -> Iterator[Mistake]:
    """Find an image that is a path or contains a variable, which Sarus does not support."""
    entry = context.document.scalars.get("image")
    if entry and (entry.text.startswith(("/", ".")) or "$" in entry.text):
        yield entry, {"image": entry.text}


@rule(
    "ce-only-hook",
    dialects=("sarus",),
    reason="only the Container Engine has the hook {hook}",
    consequence="Sarus ignores the annotation",
    fix="Remove it, or check with --dialect ce.",
)
def ce_only_hook(context: LintContext) -> Iterator[Mistake]:
    """Find a hook that Sarus does not have."""
    for name, entry in context.document.annotations.items():
        hook = name.removeprefix("com.hooks.").partition(".")[0]
        if name.startswith("com.hooks.") and hook in {"ssh", "netstack"}:
            yield entry, {"hook": hook}


SARUS_RULES: tuple[Rule, ...] = (
    sarus_no_image,
    sarus_extension,
    sarus_characters,
    sarus_network,
    sarus_one_field,
    sarus_split,
    sarus_image,
    ce_only_hook,
)
