"""Ranks that a run's launches recorded: their files in ``launches/N/ranks``, and the layout of the spec."""

from collections.abc import Iterator
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ..diagnosis.reported_roles import ReportedRank
from ..diagnosis.role_layout import parse_layout, roles_of_layout
from ..telemetry.files import read_regular
from ..telemetry.sample import SourceError
from ..training.record.spec import LaunchSpec
from ..training.record.state import LAUNCHES, MAX_BYTES, SPEC, LaunchState, read_rank_records, read_state

_MOST_LAUNCHES = 1000
#: Launches in jobs of their own that are searched for the one of a run.
_MOST_OWN_JOBS = 30


def launch_folder(run: Path, launch: str | None) -> Path | None:
    """Return the directory of a launch of a run, by default of the newest; None without one.

    Parameters
    ----------
    launch
        ``RUN/N`` of a launch in the run, or ``N`` of one that has the run's job for itself.
    """
    if launch is not None:
        name, _, number = launch.rpartition("/")
        known = name in (run.name, "") and number.isdecimal() and len(number) < 10
        folder = (run if name else run.parent) / LAUNCHES / number
        if not known or not folder.is_dir():
            return None
        return folder if name or _is_of_run(folder, run) else None
    for folder in _newest_launches(run)[:_MOST_LAUNCHES]:
        if (folder / "ranks").is_dir():
            return folder
    # Of a launch in a job of its own, only the samples are in the run folder.
    own = _newest_launches(run.parent)[:_MOST_OWN_JOBS]
    return next((folder for folder in own if _is_of_run(folder, run)), None)


def _newest_launches(parent: Path) -> list[Path]:
    try:
        numbers = [int(path.name) for path in (parent / LAUNCHES).iterdir() if path.name.isdecimal()]
    except (OSError, ValueError):
        return []
    return [parent / LAUNCHES / str(number) for number in sorted(numbers, reverse=True)]


def _is_of_run(folder: Path, run: Path) -> bool:
    state = state_of(folder)
    return state is not None and bool(state.run) and Path(state.run).resolve() == run.resolve()


def recorded_ranks(run: Path, launch: str | None = None) -> Iterator[ReportedRank]:
    """Yield what a launch recorded of each rank of its newest attempt, with its coordinates."""
    folder = launch_folder(run, launch)
    if folder is None:
        return
    records = read_rank_records(folder)
    attempt = max((each.attempt for each in records.values()), default=0)
    sizes = _layout(folder)
    coordinates = roles_of_layout(sizes).coordinates
    for rank, each in records.items():
        if each.attempt == attempt:
            fits = each.world == len(coordinates)
            yield ReportedRank(
                rank,
                each.started_ns or 0,
                each.node,
                each.pid,
                each.world or None,
                f"{run.name}/{folder.name}" if folder.is_relative_to(run) else folder.name,
                "launch",
                coordinates[rank] if fits else {},
            )


def state_of(folder: Path) -> LaunchState | None:
    """Return the state of a launch; None where it can't be read."""
    try:
        return read_state(folder)
    except GipfelError:
        return None


def _layout(folder: Path) -> dict[str, int]:
    try:
        spec = LaunchSpec.model_validate_json(read_regular(folder / SPEC, MAX_BYTES))
        return parse_layout(spec.layout)
    except (OSError, ValueError, SourceError):
        return {}


def launch_events(run: Path, most: int = 20) -> list[tuple[int, str, str]]:
    """Return UTC nanoseconds, kind and sentence of what happened to the newest launches of a run."""
    try:
        names = [path.name for path in (run / LAUNCHES).iterdir() if path.name.isdecimal()]
    except OSError:
        return []
    found = []
    for name in sorted(names, key=int)[-most:]:
        state = state_of(run / LAUNCHES / name)
        if state is None:
            continue
        if state.started_ns:
            found.append((state.started_ns, "launch", f"Launch {name} started its ranks."))
        if state.ended_ns:
            ending = f": {state.reason}" if state.reason else "."
            kind = "launch" if state.exit_status == 0 else "launch_failed"
            found.append((state.ended_ns, kind, one_line(f"Launch {name} ended{ending}")))
    return sorted(found)
