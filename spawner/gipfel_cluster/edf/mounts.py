"""Mounts and paths of an EDF: parse a mount from its expanded fields, find placeholders in a path."""

import posixpath
import re
from collections.abc import Callable, Sequence

from .model import MAX_MOUNT_FLAGS, MAX_PATH_BYTES, SPECIAL_SOURCES, Dialect, Mount, shortened

_PLACEHOLDER = (
    r"<[A-Za-z][A-Za-z0-9 _./-]*>|\b(?:CHANGE[-_ ]?(?:THIS|ME)|REPLACE[-_ ]?(?:THIS|ME)|FIXME|TODO)\b"
    r"|\byour[-_](?:account|group|image|name|path|project|user(?:name)?)\b|/path/to/|^\.\.\.$"
    # Templates of Jinja, of Autoconf and of Windows.
    r"|\{\{ ?[A-Za-z_][A-Za-z0-9_. ]*\}\}|@[A-Z][A-Z0-9_]+@|%[A-Z][A-Z0-9_]+%"
)
_ANYWHERE = re.compile(_PLACEHOLDER, re.MULTILINE)
#: More forms for paths and names of images; in environment variables they are often intended.
_IN_PATHS = re.compile(
    _PLACEHOLDER + r"|(?<![$\{])\{[A-Za-z_][A-Za-z0-9_]*\}"
    r"|(?<![${A-Za-z0-9_])(?:USERNAME|YOUR_?[A-Z_]+)\b|(?:^|/)your/",
    re.MULTILINE,
)
_FLAG_SEPARATOR = {"ce": re.compile(r"\+"), "pyxis": re.compile(r"\+"), "sarus": re.compile(r"[,+]")}
#: Begins a path that is known only inside the job.
_JOB_VARIABLE = "${SLURM_"
#: Called with the code, message and fix of an error.
ReportError = Callable[[str, str, str], None]


def make_mount(fields: Sequence[str], report_error: ReportError, dialect: Dialect = "ce") -> Mount | None:
    """Return the mount of source, destination and flags; report why and return None if they are not valid."""
    source, *rest = fields
    destination = rest[0] if rest else source
    flags = tuple(dict.fromkeys(_FLAG_SEPARATOR[dialect].split(rest[1]))) if len(rest) > 1 else ()
    is_plain = source.startswith("/") and destination.startswith("/")
    if is_plain and len(rest) < 2 and len(source) + len(destination) < MAX_PATH_BYTES:
        return Mount(source=_normal(source), destination=_normal(destination))
    errors = [*_path_errors(source, destination, dialect), *_flag_errors(flags)]
    if len(rest) > 2:
        errors.append(("mount", "a mount has at most three fields.", "Write SOURCE:DESTINATION[:FLAG+FLAG]."))
    for error in errors:
        report_error(*error)
    if errors:
        return None
    source = source if source in SPECIAL_SOURCES else _normal(source)
    return Mount(source=source, destination=_normal(destination), flags=flags)


def not_absolute(name: str, path: str) -> tuple[str, str]:
    """Return the message and fix about a path that is not absolute; ``name`` says which path it is."""
    if path == "~" or path.startswith("~/"):
        fix = "Write ${HOME}" + shortened(path[1:]) + "."
    elif path.startswith("$"):
        fix = "Write variables in braces: ${NAME}."
    elif placeholder(path, is_path=True):
        fix = "Replace it with your own path."
    else:
        fix = "Begin it with '/' or './'."
    return f"{name} {shortened(path)!r} is not an absolute path.", fix


def placeholder(text: str, *, is_path: bool) -> str:
    """Return the first placeholder in a text, or an empty string.

    Parameters
    ----------
    is_path
        Whether the text is a path or the name of an image, in which braces and capitals are placeholders too.
    """
    match = (_IN_PATHS if is_path else _ANYWHERE).search(text)
    return match[0] if match else ""


def _normal(path: str) -> str:
    if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
        # Nearly every path is normalized already.
        return path
    # POSIX lets two slashes at the beginning mean something else; Linux doesn't.
    return posixpath.normpath(path).replace("//", "/", 1)


def _flag_errors(flags: tuple[str, ...]) -> list[tuple[str, str, str]]:
    if "sqsh" in flags and len(flags) > 1:
        return [("mount-flags", "'sqsh' can't be combined with other flags.", "Remove the others.")]
    if "" in flags:
        return [("mount-flags", "a flag is empty.", "Join flags with '+': ro+private.")]
    if len(flags) > MAX_MOUNT_FLAGS:
        return [("mount-flags", f"there are more than {MAX_MOUNT_FLAGS} flags.", "Remove some.")]
    return []


def _path_errors(source: str, destination: str, dialect: Dialect) -> list[tuple[str, str, str]]:
    if source in SPECIAL_SOURCES and dialect == "sarus":
        fix = "Remove it, or check with --dialect ce."
        return [("mount-path", f"Sarus binds files and directories only, not {source!r}.", fix)]
    if source in SPECIAL_SOURCES and destination == source:
        return [("mount-path", f"{source!r} needs a destination.", f"Write {source}:/DESTINATION.")]
    errors = []
    for side, path in (("source", source), ("destination", destination)):
        if side == "source" and path in SPECIAL_SOURCES:
            continue
        if not path.startswith(("/", _JOB_VARIABLE)):
            message, fix = not_absolute(f"the mount's {side}", path)
            errors.append(("mount-path", message, fix))
        elif len(path) > MAX_PATH_BYTES:
            message = f"the mount's {side} is longer than {MAX_PATH_BYTES} characters."
            errors.append(("mount-path", message, "Shorten it: no system has such a path."))
    # In a mount of one field source and destination are the same path: report it once.
    return errors[:1] if source == destination else errors
