"""Protocol: the checks that vet a node, with their limits and tolerances."""

import hashlib
from typing import Annotated

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from .model import CheckResult, Owner, Scope, Severity, Verdict
from .threshold import Threshold

#: Check name and type of results about the protocol itself.
PROTOCOL = "protocol"


class ProtocolCheck(Frozen):
    """One entry of a protocol.

    Parameters
    ----------
    type
        The check's type, as in the entry points ``gipfel.checks``.
    time_limit_s
        Seconds; None for the check's own limit.
    skip_if_alone
        Whether the check may be skipped where there is nothing to measure with: one node in the job or, for
        a check within a node, one GPU.
    requirements
        Packages that the image must have, without those that Gipfel's implementation does not need.
    notes
        Remarks for the report on keys that were ignored or interpreted.
    problem, fix
        Why this entry can't be run, which gives a verdict "not run"; empty where it can.
    line
        Line in the protocol's file; 0 where there is no file.
    """

    name: str
    type: str
    scope: Scope = Scope.NODE
    severity: Severity = Severity.ERROR
    time_limit_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    tolerate_degraded: bool = False
    skip_if_alone: bool = False
    threshold: Threshold | None = None
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""
    line: int = 0

    def vets(self, verdict: Verdict) -> bool:
        """Return whether this check accepts a node with this verdict."""
        return verdict is Verdict.PASS or (verdict is Verdict.DEGRADED and self.tolerate_degraded)

    def not_applicable(self, node: str, reason: str) -> CheckResult:
        """Return the result where there is nothing that the check could measure.

        It does not vet the node if the protocol sets a threshold and does not set `skip_if_alone`.
        """
        required = self.threshold is not None and self.severity is Severity.ERROR
        may_skip = self.skip_if_alone or not required
        fix = "" if may_skip else "Vet two nodes or more, or set `skip_if_alone: true` in this check."
        evidence: dict[str, JsonValue] = {"applies": False, "not_required": may_skip}
        result = self.not_run(node, node, reason, fix)
        return result.model_copy(update={"evidence": evidence, "owner": Owner.PROTOCOL})

    def not_run(self, subject: str, node: str, reason: str, fix: str = "") -> CheckResult:
        """Return a result "not run" of this check."""
        return CheckResult(
            check=self.name, type=self.type, scope=self.scope, subject=subject, node=node,
            verdict=Verdict.NOT_RUN, reason=reason, fix=fix, severity=self.severity,
        )  # fmt: skip


class VettingProtocol(Frozen):
    """Loaded protocol.

    Parameters
    ----------
    source
        Its file, or the name of a shipped protocol.
    time_limit_s
        Seconds for the whole run; None for the sum of its checks' limits.
    """

    name: str
    checks: tuple[ProtocolCheck, ...]
    description: str = ""
    source: str = ""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    notes: tuple[str, ...] = ()

    @property
    def runnable(self) -> tuple[ProtocolCheck, ...]:
        """Return the checks that can be run, in their order."""
        return tuple(check for check in self.checks if not check.problem)

    @property
    def digest(self) -> str:
        """Return a digest of the checks and their settings, which is independent of the protocol's name."""
        ignored = {"line", "notes", "problem", "fix"}
        settings = "\n".join(check.model_dump_json(exclude=ignored) for check in self.checks)
        return hashlib.sha256(settings.encode()).hexdigest()[:16]

    def problems(self) -> tuple[CheckResult, ...]:
        """Return the problems of the protocol itself, as results that count for every node."""
        results = []
        for check in self.checks:
            if check.problem:
                prefix = f"Line {check.line}: " if check.line else ""
                result = check.not_run("all", "", prefix + check.problem, check.fix)
                # A check that can't be run counts as an error, regardless of its severity.
                results.append(
                    result.model_copy(update={"severity": Severity.ERROR, "owner": Owner.PROTOCOL})
                )
        if not any(check.severity is Severity.ERROR for check in self.checks):
            placeholder = ProtocolCheck(name=PROTOCOL, type=PROTOCOL, scope=Scope.ALL)
            reason = "The protocol has no check of severity error, so nothing was vetted."
            fix = "Add a check, or use a shipped protocol such as quick."
            result = placeholder.not_run("all", "", reason, fix)
            results.append(result.model_copy(update={"owner": Owner.PROTOCOL}))
        return tuple(results)
