"""State of the pair rounds of one check, as an immutable value."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen

from ..quantities import Quantity

Role = Literal["survey", "ring", "suspect", "control"]


class PairSettings(Frozen):
    """Settings for measuring and judging pairs.

    Parameters
    ----------
    survey_rounds
        Rounds in which every node has a partner; one more is within switches, where they are known.
    every_pair_up_to
        With at most this many nodes every pair is measured, in as many rounds as that takes: a slow link is
        only seen by the pair that uses it. 0 for `survey_rounds` always.
    confirm_rounds
        At most this many rounds in which suspects meet cleared nodes; none where nothing was slow.
    bad_below
        Share below the allocation's median from which a node is bad.
    degraded_below
        Share below the median from which a node is degraded or inconclusive.
    mads
        How many MADs below the median a node must be as well.
    floor
        Least figure in the unit of the samples; 0 for none.
    baseline
        Stored figure of healthy pairs of this kind; 0 for none. The allocation's own median must not be
        `bad_below` below it.
    """

    survey_rounds: Annotated[int, Field(ge=1, le=16)] = 5
    every_pair_up_to: Annotated[int, Field(ge=0, le=64)] = 16
    confirm_rounds: Annotated[int, Field(ge=0, le=32)] = 12
    bad_below: Annotated[Quantity, Field(gt=0, lt=1)] = 0.10
    degraded_below: Annotated[Quantity, Field(gt=0, lt=1)] = 0.04
    mads: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0
    floor: Annotated[Quantity, Field(ge=0)] = 0.0
    baseline: Annotated[Quantity, Field(ge=0)] = 0.0


class PairMeasurement(Frozen):
    """One pair in one round.

    Parameters
    ----------
    samples
        Without the first one; empty where the pair gave none.
    error
        Why there are none, as one sentence.
    accused
        The nodes of the pair that did not answer at all, where that is known.
    role
        "survey", "ring" (neighbours on the job's ring that have not met in the survey), "suspect" (a suspect
        with a cleared node, or a slow pair once more) or "control" (two cleared nodes).
    """

    round: int
    first: str
    second: str
    samples: tuple[float, ...] = ()
    error: str = ""
    accused: tuple[str, ...] = ()
    role: Role = "survey"


class PlannedPair(Frozen):
    """Two nodes that measure together in a round."""

    first: str
    second: str
    role: Role = "survey"


class PairRound(Frozen):
    """Disjoint pairs that run side by side."""

    number: int
    pairs: tuple[PlannedPair, ...]


class PairState(Frozen):
    """Everything that `next_round` and `conclude` depend on.

    Parameters
    ----------
    nodes
        The nodes that take part, in the order of the job's ranks: those that already failed alone stay out.
    switches
        Node to the name of its switch, where the topology is known; partners come from other switches.
    history
        Node to the verdicts of its last runs of this check, newest last: True for fit.
    unit
        Of the samples.
    cut_short
        Whether the time for rounds was up before nothing more was to learn.
    """

    check: str
    type: str
    nodes: tuple[str, ...]
    settings: PairSettings = PairSettings()
    switches: Mapping[str, str] = Field(default_factory=dict)
    history: Mapping[str, tuple[bool, ...]] = Field(default_factory=dict)
    measurements: tuple[PairMeasurement, ...] = ()
    unit: str = "B/s"
    cut_short: bool = False

    @property
    def every_pair(self) -> bool:
        """Return whether the nodes are so few that each pair is measured."""
        return len(self.nodes) <= self.settings.every_pair_up_to

    def with_round(self, measurements: "tuple[PairMeasurement, ...]") -> "PairState":
        """Return the state after one more round."""
        return self.model_copy(update={"measurements": (*self.measurements, *measurements)})
