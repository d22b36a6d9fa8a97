"""The security verdict on an image: numbers of known vulnerabilities, and what the site's policy demands.

`gipfel_extension.gate.scan.verdict` makes the verdict from the image and a mirror of advisories. The hub and
a job's broker, which don't read the image themselves, run `verdict_command` as the user, and parse its output
with `read_verdict`.

The site sets the policy with ``GIPFEL_SCAN_POLICY``: ``report`` (default) only shows the verdict, ``warn``
warns of known vulnerabilities that are high or critical, ``refuse`` does not start an image that has a
critical one or that can't be judged.
"""

import json
import subprocess
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field

from .model import Frozen, GipfelError, OneLine, one_line, pluralize
from .regular_files import read_regular
from .runs import write_atomically

Policy = Literal["report", "warn", "refuse"]
Level = Literal["pass", "warn", "fail", "unknown"]

#: Name of the file with the verdict in a run folder and in a launch's directory.
SECURITY = "security.json"
ADVISORIES = "GIPFEL_ADVISORIES"
POLICY = "GIPFEL_SCAN_POLICY"
EXCEPTIONS = "GIPFEL_SCAN_EXCEPTIONS"
#: Variables with which a site configures verdicts, for its hub, its jobs, and the jobs that these submit.
SECURITY_VARIABLES = (ADVISORIES, POLICY, EXCEPTIONS, "GIPFEL_PACKAGE_INDEX", "GIPFEL_OWN_PACKAGES")
#: Time limit in seconds of a verdict for which a person waits.
VERDICT_S = 45.0
#: Reason of a verdict that took too long.
LATE = (
    f"Its scan took longer than {VERDICT_S:.0f} s. Run `gipfel edf check --here` with its EDF once: that has "
    "no time limit, and keeps the result."
)
_MODULE = "gipfel_extension.gate.scan.verdict"
_MAX_BYTES = 8 << 20
_MOST_LINES, _MOST_LETTERS = 1000, 2000
_Count = Annotated[int, Field(ge=0)]
_Line = Annotated[OneLine, Field(max_length=_MOST_LETTERS)]


class Excepted(Frozen):
    """A finding or an advisory that an exception covers.

    ``path`` is the item in the image or the package, ``rule`` the finding's rule or the advisory's ID,
    ``until`` the last day of the exception. ``by`` is who accepted it: the name in the exception, else the
    owner of its file.
    """

    path: str
    rule: str
    reason: str
    until: date
    by: str = ""


class SecurityVerdict(Frozen):
    """Known vulnerabilities of an image, and the site's policy about them.

    ``packages`` is the number of packages found. ``critical``, ``high``, ``medium`` and ``low`` count
    advisories that apply and are not excepted, ``fixable`` those of them for which a fixed version is known;
    ``worst`` has a line for each of the worst, ``fixes`` the line to change for each of these.
    ``advisories_days`` is the age of the mirror in days; None without one. ``not_judged`` has a line for each
    part that could not be judged, with the reason: if there are any, the numbers are lower bounds.
    """

    image: str
    digest: str = ""
    policy: Policy = "report"
    packages: _Count = 0
    critical: _Count = 0
    high: _Count = 0
    medium: _Count = 0
    low: _Count = 0
    fixable: _Count = 0
    worst: tuple[_Line, ...] = Field((), max_length=_MOST_LINES)
    fixes: tuple[_Line, ...] = Field((), max_length=_MOST_LINES)
    excepted: tuple[Excepted, ...] = ()
    advisories_days: float | None = None
    not_judged: tuple[_Line, ...] = Field((), max_length=_MOST_LINES)

    @property
    def level(self) -> Level:
        """Return the level under the site's policy; ``unknown`` if only unjudged parts matter."""
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
            parts.append(f"advisories {pluralize(round(self.advisories_days), 'day')} old")
        if self.excepted:
            until = min(each.until for each in self.excepted)
            people = ", ".join(sorted({each.by for each in self.excepted if each.by})[:3])
            by = f" by {people}" if people else ""
            parts.append(f"{len(self.excepted)} excepted{by}, the first until {until}")
        text = "; ".join(parts)
        return f"{text[:1].upper()}{text[1:]}. Policy of the site: {self.policy}."

    @property
    def fix(self) -> str:
        """Return advice in one or two sentences; empty if nothing is needed."""
        if self.critical or self.high:
            first = f"{self.fixes[0].rstrip('.')}. " if self.fixes else ""
            others = "For all lines to change" if first else "For the lines to change"
            return f"{first}{others} see `gipfel scan {self.image}`; or accept them in a file of exceptions."
        if self.not_judged and self.advisories_days is None:
            return (
                f"Set {ADVISORIES} to a mirror of OSV, which `gipfel scan --update-advisories` updates, and "
                f"see `gipfel scan {self.image}`."
            )
        return f"See `gipfel scan {self.image}`." if self.not_judged else ""

    def to_json(self) -> dict[str, object]:
        """Return the document that is stored in `SECURITY` and shown: all fields, level, line and fix."""
        return {**self.model_dump(mode="json"), "level": self.level, "line": self.line, "fix": self.fix}

    @classmethod
    def of_json(cls, content: str | bytes) -> Self:
        """Return the verdict from the JSON text of a `to_json` document.

        Raises
        ------
        ValueError
            It is not such a document of this version.
        """
        try:
            document = json.loads(content)
            return cls.model_validate({name: document[name] for name in cls.model_fields if name in document})
        except (TypeError, RecursionError) as error:
            raise ValueError("This is not a verdict.") from error

    def check(self) -> None:
        """Raise an error if the site's policy forbids to start the image.

        Raises
        ------
        GipfelError
            The policy is ``refuse``, and the image has a critical vulnerability or can't be judged.
        """
        if self.level == "fail":
            worst = f" {self.worst[0]}." if self.worst else ""
            raise GipfelError(f"The site refuses the image {self.image}. {self.line}{worst}", self.fix)


def policy_of(environment: Mapping[str, str]) -> Policy:
    """Return the site's policy; ``report`` if it is not set, ``refuse`` if it is not a valid policy.

    A typing error must not admit images that the site wants to refuse.
    """
    configured = environment.get(POLICY, "") or "report"
    return next((each for each in get_args(Policy) if each == configured), "refuse")


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return whether site or user configured verdicts: a mirror, or a policy other than ``report``."""
    return bool(environment.get(ADVISORIES)) or policy_of(environment) != "report"


def verdict_command(python: str, image: str, *, keep: Path | None = None) -> tuple[str, ...]:
    """Return the command that judges an image, and prints the verdict as JSON.

    Parameters
    ----------
    python
        An interpreter with `gipfel_extension`.
    keep
        Directory to which the command also writes the verdict; it then runs at the lowest priority.
    """
    kept = () if keep is None else (f"--keep={keep}",)
    return (python, "-I", "-m", _MODULE, *kept, "--", image)


def read_verdict(content: str | bytes, image: str, policy: Policy) -> SecurityVerdict:
    """Return the verdict that `verdict_command` printed; one of an unjudged image if that can't be parsed.

    Parameters
    ----------
    image, policy
        Image and policy of the result. Those in the output are ignored, since a user's process printed it.
    """
    try:
        return SecurityVerdict.of_json(content).model_copy(update={"image": image, "policy": policy})
    except ValueError:
        return unjudged(image, policy, "The scan of it failed.")


def unjudged(image: str, policy: Policy, reason: str) -> SecurityVerdict:
    """Return the verdict on an image that could not be judged; ``reason`` is a sentence."""
    return SecurityVerdict(image=image, policy=policy, not_judged=(one_line(reason)[:_MOST_LETTERS],))


def judge_image(python: str, image: str, environment: Mapping[str, str]) -> SecurityVerdict:
    """Judge an image in a process of its own, as this user; it never raises.

    Parameters
    ----------
    python
        An interpreter with `gipfel_extension`.
    environment
        With the site's `SECURITY_VARIABLES`, and without tokens.
    """
    policy = policy_of(environment)
    try:
        done = subprocess.run(
            verdict_command(python, image),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERDICT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return unjudged(image, policy, LATE)
    except OSError as error:
        return unjudged(image, policy, f"The scan of it can't be started: {error.strerror}.")
    return read_verdict(done.stdout, image, policy)


def keep_verdict(folder: Path, verdict: SecurityVerdict) -> None:
    """Write the verdict into a run folder or a launch's directory.

    Raises
    ------
    OSError
        It can't be written.
    """
    write_atomically(folder / SECURITY, json.dumps(verdict.to_json(), indent=1) + "\n")


def kept_verdict(folder: Path) -> SecurityVerdict | None:
    """Return the verdict that `keep_verdict` wrote; None if there is none, or it is not of this version."""
    try:
        return SecurityVerdict.of_json(read_regular(folder / SECURITY, _MAX_BYTES))
    except (OSError, ValueError):
        return None
