"""Security of this server's job: the verdict on its image, its gates, and scans of files."""

import asyncio
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gipfel_cluster.image_verdict import (
    ADVISORIES,
    SecurityVerdict,
    is_configured,
    keep_verdict,
    kept_verdict,
    policy_of,
    unjudged,
)
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import user_cache
from gipfel_cluster.scheduler.machine import CommandResult, run_command

from ..gate.model import SEVERITIES, ScanDocument, worst
from ..gate.scan.cache import ScanCache
from ..gate.scan.verdict import image_verdict
from ..images.environment import SavedEnvironment
from ..job.run_roles import launch_folder
from ..network import read_gate
from ..telemetry.events import read_events, report_to_job
from ..telemetry.files import read_record_file
from .job_responses import JobException, JobSecurity

_OVER_LIMIT = frozenset(("network_rate", "network_volume"))
_MAX_COUNT = 10**6
_SCAN_S = 120.0
_MAX_DOCUMENT_BYTES = 32 << 20
_MOST_FINDINGS = 200
#: Limits the number of parallel scans, since a browser may request many.
_SCANS = asyncio.Semaphore(2)


def job_verdict(run: Path, environment: Mapping[str, str]) -> SecurityVerdict | None:
    """Return the verdict on the image of a run; None without an image.

    A job writes its verdict to its run folder. If a run has none, the image is judged here and the verdict is
    written, provided that the image is visible: in a container it may not be.
    """
    kept = kept_verdict(run)
    if kept is not None:
        return kept
    image = _image_of(run)
    if not image:
        return None
    mirror = environment.get(ADVISORIES, "")
    visible = Path(image).exists() and (not mirror or Path(mirror).exists())
    if image.startswith("/") and is_configured(environment) and not visible:
        # Not written: the job, which sees both, may still write its verdict.
        reason = "It was not judged when the job started, and is not visible in this container."
        return unjudged(image, policy_of(environment), reason)
    verdict = image_verdict(image, environment)
    if (kept := kept_verdict(run)) is not None:
        # The job has written its verdict in the meantime.
        return kept
    with suppress(OSError):
        keep_verdict(run, verdict)
    return verdict


def _image_of(run: Path) -> str:
    """Return the image of a run by its record; empty without one."""
    image = read_record_file(run).get("image")
    path = image.get("path") if isinstance(image, dict) else None
    return path if isinstance(path, str) else ""


def shared_security(run: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a run's security as operators see it: numbers and fixed words, no names of files or hosts."""
    gate = read_gate(run)
    kinds = Counter(event.kind for event in read_events(run / "telemetry"))
    verdict = job_verdict(run, environment)
    days = verdict.advisories_days if verdict else None
    image = "none" if verdict is None else _how_judged(verdict)
    compared = verdict if image in ("judged", "partly") else None
    state = "closed" if gate.closed else "open" if gate.used else "none"
    return {
        "gate": state,
        "image": image,
        "refused": min(_MAX_COUNT, sum(row.count for row in gate.rows if not row.allowed)),
        "over_limit": min(_MAX_COUNT, sum(kinds[kind] for kind in _OVER_LIMIT)),
        "critical": compared.critical if compared else None,
        "high": compared.high if compared else None,
        "malicious": min(_MAX_COUNT, kinds["malicious_file"]),
        "excepted": len(verdict.excepted) if verdict else 0,
        "advisories_days": None if days is None else int(days),
    }


def _how_judged(verdict: SecurityVerdict) -> str:
    """Return whether all packages were compared with advisories (``judged``), some, or none."""
    if not verdict.not_judged:
        return "judged"
    found = verdict.critical or verdict.high or verdict.medium or verdict.low
    return "partly" if found or (verdict.packages and verdict.advisories_days is not None) else "unjudged"


def security_document(run: Path, launch: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a `job_responses.JobSecurity`.

    Parameters
    ----------
    launch
        ``RUN/N`` of a launch; if its pre-flight wrote a verdict, that one is returned.
    """
    folder = launch_folder(run, launch)
    kept = kept_verdict(folder) if folder else None
    verdict = kept or job_verdict(run, environment) or SecurityVerdict(image="")
    days = verdict.advisories_days
    return JobSecurity(
        image=verdict.image, level=verdict.level, line=verdict.line, fix=verdict.fix, policy=verdict.policy,
        packages=verdict.packages, advisories_days=None if days is None else round(days, 1),
        worst=verdict.worst, not_judged=verdict.not_judged,
        excepted=tuple(
            JobException(**each.model_dump(mode="json")) for each in verdict.excepted[:_MOST_FINDINGS]
        ),
    ).model_dump(mode="json")  # fmt: skip


async def _run_gipfel(
    arguments: Sequence[str], environment: Mapping[str, str], task: str, command: str
) -> CommandResult:
    """Run a ``gipfel`` command in a separate process, and return its output.

    Raises
    ------
    GipfelError
        The command takes longer than two minutes, or prints too much.
    """
    argv = (sys.executable, "-I", "-m", "gipfel_extension.cli", *arguments)
    async with _SCANS:
        try:
            return await run_command(
                argv, environment=environment, limit=_SCAN_S, max_bytes=_MAX_DOCUMENT_BYTES
            )
        except TimeoutError:
            raise GipfelError(
                f"{task} took longer than {_SCAN_S:.0f} s.", f"Run `{command}` in a terminal."
            ) from None


def _last_line(output: str) -> str:
    lines = output.splitlines()
    return lines[-1][:300] if lines else ""


async def save_environment(path: Path, shown: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Save what pip and apt installed in this container as a directory from which an image can be built.

    Returns
    -------
    dict
        Lines of what is installed and of what could not be saved, and the command that builds the image.

    Raises
    ------
    GipfelError
        Nothing could be saved, for example because the server runs without an image.
    """
    command = f"gipfel image save-environment {shlex.quote(str(path))}"
    arguments = ("image", "save-environment", "--json", str(path))
    done = await _run_gipfel(arguments, environment, "Saving the environment", command)
    try:
        saved = SavedEnvironment.model_validate_json(done.output)
    except ValueError as error:
        reason = _last_line(done.errors).removeprefix("gipfel: ")
        raise GipfelError(f"The environment could not be saved. {reason}".strip()) from error
    mounts = "".join(f" --mount {shlex.quote(each)}" for each in saved.mounts)
    return {
        "directory": shown,
        "installed": [*saved.debian, *saved.python][:_MOST_FINDINGS],
        "notes": list(saved.notes)[:_MOST_FINDINGS],
        "build": f"gipfel image build {shlex.quote(str(path))} -o NAME.sqsh{mounts}",
    }


async def scan_path(path: Path, shown: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Scan a file or a directory in a separate process, and return the verdict and up to 200 findings.

    Raises
    ------
    GipfelError
        The scan takes longer than two minutes, or fails.
    """
    arguments = ("scan", "--json", str(path))
    done = await _run_gipfel(arguments, environment, f"The scan of {shown}", "gipfel scan")
    try:
        document = ScanDocument.model_validate_json(done.output)
    except ValueError as error:
        raise GipfelError(f"{shown} could not be scanned.", _last_line(done.errors)) from error
    return scanned(document, shown, environment)


def scanned(document: ScanDocument, shown: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the file browser shows of a scan; record a malicious file as an event of the run."""
    verdict = worst(item.verdict for item in document.items)
    findings = [
        {"path": item.path, "verdict": item.verdict, **finding.model_dump()}
        for item in document.items
        for finding in item.findings
    ]
    findings.sort(key=lambda each: -SEVERITIES.index(each["severity"]))
    if verdict == "malicious":
        message = f"{shown} is malicious: {findings[0]['message'] if findings else 'see gipfel scan'}"
        report_to_job(environment, "malicious_file", message, "scan")
    return {
        "verdict": verdict,
        "findings": findings[:_MOST_FINDINGS],
        "left_out": max(0, len(findings) - _MOST_FINDINGS),
        "not_judged": list(document.not_judged)[:_MOST_FINDINGS],
        "excepted": [each.model_dump(mode="json") for each in document.excepted][:_MOST_FINDINGS],
    }


def kept_verdicts(paths: Mapping[str, Path], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the verdicts of files that were scanned and have not changed since, by shown name."""
    cache = ScanCache(user_cache("scans", environment))
    found: dict[str, str] = {}
    for shown, path in paths.items():
        try:
            part = cache.part(path, path.stat(), "all")
        except OSError:
            continue
        if part is not None:
            found[shown] = worst(item.verdict for item in part.items)
    return found
