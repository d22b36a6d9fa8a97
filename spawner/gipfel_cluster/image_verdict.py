"""The verdict on an image in a few numbers and lines, and what the site's policy makes of it.

`gipfel_extension.gate.scan.verdict` makes it from the image and a mirror of advisories. The hub and a job's
broker, which don't read the image themselves, run `verdict_command` as the user, and read its answer with
`read_verdict`.

The site says with ``GIPFEL_SCAN_POLICY`` what follows: ``report`` (default) shows it, ``warn`` warns of known
vulnerabilities that are high or critical, ``refuse`` keeps an image from starting that has a critical one or
can't be judged.
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

#: File of a run folder, and of a launch's directory.
SECURITY = "security.json"
ADVISORIES = "GIPFEL_ADVISORIES"
POLICY = "GIPFEL_SCAN_POLICY"
EXCEPTIONS = "GIPFEL_SCAN_EXCEPTIONS"
#: Variables by which a site configures verdicts: its hub, jobs, and the jobs that these submit need them.
SECURITY_VARIABLES = (ADVISORIES, POLICY, EXCEPTIONS, "GIPFEL_PACKAGE_INDEX", "GIPFEL_OWN_PACKAGES")
#: Time limit of a verdict that a person waits for.
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
    """A finding or an advisory that an exception covers; ``path`` names the item or the package.

    ``by`` is who accepted it, as the exception or else the owner of its file says.
    """

    path: str
    rule: str
    reason: str
    until: date
    by: str = ""


class SecurityVerdict(Frozen):
    """Known vulnerabilities of an image, and the policy of the site that they are judged by.

    ``critical``, ``high``, ``medium`` and ``low`` count advisories that apply and are not excepted,
    ``fixable`` those for which a fixed version is known. ``not_judged`` says why a part could not be judged,
    in one line each: then the numbers are a lower bound.
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
    excepted: tuple[Excepted, ...] = ()
    advisories_days: float | None = None
    not_judged: tuple[_Line, ...] = Field((), max_length=_MOST_LINES)

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
        """Return what to do; empty where nothing is needed."""
        if self.critical or self.high:
            return (
                f"See `gipfel scan {self.image}`. Rebuild the image, or accept them in a file of exceptions."
            )
        if self.not_judged and self.advisories_days is None:
            return (
                f"Set {ADVISORIES} to a mirror of OSV, which `gipfel scan --update-advisories` updates, and "
                f"see `gipfel scan {self.image}`."
            )
        return f"See `gipfel scan {self.image}`." if self.not_judged else ""

    def to_json(self) -> dict[str, object]:
        """Return the document that is kept and shown."""
        return {**self.model_dump(mode="json"), "level": self.level, "line": self.line, "fix": self.fix}

    @classmethod
    def of_json(cls, content: str | bytes) -> Self:
        """Return the verdict of a document of `to_json`.

        Raises
        ------
        ValueError
            It is not one of this version.
        """
        try:
            document = json.loads(content)
            return cls.model_validate({name: document[name] for name in cls.model_fields if name in document})
        except (TypeError, RecursionError) as error:
            raise ValueError("This is not a verdict.") from error

    def check(self) -> None:
        """Raise where the site's policy keeps the image from starting.

        Raises
        ------
        GipfelError
            The policy is ``refuse``, and the image has a critical vulnerability or can't be judged.
        """
        if self.level == "fail":
            worst = f" {self.worst[0]}." if self.worst else ""
            raise GipfelError(f"The site refuses the image {self.image}. {self.line}{worst}", self.fix)


def policy_of(environment: Mapping[str, str]) -> Policy:
    """Return the site's policy; ``report`` without one, and ``refuse`` for a word that is not one of them.

    A typing error must not let through what the site wants to refuse.
    """
    configured = environment.get(POLICY, "") or "report"
    return next((each for each in get_args(Policy) if each == configured), "refuse")


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return whether site or user want verdicts: a mirror is named, or a policy other than ``report``."""
    return bool(environment.get(ADVISORIES)) or policy_of(environment) != "report"


def verdict_command(python: str, image: str, *, keep: Path | None = None) -> tuple[str, ...]:
    """Return the command that judges an image, and prints the verdict as JSON.

    Parameters
    ----------
    python
        An interpreter with `gipfel_extension`.
    keep
        Directory into which the verdict is written, too; it is then made at the lowest priority.
    """
    kept = () if keep is None else (f"--keep={keep}",)
    return (python, "-I", "-m", _MODULE, *kept, "--", image)


def read_verdict(content: str | bytes, image: str, policy: Policy) -> SecurityVerdict:
    """Return the verdict that a command printed; what can't be read is not judged.

    Parameters
    ----------
    policy
        The policy that counts: the process of a user is not asked for it.
    """
    try:
        return SecurityVerdict.of_json(content).model_copy(update={"image": image, "policy": policy})
    except ValueError:
        return unjudged(image, policy, "The scan of it failed.")


def unjudged(image: str, policy: Policy, reason: str) -> SecurityVerdict:
    """Return the verdict on an image that could not be judged."""
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
    """Return the verdict that was kept; None where there is none, or not one of this version."""
    try:
        return SecurityVerdict.of_json(read_regular(folder / SECURITY, _MAX_BYTES))
    except (OSError, ValueError):
        return None
