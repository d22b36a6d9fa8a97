"""Cause of a current hang in one sentence, from dumps and stacks of every rank, and NCCL's RAS."""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, pluralize
from gipfel_cluster.regular_files import modified_ns

from ..flight_recorder import FlightReport, report_of
from ..flight_recorder.report import name_ranks
from ..record import read_rank_records
from .requests import Look, LookRequest, request_dumps, request_look, running_ranks

ADDRESS = ("127.0.0.1", 28028)
_COMMANDS = (b"CLIENT PROTOCOL 2\n", b"TIMEOUT 5\n", b"SET FORMAT json\n", b"VERBOSE STATUS\n")
_LIMIT_S = 10.0
_MAX_BYTES = 64 << 20
_MAX_RANKS = 100_000
#: Longest wait in seconds for dumps and stacks, which ranks write within a second or two.
_GATHER_S = 15.0
_POLL_S = 0.25
_ANALYSIS_S = 60.0
#: Largest number of ranks whose stacks are requested in a hang.
_MOST_STACKS = 4096
#: Number of ranks whose current line of code the cause contains.
_MOST_PLACES = 4
_MAX_CHARACTERS = 1500


class RasStatus(Frozen):
    """State of the communicator of all ranks: unreachable ranks, and those behind in launched collectives.

    ``behind`` maps a rank to the number of collectives by which it is behind the rank that has launched most.
    """

    unreachable: tuple[int, ...] = ()
    behind: dict[int, int] = Field(default={})


def read_ras(world: int, address: tuple[str, int] = ADDRESS, limit_s: float = _LIMIT_S) -> RasStatus | None:
    """Query RAS on this node; None where it does not answer or knows no communicator of `world` ranks."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return status_of(read_document(address, limit_s), world)
    return None


def read_document(address: tuple[str, int] = ADDRESS, limit_s: float = _LIMIT_S) -> Any:
    """Return RAS's JSON on this node, unchecked: any user can listen on its port; None without an answer."""
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

    Only in a communicator of all ranks are RAS's rank numbers those of the job.
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


class HangCause(Frozen):
    """Cause in one sentence, and the ranks that it names."""

    message: str
    ranks: tuple[int, ...] = ()


def find_cause(
    folder: Path, *, ras: Callable[[int], RasStatus | None] = read_ras, gather_s: float = _GATHER_S
) -> HangCause:
    """Collect dumps, stacks and RAS's answer of a running launch, and return the cause of its hang."""
    records, running = read_rank_records(folder), running_ranks(folder)
    since_ns = request_dumps(folder)
    stacks = None
    with contextlib.suppress(GipfelError, ValueError):
        # py-spy would stop all ranks at the same time.
        request = LookRequest(what="stacks", ranks=running[:_MOST_STACKS], method="signal")
        stacks = request_look(folder, request)
    deadline = time.monotonic() + gather_s
    while stacks is not None and time.monotonic() < deadline:
        stacks.poll()
        if not stacks.missing and not _without_dump(folder, running, since_ns):
            break
        time.sleep(_POLL_S)
    report = None
    with contextlib.suppress(GipfelError, OSError, ValueError):
        report = report_of(folder, limit_s=_ANALYSIS_S)
    silent = {}
    if stacks is not None:
        silent = {rank: answer.error for rank, answer in stacks.answers.items() if answer.error}
        silent |= dict.fromkeys(stacks.missing, "it does not answer a signal")
    return describe_cause(report, silent, stacks, ras(len(records)))


def _without_dump(folder: Path, ranks: tuple[int, ...], since_ns: int) -> list[int]:
    return [rank for rank in ranks if modified_ns(folder / "flight_recorder" / f"rank_{rank}") < since_ns]


def describe_cause(
    report: FlightReport | None, silent: dict[int, str], stacks: Look | None, ras: RasStatus | None
) -> HangCause:
    """Return the cause: ranks that the dumps name, else ranks that don't answer, else RAS's finding.

    Parameters
    ----------
    silent
        Ranks that wrote no stacks, with the reason.
    """
    if report is not None and report.verdict == "cause":
        ranks = tuple(each.rank for each in report.faulty_ranks)
        return HangCause(message=_cut(report.lines[0], _notes(ranks, silent, stacks)), ranks=ranks)
    # If more ranks are silent than wrote a dump, their silence does not single out the cause.
    if silent and (report is None or len(silent) <= len(report.ranks)):
        ranks = tuple(silent)
        reasons = sorted(set(silent.values()))
        text = f"Cause: {name_ranks(ranks)} ({'; '.join(reasons[:2])})."
        return HangCause(message=_cut(text, []), ranks=ranks)
    if ras is not None and (ras.unreachable or ras.behind):
        ranks = ras.unreachable or tuple(ras.behind)
        why = (
            "NCCL no longer reaches"
            if ras.unreachable
            else "according to NCCL launched fewer collectives than others"
        )
        return HangCause(message=f"Cause: {name_ranks(ranks)}, which {why}.", ranks=ranks)
    reason = report.lines[0] if report is not None else "Cannot tell, because no rank wrote a dump."
    places = [] if stacks is None else [place for rank in stacks.ranks if (place := stacks.place(rank))]
    common = max(set(places), key=places.count, default="")
    count, total = places.count(common), pluralize(len(places), "rank")
    where = f" {count} of {total} {'is' if count == 1 else 'are'} in {common}." if common else ""
    return HangCause(message=_cut(f"{reason}{where}", []))


def _notes(ranks: tuple[int, ...], silent: dict[int, str], stacks: Look | None) -> list[str]:
    """Return where the named ranks are now."""
    notes = []
    for rank in ranks[:_MOST_PLACES]:
        place = stacks.place(rank) if stacks is not None and rank in stacks.answers else ""
        if rank in silent:
            notes.append(f"Rank {rank}: {silent[rank]}.")
        elif place:
            notes.append(f"Rank {rank} is now in {place}.")
    return notes


def _cut(text: str, notes: list[str]) -> str:
    return " ".join([text, *notes])[:_MAX_CHARACTERS]
