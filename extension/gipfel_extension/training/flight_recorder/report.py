"""Report on the dumps: the document of ``gipfel flight-recorder --json``, and the report as text."""

from typing import Any, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, pluralize

_MAX_LINES = 16
_IN_DOCUMENT = {"verdict", "reason", "faulty_ranks", "waiting", "mismatches", "missing_dumps"}
_OF_LATE = {"stragglers", "late_reason"}


class RankLocation(Frozen):
    """Node and GPU of a rank; empty if unknown."""

    rank: int
    node: str = ""
    gpu: str = ""

    def __str__(self) -> str:
        label = [f"rank {self.rank}"]
        if self.node:
            label.append(f"on {self.node}")
        if self.gpu:
            label.append(f"GPU {self.gpu}")
        return " ".join(label)


class FaultyRank(Frozen):
    """A rank that others wait for.

    ``side`` is "device" where the rank has made its call and its GPU has not finished it, else "host".
    ``group`` is the process group in which others wait, ``frame`` the rank's last recorded line of code.
    """

    rank: int
    side: Literal["device", "host"]
    why: str
    group: str = ""
    frame: str = ""


class Side(Frozen):
    """Ranks that made the same call, with the line of code of the first."""

    call: str
    ranks: tuple[int, ...]
    frame: str = ""


class Mismatch(Frozen):
    """Different calls under the same number of a group; the side of most ranks comes first.

    ``kind`` says what differs: "shape" differs with the same number of elements, which lets a call finish;
    in "order", ranks called in two groups in different orders.
    """

    kind: str
    group: str
    sequence: int
    sides: tuple[Side, ...]

    @property
    def line(self) -> str:
        """Return the mismatch as one sentence."""
        sides = "; ".join(
            f"{each.call} by {name_ranks(each.ranks)}{f' ({each.frame})' if each.frame else ''}"
            for each in self.sides
        )
        if self.kind == "order":
            return f"Calls were made in different orders: {sides}."
        return f"Call {self.sequence} of {self.group} differs in {self.kind}: {sides}."


class Straggler(Frozen):
    """A rank that calls late: ``behind_ms`` is its median delay behind the other ranks of a group.

    ``unit`` is the node that all late ranks share, if they are all of its ranks.
    """

    location: RankLocation
    behind_ms: float
    collectives: int
    group: str = ""
    unit: str = ""

    @property
    def evidence(self) -> str:
        """Return what was measured, without the rank."""
        return (
            f"{self.behind_ms:.1f} ms behind the others, the median of {self.collectives} collectives of "
            f"{self.group}"
        )


class FlightReport(Frozen):
    """Report on the ranks that keep others waiting, from all dumps.

    Attributes
    ----------
    verdict
        "cause", "none" if no rank waits, or "unknown" with ``reason``, which says why and what to do.
    faulty_ranks
        Ranks that others wait for; ``culprits`` in the document.
    waiting
        Ranks that wait for others, without the faulty ones.
    missing_dumps
        Known ranks without a dump.
    stragglers
        If no rank waits for good: ranks that call late in most collectives, see `diagnosis.arrivals`.
    late_reason
        Why late ranks can't be told; empty if there are some, or none.
    unreadable
        Files that are not dumps, with the reason.
    """

    verdict: Literal["cause", "none", "unknown"] = "none"
    reason: str = ""
    ranks: tuple[int, ...] = ()
    faulty_ranks: tuple[FaultyRank, ...] = Field(default=(), alias="culprits")
    waiting: tuple[int, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    missing_dumps: tuple[int, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    late_reason: str = ""
    unreadable: tuple[str, ...] = ()
    locations: dict[int, RankLocation] = Field(default={})

    @property
    def document(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return self.model_dump(mode="json", by_alias=True, include=_IN_DOCUMENT | _OF_LATE)

    @property
    def exit_status(self) -> int:
        """Return 1 if the verdict is "unknown", else 0."""
        return 1 if self.verdict == "unknown" else 0

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the report as lines of text, the cause first."""
        lines = [self._headline]
        if len(self.faulty_ranks) > 1:
            lines += [f"  {self._describe(each)}" for each in self.faulty_ranks[:_MAX_LINES]]
            if len(self.faulty_ranks) > _MAX_LINES:
                lines.append(f"  and {len(self.faulty_ranks) - _MAX_LINES} more; --json lists all")
        skipped = int(self.verdict == "cause" and not self.faulty_ranks)
        lines += [each.line for each in self.mismatches[skipped:_MAX_LINES]]
        if self.missing_dumps:
            lines.append(f"There is no dump of {name_ranks(self.missing_dumps)}.")
        lines += [
            f"{each.location} calls {each.evidence}, by corrected clocks"
            for each in self.stragglers[:_MAX_LINES]
        ]
        if self.late_reason:
            lines.append(f"Cannot tell whether a rank is late: {self.late_reason}.")
        lines += [f"can't be read: {each}" for each in self.unreadable[:_MAX_LINES]]
        lines.append(f"dumps read: {len(self.ranks)}")
        return tuple(lines)

    @property
    def _headline(self) -> str:
        if self.verdict == "unknown":
            return f"Cannot tell, because {self.reason}"
        if self.verdict == "none":
            return "No rank waits for another in these dumps."
        waiting = ""
        if self.waiting:
            verb = "waits" if len(self.waiting) == 1 else "wait"
            them = "it" if len(self.faulty_ranks) == 1 else "them"
            waiting = f" {pluralize(len(self.waiting), 'rank')} {verb} for {them}."
        if len(self.faulty_ranks) == 1:
            return f"Cause: {self._describe(self.faulty_ranks[0])}.{waiting}"
        if not self.faulty_ranks:
            return f"Cause: {self.mismatches[0].line}"
        sides = " and ".join(sorted({each.side for each in self.faulty_ranks}))
        return f"Cause: {name_ranks([each.rank for each in self.faulty_ranks])} ({sides} side).{waiting}"

    def _describe(self, faulty: FaultyRank) -> str:
        location = self.locations.get(faulty.rank) or RankLocation(rank=faulty.rank)
        return f"{location} ({faulty.side} side): {faulty.why}"


def name_ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """Return ranks as text, runs of them as ranges: "ranks 0-3, 7"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    more = f" and {len(texts) - 12} more" if len(texts) > 12 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(texts[:12])}{more}"
