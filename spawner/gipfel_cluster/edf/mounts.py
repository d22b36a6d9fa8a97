"""One mount of an EDF, from its expanded fields."""

import posixpath
import re
from collections.abc import Callable, Sequence

from .dialects import Dialect
from .limits import FLAGS, PATH_BYTES
from .model import SPECIAL_SOURCES, Mount, shortened
from .placeholders import placeholder

_SEPARATOR = {"ce": re.compile(r"\+"), "pyxis": re.compile(r"\+"), "sarus": re.compile(r"[,+]")}
#: Begins a path that is known in the job only.
_LATER = "${SLURM_"
#: Code, message and fix.
Refuse = Callable[[str, str, str], None]


def mount_of(fields: Sequence[str], refuse: Refuse, dialect: Dialect = "ce") -> Mount | None:
    """Make a mount of source, destination and flags, or say to ``refuse`` what is wrong with them."""
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


def _normal(path: str) -> str:
    if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
        # Nearly every path is normal as it is.
        return path
    # POSIX lets two slashes at the beginning mean something else; Linux doesn't.
    return posixpath.normpath(path).replace("//", "/", 1)


def _flag_problems(flags: tuple[str, ...]) -> list[tuple[str, str, str]]:
    if "sqsh" in flags and len(flags) > 1:
        return [("mount-flags", "'sqsh' stands alone as a flag.", "Take the others out.")]
    if "" in flags:
        return [("mount-flags", "a flag is empty.", "Flags are joined by '+': ro+private.")]
    if len(flags) > FLAGS:
        return [("mount-flags", f"there are more than {FLAGS} flags.", "Take some out.")]
    return []


def _path_problems(source: str, destination: str, dialect: Dialect) -> list[tuple[str, str, str]]:
    if source in SPECIAL_SOURCES and dialect == "sarus":
        fix = "Take it out, or check with --dialect ce."
        return [("mount-path", f"Sarus binds files and folders only, not {source!r}.", fix)]
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


def not_absolute(what: str, path: str) -> tuple[str, str]:
    """Say that a path isn't absolute: the message, and the fix for what was written."""
    if path == "~" or path.startswith("~/"):
        fix = "Write ${HOME}" + shortened(path[1:]) + "."
    elif path.startswith("$"):
        fix = "Write variables in braces: ${NAME}."
    elif placeholder(path, is_path=True):
        fix = "Put your own path there."
    else:
        fix = "Begin it with '/' or './'."
    return f"{what} {shortened(path)!r} is not an absolute path.", fix
