"""Run one check on one node; exceptions, missing tools and time limits become verdicts.

`unmet_requirement` looks for the packages that a check requires of the image; nothing is installed.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from gipfel_cluster.model import one_line

from .check import Check, CheckContext, GroupCheck, MissingRequirement, UnknownCheck, check_class
from .children import LocalProbes
from .gpus import ReadingError
from .model import CheckResult, Finding, Owner, Scope, Verdict
from .probing import ProbeSpec, probe_file
from .protocol import ProtocolCheck
from .threshold import judge

_VERSIONS_LIMIT_S = 30.0
#: Seconds for a check where neither the protocol nor the check sets a limit.
DEFAULT_LIMIT_S = 60.0


def time_limit(entry: ProtocolCheck) -> float:
    """Return the time limit of a check on a node or a group, in seconds."""
    return entry.time_limit_s or float(getattr(_class(entry), "time_limit_s", DEFAULT_LIMIT_S))


def is_group(entry: ProtocolCheck) -> bool:
    """Return whether the entry is a `GroupCheck`; False for an entry that can't be run."""
    return not entry.problem and hasattr(_class(entry), "probe")


def uses_torch(entry: ProtocolCheck) -> bool:
    """Return whether the check runs a probe that imports torch."""
    return not entry.problem and bool(getattr(_class(entry), "uses_torch", False))


def _class(entry: ProtocolCheck) -> type[Check] | type[GroupCheck] | None:
    try:
        return check_class(entry.type)
    except UnknownCheck:
        return None


def group_probe(entry: ProtocolCheck) -> ProbeSpec:
    """Return the probe that each rank of a group runs for this check, for which `is_group` is true."""
    check: Any = check_class(entry.type).model_validate(entry.parameters)
    spec: ProbeSpec = check.probe(time_limit(entry))
    if entry.scope is Scope.PAIR and entry.parameters.get("per_gpu") is None:
        # One rank on each node measures one path; several ranks would hide which path is slow.
        return spec.model_copy(update={"per_gpu": False})
    return spec


def run_check(entry: ProtocolCheck, context: CheckContext) -> list[CheckResult]:
    """Return the results of a check on this node, within its time limit; never raise an exception.

    The list is never empty, except for a group check on a node that meets its requirements.
    """
    limit = time_limit(entry)
    context = replace(context, time_limit_s=limit)
    started_ns, start = time.time_ns(), time.monotonic()
    findings = _run_with_limit(limit, lambda: _findings(entry, context))
    if findings is None:
        findings = [
            _unfinished(
                f"It did not end within its time limit of {limit:g} s.",
                "Find out why this node is slow, or raise the check's time_limit.",
            )
        ]
    elif not findings and not is_group(entry):
        findings = [
            _unfinished(
                "The check found nothing to test.",
                "Check whether this node has the hardware or files that it tests.",
            )
        ]
    seconds = time.monotonic() - start
    return [result_of(entry, finding, context.node, started_ns, seconds) for finding in findings]


def _findings(  # noqa: PLR0911 - one return for each reason without a verdict
    entry: ProtocolCheck, context: CheckContext
) -> Sequence[Finding]:
    try:
        if entry.problem:
            return [_unfinished(entry.problem, entry.fix, Owner.PROTOCOL)]
        if unmet := unmet_requirement(entry.requirements, context.probes):
            return [unmet]
        check = check_class(entry.type).model_validate(entry.parameters)
        if not isinstance(check, Check):
            return []
        findings = check.run(context)
        return [judge(Finding.model_validate(each), entry.threshold, type_=entry.type) for each in findings]
    except MissingRequirement as error:
        return [_unfinished(error.problem, error.fix, error.owner)]
    except ReadingError as error:
        # A job without GPUs has a protocol that does not fit it.
        return [_unfinished(error.problem, error.fix, None if context.expected_gpus else Owner.PROTOCOL)]
    # A check may come from another package: an exception in it must not make the node pass.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        text = one_line(f"{type(error).__name__}: {error}")[:400]
        fix = "Report this to the author of the check."
        return [_unfinished(f"The check raised an exception: {text}", fix, Owner.PROTOCOL)]


def _unfinished(reason: str, fix: str, owner: Owner | None = None) -> Finding:
    return Finding(verdict=Verdict.NOT_RUN, reason=one_line(reason), fix=one_line(fix), owner=owner)


def result_of(
    entry: ProtocolCheck, finding: Finding, node: str, started_ns: int, seconds: float
) -> CheckResult:
    """Return the result for a finding; it counts for all nodes if `node` is empty."""
    return CheckResult(
        check=entry.name, type=entry.type, scope=entry.scope,
        subject=finding.subject or node or "all", node=node, verdict=finding.verdict,
        reason=one_line(finding.reason), fix=one_line(finding.fix),
        measurement=finding.measurement, unit=finding.unit, samples=finding.samples,
        threshold=entry.threshold.text(finding.unit, finding.model) if entry.threshold else "",
        started_ns=started_ns, seconds=seconds, severity=entry.severity, owner=finding.owner,
        evidence={**finding.evidence, **({"model": finding.model} if finding.model else {})},
    )  # fmt: skip


def _run_with_limit(limit: float, work: Callable[[], Sequence[Finding]]) -> Sequence[Finding] | None:
    """Return the result of `work`; None if the limit is reached."""
    # A thread, because a call that hangs in a file system can't be interrupted.
    answers: list[Sequence[Finding]] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True, name="gipfel-check")
    thread.start()
    thread.join(limit)
    # A thread that ended without an answer must not count as a pass either.
    if answers:
        return answers[0]
    return None if thread.is_alive() else [_unfinished("The check ended without a result.", "Vet it again.")]


def unmet_requirement(requirements: Sequence[str], probes: LocalProbes) -> Finding | None:
    """Return a finding for the first requirement that the image lacks; None if all are met."""
    if not requirements:
        return None
    parsed: dict[str, Requirement] = {}
    for text in requirements:
        try:
            parsed[text] = Requirement(text)
        except InvalidRequirement:
            fix = "Write it like 'torch>=2.5'."
            return _unfinished(f"{text[:80]!r} is not a valid requirement.", fix, Owner.IMAGE)
    spec = ProbeSpec(
        argv=(probe_file("container"), "versions"),
        request={"names": [each.name for each in parsed.values()]},
        time_limit_s=_VERSIONS_LIMIT_S,
    )
    answer = probes.run(spec)
    if answer.error:
        reason = f"The image's packages can't be listed: {answer.error}"
        return _unfinished(reason, "Use an image with Python.", Owner.IMAGE)
    for text, requirement in parsed.items():
        version = answer.evidence.get(requirement.name)
        if not isinstance(version, str):
            fix = "Install it in the image: nothing is installed at run time."
            return _unfinished(f"The image lacks {text}.", fix, Owner.IMAGE)
        if not _fits(requirement, version):
            fix = "Change the image or the protocol: nothing is installed at run time."
            return _unfinished(f"The protocol requires {text}, the image has {version}.", fix, Owner.IMAGE)
    return None


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not requirement.specifier
