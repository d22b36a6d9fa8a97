"""What a check requires of the image: looked for, never installed."""

from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from .model import Finding, Owner, Verdict
from .probing import ProbeRunner, ProbeSpec, probe_file

_LIMIT_S = 30.0


def unmet(requirements: Sequence[str], probes: ProbeRunner) -> Finding | None:
    """The first requirement that the image lacks, as a finding that does not pass; None if all are met."""
    if not requirements:
        return None
    wanted: dict[str, Requirement] = {}
    for text in requirements:
        try:
            wanted[text] = Requirement(text)
        except InvalidRequirement:
            return _lacking(f"{text[:80]!r} is no requirement.", "Write it like 'torch>=2.5'.")
    names = [each.name for each in wanted.values()]
    spec = ProbeSpec(argv=(probe_file("versions"),), request={"names": list(names)}, time_limit_s=_LIMIT_S)
    answer = probes.run(spec)
    if answer.error:
        return _lacking(
            f"The image can't be asked for its packages: {answer.error}", "See whether it has a Python."
        )
    for text, requirement in wanted.items():
        version = answer.evidence.get(requirement.name)
        if not isinstance(version, str):
            return _lacking(
                f"The image lacks {text}.", "Put it into the image: nothing is installed at run time."
            )
        if not _fits(requirement, version):
            fix = "Change the image or the protocol: nothing is installed at run time."
            return _lacking(f"The protocol requires {text}, the image has {version}.", fix)
    return None


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return not requirement.specifier


def _lacking(reason: str, fix: str) -> Finding:
    return Finding(verdict=Verdict.NOT_RUN, reason=reason, fix=fix, owner=Owner.IMAGE)
