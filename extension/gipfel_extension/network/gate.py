"""Destinations that programs behind a gate asked for, from ``gate/`` of a run folder."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from gipfel_cluster.egress.log import DIRECTORY, OUTSIDE, read_closed

from ..telemetry.files import open_regular

_MAX_BYTES = 8 << 20
_MAX_FILES = 256
_MAX_TEXT = 500
#: Bytes of one file that are read at a time.
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class GateRow:
    """Totals of one destination at one node's gates.

    Parameters
    ----------
    name
        Name or address that a program asked for; ranks where ``protocol`` is ``outside``.
    reason
        Why it was refused, or why ranks run outside of the gate.
    address
        The address that was connected to; empty where none was.
    """

    node: str
    name: str
    port: int
    protocol: str
    allowed: bool
    reason: str
    address: str
    count: int
    sent: int
    received: int
    first_ns: int
    last_ns: int

    @property
    def place(self) -> str:
        """Return name and port, as people write them."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.protocol in {"dns", OUTSIDE} else f"{name}:{self.port}"

    @property
    def message(self) -> str:
        """Return the sentence of the event when this first happens."""
        if self.protocol == OUTSIDE:
            return f"Outside of the gate: {self.name} on {self.node}. {self.reason}"
        if self.protocol == "dns":
            return f"The gate refuses to look up {self.name}: {self.reason}."
        verb = "lets a program reach" if self.allowed else "refuses"
        why = "" if self.allowed else f": {self.reason}"
        return f"The gate {verb} {self.place} ({self.protocol.upper()}){why}."

    @property
    def kind(self) -> str:
        """Return the kind of that event."""
        if self.protocol == OUTSIDE:
            return "network_ungated"
        return "network_allowed" if self.allowed else "network_refused"


@dataclass(frozen=True)
class GateRecord:
    """Rows of all gates of a run, refused ones first; ``closed`` says who ended their network."""

    rows: tuple[GateRow, ...] = ()
    closed: str = ""
    damaged: int = 0
    used: bool = False


class GateTail:
    """Reader of what the gates of one node have written since the last call.

    Parameters
    ----------
    run
        The run folder.
    """

    def __init__(self, run: Path, node: str) -> None:
        self._folder, self._node = run / DIRECTORY, node
        self._offsets: dict[str, int] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._was_closed = False
        #: Names of addresses that a gate connected to, by address and port.
        self.names: dict[tuple[str, int], str] = {}

    def read(self) -> list[GateRow]:
        """Return destinations that were not in the log before, each once."""
        found = []
        for path in sorted(self._folder.glob(f"{escape(self._node)}-*.jsonl"))[:_MAX_FILES]:
            for row in filter(None, self._lines(path)):
                if row.node != self._node:
                    continue
                if row.allowed and row.address:
                    self.names[row.address, row.port] = row.name
                key = (row.name, row.port, row.protocol, row.allowed)
                if key not in self._seen:
                    self._seen.add(key)
                    found.append(row)
        return found

    def read_closed(self) -> str:
        """Return who ended the network, once."""
        closed = "" if self._was_closed else read_closed(self._folder)
        self._was_closed = self._was_closed or bool(closed)
        return closed

    def _lines(self, path: Path) -> Iterator[GateRow | None]:
        offset = self._offsets.get(path.name, 0)
        try:
            with open_regular(path) as file:
                file.seek(offset)
                data = file.read(_CHUNK_BYTES)
        except OSError:
            return
        whole = data.rpartition(b"\n")[0]
        if not whole:
            return
        self._offsets[path.name] = offset + len(whole) + 1
        yield from map(_row, whole.split(b"\n"))


def read_gate(run: Path) -> GateRecord:
    """Return what the gates of a run allowed and refused; without rows where none was used."""
    folder = run / DIRECTORY
    newest: dict[tuple[object, ...], GateRow] = {}
    damaged, used = 0, False
    for path in sorted(folder.glob("*.jsonl"))[:_MAX_FILES]:
        try:
            with open_regular(path) as file:
                lines = file.read(_MAX_BYTES).split(b"\n")
        except OSError:
            damaged += 1
            continue
        used = used or b'"protocol": "outside"' not in lines[0]
        for line in filter(None, lines):
            row = _row(line)
            if row is None:
                damaged += 1
            else:
                newest[path.name, row.name, row.port, row.protocol, row.allowed] = row
    rows = _summed(newest)
    ordered = tuple(sorted(rows, key=lambda row: (row.allowed, -row.count)))
    return GateRecord(ordered, read_closed(folder), damaged, used)


def _summed(newest: Mapping[tuple[object, ...], GateRow]) -> list[GateRow]:
    """Add up the rows of the gates of each node: each start of ranks has one."""
    found: dict[tuple[object, ...], GateRow] = {}
    for row in newest.values():
        key = (row.node, row.name, row.port, row.protocol, row.allowed)
        other = found.get(key)
        found[key] = row if other is None else GateRow(**_added(vars(other), row))
    return list(found.values())


def _added(one: Mapping[str, Any], other: GateRow) -> dict[str, Any]:
    return {
        **one,
        "address": other.address or one["address"],
        "count": one["count"] + other.count,
        "sent": one["sent"] + other.sent,
        "received": one["received"] + other.received,
        "first_ns": min(one["first_ns"], other.first_ns),
        "last_ns": max(one["last_ns"], other.last_ns),
    }


def _row(line: bytes) -> GateRow | None:
    """Return the row of a line; None for one that is not valid."""
    try:
        content = json.loads(line)
        texts = {key: content[key] for key in ("node", "name", "protocol", "reason", "address")}
        numbers = {key: content[key] for key in ("port", "count", "sent", "received", "first_ns", "last_ns")}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not all(isinstance(each, str) and len(each) <= _MAX_TEXT for each in texts.values()):
        return None
    if not all(type(each) is int and 0 <= each < 2**63 for each in numbers.values()):
        return None
    return GateRow(**texts, **numbers, allowed=content["allowed"] is True)
