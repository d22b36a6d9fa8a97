"""What a run computes, as far as its launch says: to whom advice applies."""

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["training", "inference"]
Parallelism = Literal["data", "sharded", "tensor", "pipeline"]
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]


@dataclass(frozen=True)
class Workload:
    """What is known of a run's work; None is unknown, and contradicts nothing.

    Parameters
    ----------
    ranks
        Processes that work together.
    parallelism
        How they share the work; empty where each works alone.
    precision
        What most of its matrices are multiplied in.
    uses
        Names of the rules whose change the launch has made already.
    """

    kind: Kind | None = None
    ranks: int | None = None
    parallelism: frozenset[Parallelism] | None = None
    precision: Precision | None = None
    uses: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """The facts as a dictionary that JSON can hold; unknown ones are None."""
        return {
            "kind": self.kind,
            "ranks": self.ranks,
            "parallelism": None if self.parallelism is None else sorted(self.parallelism),
            "precision": self.precision,
            "uses": sorted(self.uses),
        }


@dataclass(frozen=True)
class Applies:
    """The work that a rule is for; what is empty says nothing about it.

    Parameters
    ----------
    text
        The same in words, after "If this is".
    parallelism
        One of these must be among the run's.
    """

    text: str = ""
    kind: Kind | None = None
    parallelism: tuple[Parallelism, ...] = ()
    precision: tuple[Precision, ...] = ()
    ranks: int = 1

    def to(self, work: Workload) -> bool | None:
        """Return whether the rule applies; None where a fact that it depends on is unknown."""
        known: list[bool | None] = [True]
        if self.kind is not None:
            known.append(None if work.kind is None else work.kind == self.kind)
        if self.parallelism:
            among = work.parallelism
            known.append(None if among is None else bool(among.intersection(self.parallelism)))
        if self.precision:
            known.append(None if work.precision is None else work.precision in self.precision)
        if self.ranks > 1:
            known.append(None if work.ranks is None else work.ranks >= self.ranks)
        return False if False in known else None if None in known else True


#: Work of any kind.
ANY = Applies()
TRAINING = Applies("training", kind="training")
