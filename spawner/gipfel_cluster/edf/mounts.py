"""Mounts and paths of an EDF: a mount from its expanded fields, and placeholders left in a path."""

import posixpath
import re
from collections.abc import Callable, Sequence

from .model import FLAGS, PATH_BYTES, SPECIAL_SOURCES, Dialect, Mount, shortened

_TEXT = (
    r"<[A-Za-z][A-Za-z0-9 _./-]*>|\b(?:CHANGE[-_ ]?(?:THIS|ME)|REPLACE[-_ ]?(?:THIS|ME)|FIXME|TODO)\b"
    r"|\byour[-_](?:account|group|image|name|path|project|user(?:name)?)\b|/path/to/|^\.\.\.$"
    # Templates of Jinja, of Autoconf and of Windows.
    r"|\{\{ ?[A-Za-z_][A-Za-z0-9_. ]*\}\}|@[A-Z][A-Z0-9_]+@|%[A-Z][A-Z0-9_]+%"
)
_ANYWHERE = re.compile(_TEXT, re.MULTILINE)
#: In a variable of the environment the others may well be meant.
_IN_PATHS = re.compile(
    _TEXT + r"|(?<![$\{])\{[A-Za-z_][A-Za-z0-9_]*\}"
    r"|(?<![${A-Za-z0-9_])(?:USERNAME|YOUR_?[A-Z_]+)\b|(?:^|/)your/",
    re.MULTILINE,
)
_SEPARATOR = {"ce": re.compile(r"\+"), "pyxis": re.compile(r"\+"), "sarus": re.compile(r"[,+]")}
#: Begins a path that is known in the job only.
_LATER = "${SLURM_"
#: Code, message and fix.
Refuse = Callable[[str, str, str], None]


def make_mount(fields: Sequence[str], refuse: Refuse, dialect: Dialect = "ce") -> Mount | None:
    """Make a mount of source, destination and flags, or report to ``refuse`` what is wrong with them."""
    source, *rest = fields
    destination = rest[0] if rest else source
    flags = tuple(dict.fromkeys(_SEPARATOR[dialect].split(rest[1]))) if len(rest) > 1 else ()
    is_plain = source.startswith("/") and destination.startswith("/")
    if is_plain and len(rest) < 2 and len(source) + len(destination) < PATH_BYTES:
        return Mount(source=_normal(source), destination=_normal(destination))
    wrong = [*_path_problems(source, destination, dialect), *_flag_problems(flags)]
    if len(rest) > 2:
        wrong.append(("mount", "a mount has at most three fields.", "Write SOURCE:DESTINATION[:FLAG+FLAG]."))
    for problem in wrong:
        refuse(*problem)
    if wrong:
        return None
    source = source if source in SPECIAL_SOURCES else _normal(source)
    return Mount(source=source, destination=_normal(destination), flags=flags)


def not_absolute(what: str, path: str) -> tuple[str, str]:
    """Return message and fix about a path that isn't absolute, as it was written."""
    if path == "~" or path.startswith("~/"):
        fix = "Write ${HOME}" + shortened(path[1:]) + "."
    elif path.startswith("$"):
        fix = "Write variables in braces: ${NAME}."
    elif placeholder(path, is_path=True):
        fix = "Put your own path there."
    else:
        fix = "Begin it with '/' or './'."
    return f"{what} {shortened(path)!r} is not an absolute path.", fix


def placeholder(text: str, *, is_path: bool) -> str:
    """Return the first placeholder in a text, or nothing.

    Parameters
    ----------
    is_path
        Whether the text is a path or the name of an image, where braces and capitals have no other meaning.
    """
    match = (_IN_PATHS if is_path else _ANYWHERE).search(text)
    return match[0] if match else ""


def _normal(path: str) -> str:
    if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
        # Nearly every path is normal as it is.
        return path
    # POSIX lets two slashes at the beginning mean something else; Linux doesn't.
    return posixpath.normpath(path).replace("//", "/", 1)


def _flag_problems(flags: tuple[str, ...]) -> list[tuple[str, str, str]]:
    if "sqsh" in flags and len(flags) > 1:
        return [("mount-flags", "'sqsh' can't be combined with other flags.", "Take the others out.")]
    if "" in flags:
        return [("mount-flags", "a flag is empty.", "Flags are joined by '+': ro+private.")]
    if len(flags) > FLAGS:
        return [("mount-flags", f"there are more than {FLAGS} flags.", "Take some out.")]
    return []


def _path_problems(source: str, destination: str, dialect: Dialect) -> list[tuple[str, str, str]]:
    if source in SPECIAL_SOURCES and dialect == "sarus":
        fix = "Take it out, or check with --dialect ce."
        return [("mount-path", f"Sarus binds files and directories only, not {source!r}.", fix)]
    if source in SPECIAL_SOURCES and destination == source:
        return [("mount-path", f"{source!r} needs a destination.", f"Write {source}:/DESTINATION.")]
    problems = []
    for which, path in (("source", source), ("destination", destination)):
        if which == "source" and path in SPECIAL_SOURCES:
            continue
        if not path.startswith(("/", _LATER)):
            message, fix = not_absolute(f"the mount's {which}", path)
            problems.append(("mount-path", message, fix))
        elif len(path) > PATH_BYTES:
            message = f"the mount's {which} is longer than {PATH_BYTES} characters."
            problems.append(("mount-path", message, "No system has such a path."))
    # Of a mount of one field both are the same path.
    return problems[:1] if source == destination else problems
