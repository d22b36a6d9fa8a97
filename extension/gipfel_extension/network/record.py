"""A run's record of its connections, ``network/<node>.jsonl``: recorders write it."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..telemetry.events import file_name
from ..telemetry.files import open_log, read_regular
from .traffic import Flow, FlowKey

DIRECTORY = "network"
_MAX_BYTES = 16 << 20
_MAX_TEXT = 200
_DIRECTIONS = ("out", "in", "listen")


@dataclass(frozen=True)
class NetworkRow:
    """Totals of one program at one peer and port, on one node.

    Parameters
    ----------
    direction
        ``out``, ``in`` or ``listen``.
    port
        The peer's port for ``out``, else the job's own.
    sent, received
        Bytes; None where the connections' namespace does not count them.
    inside
        True where the address is the cluster's.
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
    """Rows of all nodes, the largest number of bytes first, and the notes about what is missing."""

    rows: tuple[NetworkRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``gipfel net --json``."""
        return {"rows": [dict(vars(each)) for each in self.rows], "notes": list(self.notes)}


class NetworkFile:
    """Writer of one node's file: a line per changed flow, with the totals until then.

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
        handle = open_log(self._path)
        try:
            if os.fstat(handle).st_size + len(lines) <= _MAX_BYTES:
                os.write(handle, lines.encode())
        finally:
            os.close(handle)


def read_network(run: Path) -> NetworkRecord | None:
    """Return the connections that a run's recorders saw; None where they recorded none."""
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
