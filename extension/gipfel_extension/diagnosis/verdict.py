"""Verdicts: the findings of a diagnosis, with evidence and confidence."""

from dataclasses import asdict, dataclass
from typing import Any

#: Every kind of verdict, and its meaning.
KINDS = {
    "slow_rank": "ranks take longer than ranks of the same role, or what these ranks share is slow",
    "uneven_stage": "a pipeline stage has more work than the others",
    "uneven_samples": "work differs from sample to sample, so that another rank is slowest in each step",
    "more_work": "a rank computes more than ranks of the same role",
    "host": "a GPU waits for the process that drives it: data loader, interpreter, cores",
    "clock": "a GPU runs at a lower clock than its peers: power, heat, or a cap",
    "link": "GPUs wait for a link that moves less than before",
    "change": "steps take longer, or less long, from some moment on",
    "own_io": "the job itself opens so many files, or moves so much, that its file system feels it",
    "file_system": "a file system answers slowly, whatever the job does",
    "hang": "a rank keeps the others waiting for good",
    "unknown": "something can't be told, and why",
}


@dataclass(frozen=True)
class Verdict:
    """One finding about a job.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    evidence
        What was measured and why it leads to this verdict, in sentences for people.
    ranks
        The ranks that it names; empty if no rank is at fault.
    stage
        The pipeline stage that it names.
    unit
        Hardware unit that the ranks share: ``switch``, ``node``, ``nic`` or ``gpu``, and its name.
    since
        UTC nanoseconds of the first step that shows it; None where unknown.
    confidence
        Confidence in the verdict, from 0 to 1.
    """

    kind: str
    evidence: str
    ranks: tuple[int, ...] = ()
    stage: int | None = None
    unit: str | None = None
    since: int | None = None
    confidence: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is not a kind of verdict")

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a dictionary that JSON can hold."""
        return {**asdict(self), "ranks": list(self.ranks), "confidence": round(self.confidence, 4)}


def cannot_tell(because: str, *, since: int | None = None) -> Verdict:
    """Return a verdict of kind ``unknown``; `because` is a clause or sentences without "cannot tell"."""
    return Verdict("unknown", f"Cannot tell, because {because}", since=since)


def named(ranks: tuple[int, ...], most: int = 8) -> str:
    """Return ranks for a sentence: ``rank 3``, ``ranks 0-7``, ``ranks 1, 5 and 40 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts: list[str] = []
    first = last = ranks[0]
    for rank in (*ranks[1:], -1):
        if rank == last + 1:
            last = rank
            continue
        parts.append(f"{first}" if first == last else f"{first}-{last}")
        first = last = rank
    if len(parts) > most:
        parts = [*parts[:most], f"others ({len(ranks)} in all)"]
    return f"ranks {', '.join(parts)}"
