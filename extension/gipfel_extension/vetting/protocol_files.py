"""Find and load protocols in Gipfel's or vetnode's format.

`find_protocol` accepts user input: a path, a file next to the notebook, one of the user's own protocols, or a
shipped one. `load_protocol` reads a file or a shipped name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.definition_files import YamlMapping, suggestion
from gipfel_cluster.model import GipfelError, one_line

from .protocol import ProtocolCheck, VettingProtocol, parse_entry, read_yaml, read_yaml_file, unusable_entry
from .protocol_vetnode import PREFIX, from_vetnode
from .threshold import quantity

SHIPPED = Path(__file__).parent / "protocols"
#: Keys of vetnode that are ignored, and why.
_IGNORED_KEYS = {"scheduler": "the nodes are those of the job", "pip": "nothing is installed at run time"}
_KEYS = ("name", "description", "time_limit", "checks", "evals", *_IGNORED_KEYS)
_MAX_CHECKS = 500
_SUFFIXES = ("", ".yaml", ".yml")


def shipped_protocols() -> tuple[str, ...]:
    """Return the names of the shipped protocols."""
    return tuple(sorted(each.stem for each in SHIPPED.glob("*.yaml")))


def load_protocol(reference: str | Path) -> VettingProtocol:
    """Return the protocol in a file, or a shipped one by its name.

    Raises
    ------
    GipfelError
        The file can't be read or is not a protocol. A check that can't be run is not an error: it is loaded
        with its `problem`, and its verdict is "not run".
    """
    name = str(reference)
    path = Path(reference)
    if name in shipped_protocols() and not path.is_file():
        path = SHIPPED / f"{name}.yaml"
    elif "\0" in name:
        raise GipfelError(
            "The protocol's name contains a NUL character.", "Name a file or a shipped protocol."
        )
    elif "/" not in name and not path.suffix and not path.exists():
        shipped = ", ".join(shipped_protocols())
        fix = suggestion(name, shipped_protocols()) or f"Name a file, or a shipped protocol: {shipped}."
        raise GipfelError(f"There is no protocol {name!r}.", fix)
    return _protocol(read_yaml_file(path), str(reference), str(path))


def parse_protocol(text: str, source: str = "protocol") -> VettingProtocol:
    """Return the protocol in a text; raise as `load_protocol` does."""
    return _protocol(read_yaml(text, source), source, source)


def _protocol(document: YamlMapping, source: str, path: str) -> VettingProtocol:
    for key in document:
        if key not in _KEYS:
            fix = suggestion(key, _KEYS) or f"Known keys: {', '.join(_KEYS)}."
            raise GipfelError(
                f"{path}, line {document.lines[key]}: {key[:60]!r} is not a key of a protocol.", fix
            )
    present = [key for key in ("checks", "evals") if key in document]
    if len(present) != 1:
        problem = "both 'checks' and 'evals'" if present else "neither 'checks' nor vetnode's 'evals'"
        raise GipfelError(f"{path} is not a protocol: it has {problem}.", "List the checks below 'checks'.")
    entries = document[present[0]]
    if entries is None:
        entries = []
    if not isinstance(entries, list) or len(entries) > _MAX_CHECKS:
        raise GipfelError(
            f"{path}, line {document.lines[present[0]]}: {present[0]!r} is not a list of checks.",
            "Write each check as a list item with 'name' and 'type'.",
        )
    name = document.get("name")
    checks = [check for number, entry in enumerate(entries, 1) for check in _entries(entry, number, document)]
    return VettingProtocol(
        name=one_line(str(name or Path(source).stem))[:200],
        description=one_line(str(document.get("description") or "")),
        checks=tuple(_unique(checks)),
        source=source,
        time_limit_s=_time_limit(document, path),
        notes=tuple(
            f"{key!r} is ignored: {reason}."
            for key, reason in _IGNORED_KEYS.items()
            if document.get(key) is not None
        ),
    )


def _entries(entry: Any, number: int, document: YamlMapping) -> tuple[ProtocolCheck, ...]:
    if not isinstance(entry, Mapping):
        return (
            unusable_entry(
                f"check {number}", "", document.line, f"Check {number} has no keys.", "Set 'name' and 'type'."
            ),
        )
    line = getattr(entry, "line", 0)
    if isinstance(entry, YamlMapping) and str(entry.get("type") or "").startswith(PREFIX):
        return from_vetnode(entry, line=line)
    return (parse_entry(entry, line=line),)


def _unique(checks: list[ProtocolCheck]) -> list[ProtocolCheck]:
    """Return the checks with numbers added to repeated names: a report identifies a check by its name."""
    used: set[str] = set()
    # A numbered name must not be one that the protocol contains.
    written = {check.name for check in checks}
    unique = []
    for check in checks:
        name, number = check.name, 1
        while name in used or (number > 1 and name in written):
            number += 1
            name = f"{check.name} ({number})"
        used.add(name)
        unique.append(check.model_copy(update={"name": name}))
    return unique


def _time_limit(document: YamlMapping, path: str) -> float | None:
    if document.get("time_limit") is None:
        return None
    try:
        seconds, wrong = quantity(document["time_limit"]), "is not positive"
    except ValueError as error:
        seconds, wrong = 0.0, str(error)
    if seconds <= 0:
        line = document.lines["time_limit"]
        raise GipfelError(f"{path}, line {line}: the time limit {wrong}.", "Write it as 3 min.")
    return seconds


def own_protocols(environment: Mapping[str, str]) -> Path:
    """Return the directory of the user's own protocols, ``~/.gipfel/protocols``."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "protocols"


def find_protocol(name: str, *, directory: Path, environment: Mapping[str, str]) -> VettingProtocol:
    """Return the protocol of a path, or of a name: in `directory`, the user's own, or a shipped one.

    Raises
    ------
    GipfelError
        As `load_protocol`.
    """
    if "/" not in name and "\0" not in name:
        folders = (directory, own_protocols(environment))
        paths = (folder / f"{name}{suffix}" for folder in folders for suffix in _SUFFIXES)
        # A file without a suffix is a protocol only if it is named by its path.
        return load_protocol(next((path for path in paths if path.suffix and path.is_file()), name))
    return load_protocol(Path(directory, Path(name).expanduser()) if "\0" not in name else name)


def known_protocols(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the names of protocols and their files; "shipped" for those of Gipfel."""
    # A name's file with the suffix .yaml comes before one with .yml, as for `find_protocol`.
    paths = sorted(own_protocols(environment).glob("*.y*ml"), reverse=True)
    return dict.fromkeys(shipped_protocols(), "shipped") | {path.stem: str(path) for path in paths}
