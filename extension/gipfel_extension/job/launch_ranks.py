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


def launch_folder(run: Path, launch: str | None) -> Path | None:
    """Return the directory of a launch ``RUN/N`` of a run, by default of the newest; None without one."""
    if launch is not None:
        name, _, number = launch.rpartition("/")
        known = name == run.name and number.isdecimal() and len(number) < 10
        folder = run / LAUNCHES / number
        return folder if known and folder.is_dir() else None
    try:
        numbers = sorted(
            (int(path.name) for path in (run / LAUNCHES).iterdir() if path.name.isdecimal()), reverse=True
        )
    except (OSError, ValueError):
        return None
    folders = (run / LAUNCHES / str(number) for number in numbers[:_MOST_LAUNCHES])
    return next((folder for folder in folders if (folder / "ranks").is_dir()), None)


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
                f"{run.name}/{folder.name}",
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
