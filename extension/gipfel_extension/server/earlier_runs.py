"""A run beside earlier runs of the same script, size and image, which are chosen here or by the user."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field

from gipfel_cluster.model import OneLine
from gipfel_cluster.workloads.run_folders import find_run, is_run_folder

from ..diagnosis.pace import PaceComparison, RunPace, compare_paces
from ..job.run_roles import launch_folder
from ..telemetry.files import read_record_file
from ..telemetry.store.overview import read_overview
from ..training.results import program_of_run
from ..training.results.program import Program, program_of_launch
from .job import JobQuery
from .job_cache import StampedCache, metrics_stamp
from .job_responses import EarlierRun, EarlierRuns
from .run_comparison import pace_in

#: Run folders that are looked at, and earlier runs whose steps are read, the newest of each.
_MOST_FOLDERS, _MOST_RUNS = 500, 20
#: Options that differ between equal runs: identifiers and names. Values that are paths are left out as well.
_OWN = re.compile(r"(?:^|[._])(?:\w*id|name|seed|port|\w*dir(?:ectory)?|\w*path|resume\w*|tags?)$")
#: Differences that keep a run from being chosen, in the order in which they are examined.
_REASONS = ("another size", "another image", "other GPUs", "other arguments")
_paces: StampedCache[tuple[RunPace | str | None]] = StampedCache(64)


class EarlierQuery(JobQuery):
    """Run of the page; ``beside`` has the names of the runs that the user chose, separated by commas."""

    beside: OneLine = Field("", max_length=4000)


@dataclass(frozen=True)
class _Identity:
    """Properties that two runs must have in common for their steps to be the same work."""

    program: str
    started: str
    ranks: int | None
    image: str
    gpus: frozenset[str]
    options: Mapping[str, str]


def earlier_runs(folder: Path, beside: Sequence[str] = ()) -> EarlierRuns:
    """Return a run's steps beside those of earlier runs.

    Parameters
    ----------
    folder
        Run folder; earlier runs are beside it.
    beside
        Names of the runs to compare with, whatever differs; empty for those of the same script, size, image,
        GPUs and arguments.
    """
    own = _identity(folder)
    if own is None:
        text = "Cannot tell, because the program of this run is not recorded."
        return _document("", PaceComparison("cannot tell", text), (), automatic=not beside)
    found: list[tuple[Path, _Identity]] = []
    for other in _folders(folder):
        identity = _identity(other)
        if identity is None:
            continue
        is_earlier = identity.program == own.program and identity.started < own.started
        if other.name in beside or is_earlier:
            found.append((other, identity))
    found.sort(key=lambda each: each[1].started, reverse=True)
    reasons = {path: _difference(own, identity) for path, identity in found}
    chosen = [path for path, _ in found if (path.name in beside if beside else not reasons[path])]
    chosen = chosen[:_MOST_RUNS]
    paces = {path: _pace(path) for path in chosen}
    usable = [each for each in paces.values() if isinstance(each, RunPace)]
    now = _pace(folder)
    compared = _compare(now, usable, [path.name for path in chosen], Counter(filter(None, reasons.values())))
    rows = [
        EarlierRun(
            name=path.name,
            started=identity.started,
            chosen=path in paces,
            reason=reasons[path],
            seconds=pace.seconds if isinstance(pace := paces.get(path), RunPace) else None,
        )
        for path, identity in found[:_MOST_FOLDERS]
    ]
    return _document(own.program, compared, rows, automatic=not beside)


def _document(
    program: str, compared: PaceComparison, rows: Sequence[EarlierRun], *, automatic: bool
) -> EarlierRuns:
    numbers = {name: getattr(compared, name) for name in PaceComparison.__dataclass_fields__}
    return EarlierRuns.model_validate(
        {"program": program, "automatic": automatic, "runs": list(rows), **numbers}
    )


def _compare(
    now: RunPace | str | None, usable: Sequence[RunPace], names: Sequence[str], others: Counter[str]
) -> PaceComparison:
    if not isinstance(now, RunPace):
        reason = now or "this run has logged no steps."
        return PaceComparison("cannot tell", f"Cannot tell, because {reason}")
    if not names:
        because = "no earlier run has the same script, size, image, GPUs and arguments"
        rest = ", ".join(f"{count} with {reason}" for reason, count in others.items())
        return PaceComparison("cannot tell", f"First baseline: {because}{f' ({rest})' if rest else ''}.")
    if not usable:
        return PaceComparison(
            "cannot tell", f"Cannot tell, because {len(names)} earlier runs logged no steps."
        )
    # A run with fewer ranks than planned does other work in a step.
    same = [each for each in usable if each.ranks == now.ranks]
    return compare_paces(now, same or usable)


def earlier_document(folder: Path, query: EarlierQuery) -> dict[str, Any]:
    """Return the content of `EarlierRuns` for the job page."""
    beside = [name for name in query.beside.split(",") if name]
    return earlier_runs(folder, beside[:_MOST_RUNS]).model_dump(mode="json")


def _folders(folder: Path) -> list[Path]:
    """Return the other run folders of the user, the most recently changed ones if there are many."""
    try:
        found = [each for each in islice(folder.parent.iterdir(), 100_000) if is_run_folder(each)]
        found.sort(key=lambda each: each.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []
    return [each for each in found if each.name != folder.name][:_MOST_FOLDERS]


def _identity(folder: Path) -> _Identity | None:
    """Return the identity of a run; None if its program or its begin is not recorded."""
    record = read_record_file(folder)
    started = record.get("started")
    program = program_of_run(folder) or _of_launch(folder)
    if program is None or not isinstance(started, str):
        return None
    image = record.get("image")
    options = {
        name: value for name, value in program.options.items() if "/" not in value and not _OWN.search(name)
    }
    devices = read_overview(folder / "telemetry", buckets=1, metrics=()).devices
    gpus = frozenset(each.name for each in devices if each.kind == "gpu")
    digest = str(image.get("digest") or "") if isinstance(image, dict) else ""
    return _Identity(program.name, started, program.ranks, digest, gpus, options)


def _of_launch(folder: Path) -> Program | None:
    launch = launch_folder(folder, None)
    return None if launch is None else program_of_launch(launch)


def _difference(own: _Identity, other: _Identity) -> str:
    """Return what differs first; empty if nothing does."""
    differs = (
        own.ranks != other.ranks,
        own.image != other.image,
        own.gpus != other.gpus,
        own.options != other.options,
    )
    if own.program != other.program:
        return "another script"
    return next((reason for reason, is_other in zip(_REASONS, differs, strict=True) if is_other), "")


def _pace(folder: Path) -> RunPace | str | None:
    return _paces.get(folder, metrics_stamp(folder), lambda: (pace_in(folder),))[0]


def earlier_text(name: str, *, as_json: bool, environment: Mapping[str, str] = os.environ) -> str:
    """Return a run's steps beside those of earlier runs, as lines of text or one line of JSON.

    Raises
    ------
    GipfelError
        There is no such run.
    """
    found = earlier_runs(Path(find_run(name, environment).folder))
    if as_json:
        return found.model_dump_json()
    lines = [found.sentence]
    if found.least is not None and found.most is not None:
        sure = f", confidence {found.confidence:.2f}" if found.confidence else ""
        lines.append(f"95 %: {found.least:+.1%} to {found.most:+.1%}{sure}")
    for each in found.runs:
        pace = "no steps" if each.seconds is None else f"{each.seconds:.4g} s a step"
        lines.append(f"  {each.name}  {pace if each.chosen else f'left out: {each.reason}'}")
    return "\n".join(lines)
