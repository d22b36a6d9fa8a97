"""Protocol: the checks that vet a node, with their limits and tolerances."""

import hashlib
from typing import Annotated

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from .model import CheckResult, Owner, Scope, Severity, Verdict
from .threshold import Threshold

#: Type and name of results about the protocol itself.
PROTOCOL = "protocol"


class ProtocolCheck(Frozen):
    """One entry of a protocol.

    Parameters
    ----------
    type
        As in the entry points ``gipfel.checks``.
    time_limit_s
        None takes the check's own.
    skip_if_alone
        Whether the check may be left out where nothing is there to measure with: one node in the job or, for
        a check within a node, one GPU.
    requirements
        What the image must have; already without what our own implementation does without.
    notes
        What was taken as met or read differently, for the report.
    problem, fix
        Why this entry can't be run; it is then a verdict "not run". Empty for one that can.
    line
        In the protocol's file; 0 where there is none.
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
        """Return whether a node with this verdict is fit as far as this check goes."""
        return verdict is Verdict.PASS or (verdict is Verdict.DEGRADED and self.tolerate_degraded)

    def without_object(self, node: str, reason: str) -> CheckResult:
        """Return the verdict where there is nothing that the check could measure.

        Where the protocol demands a figure, the node is not vetted by it.
        """
        demands = self.threshold is not None and self.severity is Severity.ERROR
        left_out = self.skip_if_alone or not demands
        fix = "" if left_out else "Vet two nodes or more, or set `skip_if_alone: true` in this check."
        evidence: dict[str, JsonValue] = {"applies": False, "left_out": left_out}
        result = self.not_run(node, node, reason, fix)
        return result.model_copy(update={"evidence": evidence, "owner": Owner.PROTOCOL})

    def not_run(self, subject: str, node: str, reason: str, fix: str = "") -> CheckResult:
        """Return the verdict where this check gave none."""
        return CheckResult(
            check=self.name, type=self.type, scope=self.scope, subject=subject, node=node,
            verdict=Verdict.NOT_RUN, reason=reason, fix=fix, severity=self.severity,
        )  # fmt: skip


class VettingProtocol(Frozen):
    """Protocol after loading.

    Parameters
    ----------
    source
        Its file, or the name of a shipped one.
    time_limit_s
        For the whole run; None for the sum of what its checks may take.
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
        """Return a digest of what its checks demand; it identifies a protocol whatever its name."""
        told = {"line", "notes", "problem", "fix"}
        demands = "\n".join(check.model_dump_json(exclude=told) for check in self.checks)
        return hashlib.sha256(demands.encode()).hexdigest()[:16]

    def problems(self) -> tuple[CheckResult, ...]:
        """Return problems of the protocol itself, as verdicts that count for every node."""
        results = []
        for check in self.checks:
            if check.problem:
                where = f"Line {check.line}: " if check.line else ""
                result = check.not_run("all", "", where + check.problem, check.fix)
                # Whoever can't be run was never judged unimportant: it counts, whatever its severity says.
                results.append(
                    result.model_copy(update={"severity": Severity.ERROR, "owner": Owner.PROTOCOL})
                )
        if not any(check.severity is Severity.ERROR for check in self.checks):
            nothing = ProtocolCheck(name=PROTOCOL, type=PROTOCOL, scope=Scope.ALL)
            reason = "The protocol has no check that decides: nothing was vetted."
            fix = "Add a check, or take a shipped protocol such as quick."
            result = nothing.not_run("all", "", reason, fix)
            results.append(result.model_copy(update={"owner": Owner.PROTOCOL}))
        return tuple(results)
