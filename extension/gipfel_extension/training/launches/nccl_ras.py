"""NCCL's RAS: which ranks it no longer reaches, and which have launched fewer collectives than others.

NCCL (2.24 and newer) answers on a port of the node while a job uses it; its JSON needs 2.28.7. Any user of
the node may listen on that port instead, so only numbers are taken from the answer, which is bounded.
"""

import contextlib
import json
import socket
from typing import Any

from pydantic import Field

from gipfel_cluster.model import Frozen

ADDRESS = ("127.0.0.1", 28028)
_COMMANDS = (b"CLIENT PROTOCOL 2\n", b"TIMEOUT 5\n", b"SET FORMAT json\n", b"VERBOSE STATUS\n")
_LIMIT_S = 10.0
_MAX_BYTES = 64 << 20
_MAX_RANKS = 100_000


class RasStatus(Frozen):
    """State of the communicator of all ranks: unreachable ranks, and those behind in launched collectives.

    ``behind`` maps a rank to how many collectives it has launched fewer than the rank that has launched most.
    """

    unreachable: tuple[int, ...] = ()
    behind: dict[int, int] = Field(default={})


def read_ras(world: int, address: tuple[str, int] = ADDRESS, limit_s: float = _LIMIT_S) -> RasStatus | None:
    """Query RAS on this node; None where it does not answer or knows no communicator of `world` ranks."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return status_of(read_document(address, limit_s), world)
    return None


def read_document(address: tuple[str, int] = ADDRESS, limit_s: float = _LIMIT_S) -> Any:
    """Return the JSON of RAS on this node, which any user may have written; None where it does not answer."""
    try:
        with socket.create_connection(address, limit_s) as connection:
            answer = _exchange(connection, limit_s)
    except OSError:
        return None
    begin = answer.find(b"{")
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(answer[begin:]) if begin >= 0 else None
    return None


def _exchange(connection: socket.socket, limit_s: float) -> bytes:
    connection.settimeout(limit_s)
    for command in _COMMANDS:
        connection.sendall(command)
    pieces, left = [], _MAX_BYTES
    with contextlib.suppress(TimeoutError):
        while left > 0 and (piece := connection.recv(1 << 16)):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def status_of(document: Any, world: int) -> RasStatus | None:
    """Return the state in RAS's JSON; None where it has no communicator of `world` ranks.

    Ranks of a communicator of all ranks are those of the job; of smaller ones, they are not known.
    """
    for each in document["communicators"]:
        ranks = each.get("ranks") or []
        missing = each.get("missing_ranks") or []
        if len(ranks) + len(missing) != world or world > _MAX_RANKS:
            continue
        launched = {int(one["rank"]): _total(one.get("collective_counts")) for one in ranks}
        most = max(launched.values(), default=0)
        return RasStatus(
            unreachable=tuple(sorted(int(one["rank"]) for one in missing)),
            behind={rank: most - count for rank, count in sorted(launched.items()) if count < most},
        )
    return None


def _total(counts: Any) -> int:
    values = counts.values() if isinstance(counts, dict) else counts or ()
    return sum(int(each) for each in values)
