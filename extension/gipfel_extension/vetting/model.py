"""What a check says: verdicts, scopes, findings and results."""

import math
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from gipfel_cluster.model import Frozen, one_line


class Verdict(StrEnum):
    """One of five, from best to worst; only pass vets, and degraded where the protocol tolerates it."""

    PASS = "pass"  # noqa: S105 - a verdict
    DEGRADED = "degraded"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"
    FAIL = "fail"

    @property
    def rank(self) -> int:
        """0 for the best; higher is worse."""
        return tuple(Verdict).index(self)


def worst(verdicts: "list[Verdict] | tuple[Verdict, ...]") -> Verdict:
    """The worst of them; not run where there is none, because no verdict is not a pass."""
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.NOT_RUN)


def _finite(value: float | None) -> float | None:
    # Beside NaN every comparison says no, and "not below the limit" would be a pass.
    return value if value is None or math.isfinite(value) else None


#: A measured number; None where nothing was measured, and instead of NaN and infinity.
Figure = Annotated[float | None, AfterValidator(_finite)]
#: A measured number that must be one.
Sample = Annotated[float, Field(allow_inf_nan=False)]


class Scope(StrEnum):
    """What one result of a check is about."""

    GPU = "gpu"
    NODE = "node"
    PAIR = "pair"
    ALL = "all"


class Severity(StrEnum):
    """Whether a check decides on a node, or is only shown."""

    ERROR = "error"
    WARNING = "warning"


class Owner(StrEnum):
    """Whose fault a verdict is.

    The image stands for all that the user's environment brings: the image itself, its EDF, and variables.
    """

    NODE = "node"
    LINK = "link"
    IMAGE = "image"
    PROTOCOL = "protocol"
    SITE = "site"


class Finding(Frozen):
    """What a check found about one subject, before thresholds are applied.

    Parameters
    ----------
    verdict
        Pass means: nothing wrong apart from what the threshold will say of the figure.
    subject
        A GPU's UUID, "a|b" for a pair or a link, "all"; empty for the node itself.
    model
        The GPU's model by NVML, for thresholds that depend on it.
    samples
        What the figure was taken from, without the first one.
    owner
        Whose fault it is by its kind, where the check knows; see `owner.with_owners`.
    """

    verdict: Verdict
    reason: str
    fix: str = ""
    subject: str = ""
    figure: Figure = None
    unit: str = ""
    samples: tuple[Sample, ...] = ()
    model: str = ""
    owner: Owner | None = None
    evidence: dict[str, JsonValue] = Field(default_factory=dict)


class CheckResult(Frozen):
    """One verdict of a report.

    Parameters
    ----------
    check
        The check's name in the protocol; "protocol" for what is wrong with the protocol itself.
    type
        The check's type, as in the entry points ``gipfel.checks``.
    subject
        A GPU's UUID, a node, "a|b" for a pair or a link, or "all".
    node
        The node that the verdict counts for; empty where it is no single one.
    reason
        One sentence that can be shown alone.
    figure
        What was measured, in `unit`; None where nothing was.
    threshold
        In words, with its source; empty where there is none.
    seconds
        How long it took on this node.
    owner
        Whose fault it is, in a report; None for what passes. Before, what the check says of its kind.
    """

    check: str
    type: str
    scope: Scope
    subject: str
    node: str = ""
    verdict: Verdict
    reason: str
    fix: str = ""
    figure: Figure = None
    unit: str = ""
    samples: tuple[Sample, ...] = ()
    threshold: str = ""
    started_ns: int = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    severity: Severity = Severity.ERROR
    owner: Owner | None = None
    evidence: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def applies(self) -> bool:
        """Return whether the node has what the check is about; without it, nothing was measured."""
        return self.evidence.get("applies") is not False

    @property
    def left_out(self) -> bool:
        """Return whether it was not measured because there is nothing to measure, and need not be."""
        return self.verdict is Verdict.NOT_RUN and self.evidence.get("left_out") is True

    @property
    def follows(self) -> bool:
        """Return whether it was not run because of what is said elsewhere: it accuses nothing by itself."""
        return self.verdict is Verdict.NOT_RUN and self.evidence.get("follows") is True

    def with_verdict(self, verdict: Verdict, reason: str, *, fix: str = "") -> "CheckResult":
        """The same result with another verdict and its reason."""
        changes = {"verdict": verdict, "reason": one_line(reason), "fix": fix or self.fix}
        return self.model_copy(update=changes)
