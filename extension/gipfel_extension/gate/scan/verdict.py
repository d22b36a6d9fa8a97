"""Judge an image by its packages and a mirror of advisories, for the form, the terminal and the run record.

The hub and a job's broker run ``python -I -m gipfel_extension.gate.scan.verdict [--keep=DIRECTORY] -- IMAGE``
as the user, which prints the verdict as JSON. `gipfel_cluster.image_verdict` applies the site's policy to it.
"""

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gipfel_cluster.image_digest import DIGESTS
from gipfel_cluster.image_verdict import (
    ADVISORIES,
    EXCEPTIONS,
    POLICY,
    Level,
    Policy,
    SecurityVerdict,
    keep_verdict,
    policy_of,
    unjudged,
)
from gipfel_cluster.model import Frozen, GipfelError, one_line, pluralize
from gipfel_cluster.runs import user_cache

from ..model import SEVERITIES, VERDICTS, Item, ScanDocument, Severity, Vulnerability
from .cache import ScanCache
from .targets import Exceptions, read_exceptions, scan_targets

if TYPE_CHECKING:
    # Only for types: it imports all of the scheduler, which a verdict for a form does not need.
    from gipfel_cluster.workloads.submission import SubmissionContext

_DAY_S = 86400.0
_MAX_AGE_DAYS = 7.0
_MOST_LINES = 5
_MOST_NOT_JUDGED, _MOST_LETTERS, _MOST_FIX_LETTERS = 100, 300, 1000
_LOWEST_PRIORITY = 19
_SERIOUS: Severity = "high"
_MOST_FILES, _MOST_ENTRIES, _MOST_DEPTH = 1000, 20_000, 3
#: Seconds that looking for models in the directories of one launch may take.
_MOST_WALK_S = 2.0
_LEVELS: tuple[Level, ...] = ("pass", "unknown", "warn", "fail")


def image_verdict(
    image: str, environment: Mapping[str, str] = os.environ, declared: str = ""
) -> SecurityVerdict:
    """Return the verdict on an image on this machine; an image in a registry can't be judged.

    This takes seconds for a new image, and milliseconds for one with a cached result. Nothing is raised: an
    image that can't be read counts as not judged.

    Parameters
    ----------
    declared
        File and line of the EDF that names the image, for the advice on what to change.
    """
    policy, configured = policy_of(environment), environment.get(POLICY)
    if configured and configured != policy:
        words = ", ".join(get_args(Policy))
        return unjudged(image, policy, f"{POLICY} is {configured[:40]!r}, and must be one of {words}.")
    if not image.startswith("/"):
        return unjudged(image, policy, "It is in a registry. Import it to a file, and scan that.")
    advisories = environment.get(ADVISORIES)
    if not advisories:
        return unjudged(image, policy, "There is no mirror of advisories.")
    cache = ScanCache(user_cache("scans", environment), user_cache(DIGESTS, environment))
    try:
        document = scan_targets(
            (Path(image),),
            advisories=Path(advisories),
            max_age_s=_MAX_AGE_DAYS * _DAY_S,
            exceptions=_exceptions(environment),
            cache=cache,
            packages_only=True,
            declared=declared,
        )
    except (GipfelError, OSError, ValueError) as error:
        return unjudged(image, policy, str(error)[:300])
    return summarize(document, image, policy)


def summarize(document: ScanDocument, image: str, policy: Policy) -> SecurityVerdict:
    """Return the verdict on an image, given the document of its scan."""
    counts = Counter(each.severity for each in document.vulnerabilities)
    age_s = document.advisories_age_s
    not_judged = tuple(one_line(each)[:_MOST_LETTERS] for each in document.not_judged[:_MOST_NOT_JUDGED])
    if not document.packages and not not_judged:
        not_judged = ("It has no packages that could be read.",)
    serious = _most_serious(document.vulnerabilities)
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
        worst=tuple(map(_sentence, serious)),
        fixes=tuple(one_line(each.fix)[:_MOST_FIX_LETTERS] for each in serious),
        excepted=document.excepted,
        advisories_days=None if age_s is None or not math.isfinite(age_s) else age_s / _DAY_S,
        not_judged=not_judged,
    )


class FilesVerdict(Frozen):
    """Verdict on files that a job is about to load, according to the site's policy."""

    level: Level
    line: str
    fix: str


def model_paths(words: Iterable[str], directory: Path) -> list[Path]:
    """Return the model files and directories that arguments name, also as ``--option=PATH``."""
    names = dict.fromkeys(each for word in words for each in (word, word.partition("=")[2]) if each)
    paths = [os.path.join(directory, name) for name in names]  # noqa: PTH118 - any text, not only paths
    # Unlike methods of Path, these functions never raise.
    return [
        Path(each)
        for each in paths
        if os.path.isdir(each) or (_is_model(each) and os.path.isfile(each))  # noqa: PTH112, PTH113
    ]


def _is_model(name: str) -> bool:
    """Return whether programs load a file with this name as a model, or as a configuration with code."""
    # Imported here, since importing the readers takes longer than looking up a cached verdict on an image.
    from ..models.scan_stream import MODEL_ENDINGS  # noqa: PLC0415

    return name.lower().endswith((*MODEL_ENDINGS, "config.json"))


def _model_files(folder: Path, deadline: float) -> tuple[list[Path], str]:
    """Return the model files in a directory, and why not all of its files were looked at; empty if all were.

    Parameters
    ----------
    deadline
        Time of `time.monotonic` at which to stop: a launch must not wait for a slow file system.
    """
    found: list[Path] = []
    left, entries = [(folder, 0)], 0
    while left:
        place, depth = left.pop(0)
        with suppress(OSError), os.scandir(place) as listing:
            for each in listing:
                if entries == _MOST_ENTRIES:
                    return sorted(found), f"{folder}: stopped after {entries} entries."
                if time.monotonic() > deadline:
                    return sorted(found), f"{folder}: stopped after {entries} entries and {_MOST_WALK_S:g} s."
                entries += 1
                if each.is_dir(follow_symlinks=False):
                    left += [(Path(each.path), depth + 1)] if depth < _MOST_DEPTH else []
                elif _is_model(each.name) and each.is_file():
                    found.append(Path(each.path))
    return sorted(found), ""


def judge_files(paths: Sequence[Path], environment: Mapping[str, str]) -> FilesVerdict | None:
    """Return the verdict on files; None if none is malicious, not understood, or has a serious finding.

    Nothing is loaded. Of a directory, its model files are judged. The policy ``refuse`` refuses malicious
    files and files that can't be judged.
    """
    files: dict[Path, None] = {}
    cut, deadline = [], time.monotonic() + _MOST_WALK_S
    for each in paths:
        inside, stopped = _model_files(each, deadline) if each.is_dir() else ([each], "")
        files |= dict.fromkeys(inside)
        cut += [stopped] if stopped else []
    found = _judge_files(list(files)[:_MOST_FILES], environment)
    lines, level = [], "unknown"
    if len(files) > _MOST_FILES:
        lines.append(f"{len(files) - _MOST_FILES} of {len(files)} model files, which were left out.")
        level = "fail" if policy_of(environment) == "refuse" else "unknown"
    lines += cut
    if not lines:
        return found
    left_out = FilesVerdict(
        level="fail" if level == "fail" else "unknown",
        line=one_line(f"Files could not be judged: {' '.join(lines)}")[:_MOST_LETTERS],
        fix="Name the model's own directory, and scan it with `gipfel scan`.",
    )
    if found is None:
        return left_out
    worse = max(found, left_out, key=lambda each: _LEVELS.index(each.level))
    return worse.model_copy(update={"line": f"{worse.line} {(left_out if worse is found else found).line}"})


def _judge_files(paths: Sequence[Path], environment: Mapping[str, str]) -> FilesVerdict | None:
    refuses = policy_of(environment) == "refuse"
    cache = ScanCache(user_cache("scans", environment))
    try:
        document = scan_targets(
            paths, advisories=None, max_age_s=0.0, exceptions=_exceptions(environment), cache=cache
        )
    except (GipfelError, OSError, ValueError) as error:
        level: Level = "fail" if refuses else "unknown"
        return FilesVerdict(level=level, line=f"Files could not be judged: {one_line(str(error))}", fix="")
    found = sorted(
        (item for item in document.items if item.findings), key=lambda each: VERDICTS.index(each.verdict)
    )
    suspect = [item for item in found if item.verdict == "malicious"]
    unclear = [item for item in found if item.verdict == "not understood"]
    if suspect:
        line = f"{pluralize(len(suspect), 'malicious file')}: {_reason(suspect[0])}"
        fix = "Don't load it: `gipfel scan` lists the reasons. Ask for the weights as safetensors."
        return FilesVerdict(level="fail" if refuses else "warn", line=line, fix=fix)
    if unclear or document.not_judged:
        why = _reason(unclear[0]) if unclear else document.not_judged[0]
        level = "fail" if refuses else "unknown"
        return FilesVerdict(level=level, line=f"Could not be judged: {why}", fix="See `gipfel scan`.")
    serious = [
        (item, finding)
        for item in found
        for finding in item.findings
        if SEVERITIES.index(finding.severity) >= SEVERITIES.index(_SERIOUS)
    ]
    if not serious:
        return None
    item, finding = serious[0]
    more = f" ({len(serious) - 1} more)" if len(serious) > 1 else ""
    line = one_line(f"{item.path}: {finding.message}{more}")[:_MOST_LETTERS]
    return FilesVerdict(level="warn", line=line, fix=finding.fix)


def _reason(item: Item) -> str:
    return one_line(f"{item.path}: {item.findings[0].message}")[:_MOST_LETTERS]


def judge_start(
    image: str, files: Sequence[Path], context: "SubmissionContext", environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Judge what a job is about to run, and return the lines that its user must see.

    Parameters
    ----------
    image
        Path of the image in the job's EDF, as seen outside the container; empty if there is none.
    files
        Files that the job loads, such as its notebook.

    Raises
    ------
    GipfelError
        The site's policy refuses the image or a file, or the job's broker does not answer.
    """
    lines = []
    verdict = context.image_verdict(image) if image else None
    if verdict is not None:
        verdict.check()
        lines.append(f"{image}: {verdict.line}")
    found = judge_files(files, environment) if files else None
    if found is not None and found.level == "fail":
        raise GipfelError(f"The site refuses a file. {found.line}", found.fix)
    if found is not None:
        lines.append(f"{found.line} {found.fix}".strip())
    return tuple(lines)


def _most_serious(found: Sequence[Vulnerability]) -> list[Vulnerability]:
    order = ("critical", "high", "medium", "low")
    return sorted(found, key=lambda each: (order.index(each.severity), not each.fixed))[:_MOST_LINES]


def _sentence(each: Vulnerability) -> str:
    fixed = f", fixed in {each.fixed}" if each.fixed else ", no fixed version is known"
    return one_line(f"{each.severity}: {each.id} in {each.package} {each.version}{fixed}")[:_MOST_LETTERS]


def _exceptions(environment: Mapping[str, str]) -> Exceptions:
    today = datetime.now(UTC).date()
    file = environment.get(EXCEPTIONS)
    return read_exceptions(Path(file), today=today) if file else Exceptions(today=today)


def main() -> int:
    """Print the verdict on the image named on the command line; ``--keep`` also writes it to a directory."""
    arguments = sys.argv[1:]
    keep = ""
    if arguments and arguments[0].startswith("--keep="):
        keep = arguments.pop(0).removeprefix("--keep=")
    if len(arguments) != 2 or arguments[0] != "--":
        sys.stderr.write("gipfel: give [--keep=DIRECTORY] -- IMAGE\n")
        return 2
    if keep:
        os.nice(_LOWEST_PRIORITY)
    verdict = image_verdict(arguments[1])
    if keep:
        try:
            keep_verdict(Path(keep), verdict)
        except OSError as error:
            sys.stderr.write(f"gipfel: the verdict can't be kept in {keep}: {error.strerror}\n")
    sys.stdout.write(json.dumps(verdict.to_json()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
