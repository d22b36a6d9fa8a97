"""Keys that an EDF does not have: which one was meant, by its name and by the type of its value."""

import difflib
import functools

from .entry import Entry
from .model import Diagnostic
from .written import KEYS

_BY_TYPE: dict[type, frozenset[str]] = {
    str: frozenset({"base_environment", "image", "workdir"}),
    list: frozenset({"base_environment", "mounts", "devices"}),
    dict: frozenset({"env", "annotations"}),
    bool: frozenset({"entrypoint", "writable"}),
}
#: What other tools call it.
_SYNONYMS = {
    **dict.fromkeys(("envs", "variables", "vars"), "env"),
    **dict.fromkeys(("base", "extends", "inherits", "from", "parent"), "base_environment"),
    **dict.fromkeys(("working_dir", "working_directory", "cwd", "chdir"), "workdir"),
    **dict.fromkeys(("volumes", "volume", "binds", "bind"), "mounts"),
    **dict.fromkeys(("container", "container_image", "img"), "image"),
    "labels": "annotations",
    "device": "devices",
}
_LONGEST = 60


def ignored_key(entry: Entry, kind: type) -> Diagnostic:
    """Say that a key is ignored, and which one was meant, by its name and the type of its value."""
    near = _near(str(entry.path[-1]), kind)
    return entry.diagnostic(
        "unknown-key",
        "an EDF has no such key, so it is ignored.",
        f"Did you mean {near}?" if near else f"Its keys are {', '.join(KEYS)}.",
        severity="warning",
    )


@functools.lru_cache(maxsize=256)
def _near(key: str, kind: type) -> str:
    if len(key) > _LONGEST:
        return ""
    key = key.lower().replace("-", "_")
    fitting = _BY_TYPE.get(kind, frozenset())
    if key in {"environment", "environments"}:
        return "env" if kind is dict else "base_environment"
    if (synonym := _SYNONYMS.get(key, "")) in fitting:
        return synonym
    close = difflib.get_close_matches(key, KEYS, n=3)
    # A key of the right name and the wrong type is still the better guess where it is all but the same.
    same = [each for each in close if each.replace("_", "") == key.replace("_", "")]
    return next(iter(same or [each for each in close if each in fitting]), "")
