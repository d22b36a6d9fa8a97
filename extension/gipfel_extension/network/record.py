"""A run's record of its connections: ``network/<node>.jsonl``, and the logs of its gates in ``gate/``.

Recorders write the former, gates the latter; this module reads both. A gate is the proxy through which a
job's programs reach other networks, see `gipfel_cluster.egress`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from gipfel_cluster.egress.log import DIRECTORY as GATE_DIRECTORY
from gipfel_cluster.egress.log import OUTSIDE, read_closed

from ..telemetry.events import file_name
from ..telemetry.files import append_text, open_regular, read_regular
from .traffic import Flow, FlowKey

DIRECTORY = "network"
_MAX_BYTES = 16 << 20
_MAX_TEXT = 200
_DIRECTIONS = ("out", "in", "listen")


@dataclass(frozen=True)
class NetworkRow:
    """Totals of the connections between one program on one node and one peer and port.

    Parameters
    ----------
    direction
        ``out``, ``in`` or ``listen``.
    port
        The peer's port for ``out``, else the job's own.
    sent, received
        Bytes; None if they are not counted, as in other network namespaces.
    inside
        True if the address is in the cluster.
    """

    node: str
    direction: str
    protocol: str
    address: str
    port: int
    program: str
    rank: int | None
    connections: int
    sent: int | None
    received: int | None
    first_ns: int
    last_ns: int
    inside: bool

    @property
    def all_interfaces(self) -> bool:
        """True for a port that is open on all interfaces."""
        return self.direction == "listen" and self.address in ("0.0.0.0", "::")  # noqa: S104 - compared only

    @property
    def with_outside(self) -> bool:
        """True for connections with a peer outside of the cluster, in either direction."""
        return self.direction != "listen" and not self.inside


@dataclass(frozen=True)
class NetworkRecord:
    """Rows of all nodes, those with most bytes first, and notes about what is missing."""

    rows: tuple[NetworkRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``gipfel net --json``."""
        return {"rows": [dict(vars(each)) for each in self.rows], "notes": list(self.notes)}


class NetworkFile:
    """Writer of one node's file: a line per changed flow with its totals until then.

    Parameters
    ----------
    run
        The run folder.
    """

    def __init__(self, run: Path, node: str) -> None:
        self._path = run / DIRECTORY / f"{file_name(node) or 'node'}.jsonl"
        self._node = node

    def append(self, flows: Mapping[FlowKey, Flow], changed: Iterable[FlowKey]) -> None:
        """Append the totals of the changed flows; do nothing once the file has 16 MiB.

        Raises
        ------
        OSError
            The file can't be written.
        """
        lines = "".join(
            json.dumps(_line(self._node, key, flows[key])) + "\n" for key in sorted(changed, key=repr)
        )
        if not lines:
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        append_text(self._path, lines, _MAX_BYTES)


def read_network(run: Path) -> NetworkRecord | None:
    """Return the connections that a run's recorders saw; None if there is no record."""
    newest: dict[tuple[object, ...], NetworkRow] = {}
    notes = []
    damaged = 0
    paths = sorted((run / DIRECTORY).glob("*.jsonl"))
    for path in paths:
        try:
            lines = read_regular(path, _MAX_BYTES).split(b"\n")
        except (OSError, ValueError) as error:
            notes.append(f"{path.name} can't be read: {error}.")
            continue
        for line in filter(None, lines):
            try:
                row = _row(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                damaged += 1
                continue
            newest[row.node, row.direction, row.protocol, row.address, row.port, row.program, row.rank] = row
    if damaged:
        notes.append(f"{damaged} damaged lines were skipped.")
    if not paths:
        return None
    rows = sorted(newest.values(), key=lambda r: (-((r.sent or 0) + (r.received or 0)), r.first_ns))
    return NetworkRecord(tuple(rows), tuple(notes))


def _line(node: str, key: FlowKey, flow: Flow) -> dict[str, Any]:
    counted = flow.counted
    return {
        "node": node,
        "direction": key.direction,
        "protocol": key.protocol,
        "address": key.address,
        "port": key.port,
        "program": key.program,
        "rank": key.rank,
        "connections": flow.connections,
        "sent": flow.sent if counted else None,
        "received": flow.received if counted else None,
        "first_ns": flow.first_ns,
        "last_ns": flow.last_ns,
        "inside": flow.inside,
    }


def _row(content: Mapping[str, Any]) -> NetworkRow:
    def number(name: str) -> int:
        value = content[name]
        if type(value) is not int or not 0 <= value < 2**63:
            raise ValueError(name)
        return value

    def optional(name: str) -> int | None:
        return None if content[name] is None else number(name)

    def text(name: str) -> str:
        value = content[name]
        if not isinstance(value, str) or len(value) > _MAX_TEXT:
            raise ValueError(name)
        return value

    if content["direction"] not in _DIRECTIONS:
        raise ValueError(content["direction"])
    return NetworkRow(
        text("node"),
        text("direction"),
        text("protocol"),
        text("address"),
        number("port"),
        text("program"),
        optional("rank"),
        number("connections"),
        optional("sent"),
        optional("received"),
        number("first_ns"),
        number("last_ns"),
        content["inside"] is True,
    )


_MAX_GATE_BYTES = 8 << 20
_MAX_FILES = 256
_MAX_GATE_TEXT = 500
#: Bytes of one file that are read at a time.
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class GateRow:
    """Totals of the requests for one destination at one node's gates.

    Parameters
    ----------
    name
        Name or address that a program requested; names of ranks if ``protocol`` is ``outside``.
    protocol
        Protocol of the connection, ``dns`` for a lookup, or ``outside`` for ranks outside of the gate.
    reason
        Why the destination was refused, or why ranks run outside of the gate.
    address
        Address to which the gate connected; empty if it did not.
    sent, received
        Bytes.
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
        """Return the destination as ``name:port``; the name alone for lookups and ranks."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.protocol in {"dns", OUTSIDE} else f"{name}:{self.port}"

    @property
    def message(self) -> str:
        """Return the message of the event that reports this row's first occurrence."""
        if self.protocol == OUTSIDE:
            return f"Outside of the gate: {self.name} on {self.node}. {self.reason}"
        if self.protocol == "dns":
            return f"The gate refuses to look up {self.name}: {self.reason}."
        verb = "lets a program reach" if self.allowed else "refuses"
        why = "" if self.allowed else f": {self.reason}"
        return f"The gate {verb} {self.place} ({self.protocol.upper()}){why}."

    @property
    def kind(self) -> str:
        """Return the kind of this event, a key of ``events.KINDS``."""
        if self.protocol == OUTSIDE:
            return "network_ungated"
        return "network_allowed" if self.allowed else "network_refused"


@dataclass(frozen=True)
class GateRecord:
    """Rows of all gates of a run, refused destinations first.

    ``closed`` says who cut the network, empty if nobody did; ``damaged`` is the number of invalid lines;
    ``used`` is True if the run had a gate.
    """

    rows: tuple[GateRow, ...] = ()
    closed: str = ""
    damaged: int = 0
    used: bool = False


class GateTail:
    """Incremental reader of the logs of one node's gates.

    Parameters
    ----------
    run
        The run folder.
    """

    def __init__(self, run: Path, node: str) -> None:
        self._folder, self._node = run / GATE_DIRECTORY, node
        self._offsets: dict[str, int] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._was_closed = False
        #: Requested name of each address to which a gate connected, by address and port.
        self.names: dict[tuple[str, int], str] = {}

    def read(self) -> list[GateRow]:
        """Return a row for each destination that was not in the logs at earlier calls."""
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
        """Return who cut the network, at the first call after that; otherwise an empty text."""
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
        yield from map(_gate_row, whole.split(b"\n"))


def read_gate(run: Path) -> GateRecord:
    """Return what the gates of a run allowed and refused; without rows if the run had no gate."""
    folder = run / GATE_DIRECTORY
    newest: dict[tuple[object, ...], GateRow] = {}
    damaged, used = 0, False
    for path in sorted(folder.glob("*.jsonl"))[:_MAX_FILES]:
        try:
            with open_regular(path) as file:
                lines = file.read(_MAX_GATE_BYTES).split(b"\n")
        except OSError:
            damaged += 1
            continue
        used = used or b'"protocol": "outside"' not in lines[0]
        for line in filter(None, lines):
            row = _gate_row(line)
            if row is None:
                damaged += 1
            else:
                newest[path.name, row.name, row.port, row.protocol, row.allowed] = row
    rows = _summed(newest)
    ordered = tuple(sorted(rows, key=lambda row: (row.allowed, -row.count)))
    return GateRecord(ordered, read_closed(folder), damaged, used)


def _summed(newest: Mapping[tuple[object, ...], GateRow]) -> list[GateRow]:
    """Add up the rows of the gates of each node: each start of ranks has its own gate."""
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


def _gate_row(line: bytes) -> GateRow | None:
    """Return the row in a line; None for an invalid line."""
    try:
        content = json.loads(line)
        texts = {key: content[key] for key in ("node", "name", "protocol", "reason", "address")}
        numbers = {key: content[key] for key in ("port", "count", "sent", "received", "first_ns", "last_ns")}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not all(isinstance(each, str) and len(each) <= _MAX_GATE_TEXT for each in texts.values()):
        return None
    if not all(type(each) is int and 0 <= each < 2**63 for each in numbers.values()):
        return None
    return GateRow(**texts, **numbers, allowed=content["allowed"] is True)
