"""What a flight recorder's dump holds, and what is found in the dumps of all ranks."""

from typing import Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, counted


class Entry(Frozen):
    """One collective or point-to-point call of a rank, as its ring buffer had it.

    Times are nanoseconds since the epoch, None where the rank did not get there.
    """

    group: str
    sequence: int
    operation: str
    state: str
    p2p: bool = False
    inputs: str = ""
    outputs: str = ""
    dtypes: str = ""
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    where: str = ""


class Dump(Frozen):
    """The dump of one rank; ``groups`` maps process groups to their ranks."""

    rank: int
    version: str = ""
    groups: dict[str, tuple[int, ...]] = Field(default={})
    names: dict[str, str] = Field(default={})
    entries: tuple[Entry, ...] = ()


class RankPlace(Frozen):
    """Where a rank runs; empty where nobody noted it."""

    rank: int
    node: str = ""
    gpu: str = ""
    pid: int = 0

    def __str__(self) -> str:
        words = [f"rank {self.rank}"]
        if self.node:
            words.append(f"on {self.node}")
        if self.gpu:
            words.append(f"GPU {self.gpu}")
        return " ".join(words)


class Finding(Frozen):
    """What is wrong at one collective.

    ``missing`` are ranks that never called it, ``culprits`` those who called something else or differently.
    """

    kind: Literal["missing", "type", "size", "dtype", "stuck", "no_dump"]
    group: str = ""
    sequence: int = -1
    operation: str = ""
    message: str
    missing: tuple[RankPlace, ...] = ()
    culprits: tuple[RankPlace, ...] = ()


class Straggler(Frozen):
    """A rank that comes late: by how many milliseconds, the median over collectives, behind the first."""

    place: RankPlace
    behind_ms: float
    collectives: int


class FlightReport(Frozen):
    """What the dumps say together; ``unreadable`` are files that are none, with the reason."""

    ranks: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        lines = [f"dumps of {counted(len(self.ranks), 'rank')}: {', '.join(map(str, self.ranks)) or 'none'}"]
        lines += [each.message for each in self.findings]
        lines += [
            f"{each.place} comes {each.behind_ms:.1f} ms after the first, over {each.collectives} collectives"
            for each in self.stragglers
        ]
        lines += [f"can't be read: {each}" for each in self.unreadable]
        if not self.findings:
            recorded = "Nothing is wrong in what was recorded."
            lines.append(recorded if self.ranks else "Nothing was recorded, so nothing can be said.")
        return tuple(lines)
