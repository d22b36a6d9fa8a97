"""What is allowed in an EDF and yet most likely a mistake."""

from collections.abc import Iterator

from .expand import unbraced_variables
from .model import Diagnostic
from .parse import Document, Entry

#: What may stand behind the second colon of a mount.
KNOWN_FLAGS = frozenset(
    {
        *("ro", "rw", "sqsh", "bind", "rbind", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime"),
        *("private", "rprivate", "slave", "rslave", "shared", "rshared"),
        *("x-create=auto", "x-create=dir", "x-create=file"),
    }
)
_HOOKS = "com.hooks."
_IMAGE_SUFFIXES = (".sqsh", ".squashfs", ".sqfs")


def lint(document: Document) -> Iterator[Diagnostic]:
    """Yield warnings about the values of a merged document."""
    for entry in document.entries():
        yield from _unbraced(entry)
    if image := document.scalars.get("image"):
        yield from _image(image)
    for name, entry in document.annotations.items():
        yield from _annotation(name, entry)


def _unbraced(entry: Entry) -> Iterator[Diagnostic]:
    for name in unbraced_variables(entry.text):
        yield entry.diagnostic(
            "unbraced-variable",
            f"${name} stays as it is, because only variables in braces are expanded.",
            f"Write ${{{name}}}.",
            severity="warning",
        )


def _image(entry: Entry) -> Iterator[Diagnostic]:
    if entry.text.endswith(_IMAGE_SUFFIXES) and not entry.text.startswith(("/", "./", "../", "${")):
        yield entry.diagnostic(
            "image-path",
            f"{entry.text!r} is taken for the name of an image in a registry.",
            f"Write ./{entry.text} for a file.",
            severity="warning",
        )


def _annotation(name: str, entry: Entry) -> Iterator[Diagnostic]:
    if name.startswith(("hooks.", "com.hooks.com.hooks.", "hooks.com.hooks.")):
        right = _HOOKS + name.rpartition("hooks.")[2]
        yield entry.diagnostic(
            "hook-prefix", "no hook reads this annotation.", f"Write {right}.", severity="warning"
        )
    if name.startswith(_HOOKS) and name.endswith(".enabled") and entry.text not in {"true", "false"}:
        yield entry.diagnostic(
            "hook-value",
            f"a hook takes {entry.text!r} for false without a word.",
            'Write "true" or "false".',
            severity="warning",
        )
