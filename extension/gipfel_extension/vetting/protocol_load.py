"""Loading a protocol: a shipped name, or a file in our form or in vetnode's."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

from .protocol import ProtocolCheck, VettingProtocol
from .protocol_entry import broken, entry_of, near
from .protocol_vetnode import PREFIX, from_vetnode
from .protocol_yaml import YamlMapping, read_yaml, read_yaml_file
from .quantities import quantity

SHIPPED = Path(__file__).parent / "protocols"
_KEYS = ("name", "description", "time_limit", "checks", "evals", "scheduler", "pip")
_MOST_CHECKS = 500


def shipped_protocols() -> tuple[str, ...]:
    """The names of the protocols that come along."""
    return tuple(sorted(each.stem for each in SHIPPED.glob("*.yaml")))


def load_protocol(reference: str | Path) -> VettingProtocol:
    """The protocol in a file, or a shipped one by its name.

    Raises
    ------
    GipfelError
        The file can't be read or is no protocol. A check that can't be run raises nothing: it is there with
        its `problem`, and its verdict is "not run".
    """
    name = str(reference)
    path = Path(reference)
    if name in shipped_protocols() and not path.is_file():
        path = SHIPPED / f"{name}.yaml"
    elif "\0" in name:
        raise GipfelError("The protocol's name holds a NUL.", "Name a file or a shipped protocol.")
    elif "/" not in name and not path.suffix and not path.exists():
        shipped = ", ".join(shipped_protocols())
        fix = near(name, shipped_protocols()) or f"Shipped are: {shipped}; or name a file."
        raise GipfelError(f"There is no protocol {name!r}.", fix)
    return _protocol(read_yaml_file(path), str(reference), str(path))


def parse_protocol(text: str, source: str = "protocol") -> VettingProtocol:
    """The protocol in a text; `load_protocol` for its errors."""
    return _protocol(read_yaml(text, source), source, source)


def protocol_digest(text: str) -> str:
    """A short name for exactly this text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _protocol(document: YamlMapping, source: str, where: str) -> VettingProtocol:
    for key in document:
        if key not in _KEYS:
            fix = near(key, _KEYS) or f"Known are: {', '.join(_KEYS)}."
            raise GipfelError(
                f"{where}, line {document.lines[key]}: {key[:60]!r} is no key of a protocol.", fix
            )
    present = [key for key in ("checks", "evals") if key in document]
    if len(present) != 1:
        problem = "both 'checks' and 'evals'" if present else "neither 'checks' nor vetnode's 'evals'"
        raise GipfelError(f"{where} is no protocol: it has {problem}.", "List its checks below 'checks'.")
    entries = document[present[0]]
    if entries is None:
        entries = []
    if not isinstance(entries, list) or len(entries) > _MOST_CHECKS:
        raise GipfelError(
            f"{where}, line {document.lines[present[0]]}: {present[0]!r} is no list of checks.",
            "Write each check as a list item with 'name' and 'type'.",
        )
    name = document.get("name")
    checks = [check for number, entry in enumerate(entries, 1) for check in _entries(entry, number, document)]
    return VettingProtocol(
        name=one_line(str(name or Path(source).stem))[:200],
        description=one_line(str(document.get("description") or "")),
        checks=tuple(_unique(checks)),
        source=source,
        time_limit_s=_time_limit(document, where),
        notes=tuple(_notes(document)),
    )


def _entries(entry: Any, number: int, document: YamlMapping) -> tuple[ProtocolCheck, ...]:
    if not isinstance(entry, Mapping):
        return (
            broken(
                f"check {number}", "", document.line, f"Check {number} has no keys.", "Give it name and type."
            ),
        )
    line = getattr(entry, "line", 0)
    if isinstance(entry, YamlMapping) and str(entry.get("type") or "").startswith(PREFIX):
        return from_vetnode(entry, line=line)
    return (entry_of(entry, line=line),)


def _unique(checks: list[ProtocolCheck]) -> list[ProtocolCheck]:
    """A report names a check by its name: a second one of the same name is numbered."""
    taken: set[str] = set()
    # A name that somebody wrote is not given to another check.
    written = {check.name for check in checks}
    unique = []
    for check in checks:
        name, number = check.name, 1
        while name in taken or (number > 1 and name in written):
            number += 1
            name = f"{check.name} ({number})"
        taken.add(name)
        unique.append(check.model_copy(update={"name": name}))
    return unique


def _time_limit(document: YamlMapping, where: str) -> float | None:
    if document.get("time_limit") is None:
        return None
    try:
        seconds, wrong = quantity(document["time_limit"]), "is not positive"
    except ValueError as error:
        seconds, wrong = 0.0, str(error)
    if seconds <= 0:
        line = document.lines["time_limit"]
        raise GipfelError(f"{where}, line {line}: the time limit {wrong}.", "Write it as 3 min.")
    return seconds


def _notes(document: YamlMapping) -> list[str]:
    notes = []
    if document.get("scheduler") is not None:
        notes.append("'scheduler' is not needed: the nodes are taken from the job.")
    if document.get("pip") is not None:
        notes.append("'pip' is not used: nothing is installed at run time.")
    return notes
