"""The verdict on an image in a few numbers and lines, for form, `edf check`, pre-flight, panel and record.

``python -I -m gipfel_extension.gate.scan.verdict IMAGE`` prints it as JSON, for the hub, as the user.
The site says with ``GIPFEL_SCAN_POLICY`` what follows: ``report`` (default) shows it, ``warn`` warns of known
vulnerabilities that are high or critical, ``refuse`` keeps an image from starting that has a critical one or
can't be judged.
"""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from gipfel_cluster.job.record import DIGESTS
from gipfel_cluster.model import Frozen, GipfelError, pluralize
from gipfel_cluster.regular_files import read_regular
from gipfel_cluster.runs import user_cache, write_atomically

from ..model import Excepted, ScanDocument, Vulnerability
from .cache import ScanCache
from .targets import Exceptions, read_exceptions, scan_targets

Policy = Literal["report", "warn", "refuse"]
Level = Literal["pass", "warn", "fail", "unknown"]

#: File of a run folder, and of a launch's directory.
SECURITY = "security.json"
_POLICY = "GIPFEL_SCAN_POLICY"
_DAY_S = 86400.0
_MAX_AGE_DAYS = 7.0
_MAX_BYTES = 1 << 20
_MOST_LINES = 5


class SecurityVerdict(Frozen):
    """Known vulnerabilities of an image, and the policy of the site that they are judged by.

    ``critical``, ``high``, ``medium`` and ``low`` count advisories that apply and are not excepted,
    ``fixable`` those for which a fixed version is known. ``not_judged`` says why a part could not be judged,
    in one line each: then the numbers are a lower bound.
    """

    image: str
    digest: str = ""
    policy: Policy = "report"
    packages: int = 0
    critical: int = 0
    high: int = 0
    medium: int = 0
    low: int = 0
    fixable: int = 0
    worst: tuple[str, ...] = ()
    excepted: tuple[Excepted, ...] = ()
    advisories_days: float | None = None
    not_judged: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        """Return what the site's policy makes of it."""
        if self.policy == "refuse" and (self.critical or self.not_judged):
            return "fail"
        if self.policy != "report" and (self.critical or self.high):
            return "warn"
        if self.not_judged:
            return "unknown"
        return "warn" if self.critical else "pass"

    @property
    def line(self) -> str:
        """Return the verdict as one line."""
        counts = {"critical": self.critical, "high": self.high, "medium": self.medium, "low": self.low}
        found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        parts = []
        if found:
            fixable = f", {self.fixable} of them with a fixed version" if self.fixable else ""
            parts.append(f"Known vulnerabilities: {found}{fixable}")
        elif not self.not_judged:
            parts.append(f"No known vulnerability in {pluralize(self.packages, 'package')}")
        if self.not_judged:
            parts.append(f"could not be judged: {self.not_judged[0].rstrip('.')}")
        if self.advisories_days is not None:
            parts.append(f"advisories {self.advisories_days:.0f} days old")
        if self.excepted:
            until = min(each.until for each in self.excepted)
            people = ", ".join(sorted({each.by for each in self.excepted if each.by})[:3])
            by = f" by {people}" if people else ""
            parts.append(f"{len(self.excepted)} excepted{by}, the first until {until}")
        text = "; ".join(parts)
        return f"{text[:1].upper()}{text[1:]}. Policy of the site: {self.policy}."

    @property
    def fix(self) -> str:
        """Return what to do; empty where nothing is needed."""
        if self.critical or self.high:
            return (
                f"See `gipfel scan {self.image}`. Rebuild the image, or accept them in a file of exceptions."
            )
        if self.not_judged:
            return (
                "Set GIPFEL_ADVISORIES to a mirror of OSV, which `gipfel scan --update-advisories` updates."
            )
        return ""

    def to_json(self) -> dict[str, object]:
        """Return the document that is kept and shown."""
        return {**self.model_dump(mode="json"), "level": self.level, "line": self.line, "fix": self.fix}


def policy_of(environment: Mapping[str, str]) -> Policy:
    """Return the site's policy; ``report`` without one, and ``refuse`` for a word that is not one of them.

    A typing error must not let through what the site wants to refuse.
    """
    configured = environment.get(_POLICY, "") or "report"
    return next((each for each in get_args(Policy) if each == configured), "refuse")


def image_verdict(image: str, environment: Mapping[str, str] = os.environ) -> SecurityVerdict:
    """Return the verdict on an image of this machine; one in a registry can't be judged.

    It takes seconds for an image that is new, and milliseconds afterwards. It never raises: what can't be
    read is not judged.
    """
    policy, configured = policy_of(environment), environment.get(_POLICY)
    if configured and configured != policy:
        words = ", ".join(get_args(Policy))
        lines = (f"{_POLICY} is {configured[:40]!r}, and must be one of {words}.",)
        return SecurityVerdict(image=image, policy=policy, not_judged=lines)
    path = Path(image)
    if not image.startswith("/"):
        lines = ("It is in a registry. Import it to a file, and scan that.",)
        return SecurityVerdict(image=image, policy=policy, not_judged=lines)
    advisories = environment.get("GIPFEL_ADVISORIES")
    if not advisories:
        lines = ("There is no mirror of advisories.",)
        return SecurityVerdict(image=image, policy=policy, not_judged=lines)
    cache = ScanCache(user_cache("scans", environment), user_cache(DIGESTS, environment))
    try:
        document = scan_targets(
            (path,),
            advisories=Path(advisories),
            max_age_s=_MAX_AGE_DAYS * _DAY_S,
            exceptions=_exceptions(environment),
            cache=cache,
            packages_only=True,
        )
    except (GipfelError, OSError) as error:
        return SecurityVerdict(image=image, policy=policy, not_judged=(str(error)[:300],))
    return summarize(document, image, policy)


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return whether site or user want verdicts: a mirror is named, or a policy other than ``report``."""
    return bool(environment.get("GIPFEL_ADVISORIES")) or policy_of(environment) != "report"


def summarize(document: ScanDocument, image: str, policy: Policy) -> SecurityVerdict:
    """Return the verdict of a scan."""
    counts = Counter(each.severity for each in document.vulnerabilities)
    age_s = document.advisories_age_s
    not_judged = document.not_judged
    if not document.packages and not not_judged:
        not_judged = ("It has no packages that could be read.",)
    return SecurityVerdict(
        image=image,
        digest=next(iter(document.digests.values()), ""),
        policy=policy,
        packages=len(document.packages),
        critical=counts["critical"],
        high=counts["high"],
        medium=counts["medium"],
        low=counts["low"],
        fixable=sum(bool(each.fixed) for each in document.vulnerabilities),
        worst=tuple(map(_sentence, _most_serious(document.vulnerabilities))),
        excepted=document.excepted,
        advisories_days=None if age_s is None or not math.isfinite(age_s) else age_s / _DAY_S,
        not_judged=not_judged,
    )


def _most_serious(found: Sequence[Vulnerability]) -> list[Vulnerability]:
    order = ("critical", "high", "medium", "low")
    return sorted(found, key=lambda each: (order.index(each.severity), not each.fixed))[:_MOST_LINES]


def _sentence(each: Vulnerability) -> str:
    fixed = f", fixed in {each.fixed}" if each.fixed else ", no fixed version is known"
    return f"{each.severity}: {each.id} in {each.package} {each.version}{fixed}"[:300]


def _exceptions(environment: Mapping[str, str]) -> Exceptions:
    today = datetime.now(UTC).date()
    file = environment.get("GIPFEL_SCAN_EXCEPTIONS")
    return read_exceptions(Path(file), today=today) if file else Exceptions(today=today)


def keep_verdict(folder: Path, verdict: SecurityVerdict) -> None:
    """Write the verdict into a run folder or a launch's directory.

    Raises
    ------
    OSError
        It can't be written.
    """
    write_atomically(folder / SECURITY, json.dumps(verdict.to_json(), indent=1) + "\n")


def kept_verdict(folder: Path) -> SecurityVerdict | None:
    """Return the verdict that was kept; None where there is none, or not one of this version."""
    try:
        content = json.loads(read_regular(folder / SECURITY, _MAX_BYTES))
        fields = {name: content[name] for name in SecurityVerdict.model_fields if name in content}
        return SecurityVerdict.model_validate(fields)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def main() -> int:
    """Print the verdict on the image of the command line."""
    if len(sys.argv) != 2:
        sys.stderr.write("gipfel: give the path of an image\n")
        return 2
    sys.stdout.write(json.dumps(image_verdict(sys.argv[1]).to_json()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
