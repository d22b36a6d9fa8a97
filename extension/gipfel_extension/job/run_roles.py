"""Roles of a run's ranks from all sources, and contradictions between them.

A role is a rank's coordinates on the axes of parallelism, such as ``pp=1, dp=0``. The first available source
is used: a layout that a person typed, ``roles.json`` in the run folder, or the ranks' reports, which come
from the program, torch's device mesh, DDP or FSDP, or the launch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ..diagnosis.reported_roles import REPORTS_FILE, ReportedRank, RoleReports, read_reports
from ..diagnosis.roles import Roles, check_size, parse_layout, read_roles, roles_of, roles_of_layout
from ..diagnosis.verdict import named
from ..telemetry.files import read_regular
from ..telemetry.ranks import RankLocation, read_ranks
from ..telemetry.sample import SourceError
from ..topology.read import Topology, read_topology
from ..training.record import LAUNCHES, MAX_BYTES, SPEC, LaunchState, read_rank_records, read_state
from ..training.record.spec import LaunchSpec

#: File in a run folder in which a person may write the ranks' roles.
ROLES_FILE = "roles.json"
_UNTIL_THEN = "Until then roles are taken as unknown."
#: Maximum number of GPUs used by several ranks that are reported one by one.
_MOST_SHARED = 3


@dataclass(frozen=True)
class RunRoles:
    """Ranks of a run, their roles and where they run.

    Parameters
    ----------
    roles
        Roles with the nodes, GPUs, NICs and switches of the ranks.
    source
        ``typed``, ``file``, ``rank``, ``mesh``, ``wrapper`` or ``launch``; empty where roles are unknown.
    world_size
        Number of ranks; None if neither ranks nor roles show it.
    problems
        Contradictions, each with a fix.
    """

    roles: Roles
    source: str = ""
    world_size: int | None = None
    locations: tuple[RankLocation, ...] = ()
    reports: RoleReports = RoleReports()  # noqa: RUF009 - frozen
    problems: tuple[SourceError, ...] = ()

    @property
    def present(self) -> tuple[int, ...]:
        """Ranks that were seen as a process or that reported themselves."""
        return tuple(sorted({*self.reports.ranks, *(each.rank for each in self.locations)}))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that were never seen; empty where the world size is unknown."""
        return tuple(sorted(set(range(self.world_size or 0)).difference(self.present)))


def roles_of_run(
    run: Path, layout: str = "", launch: str | None = None, *, seen: Iterable[int] = ()
) -> RunRoles:
    """Return the ranks of a run and their roles; damaged files become problems and raise no error.

    Parameters
    ----------
    layout
        Sizes of axes that a person typed, see ``diagnosis.roles.parse_layout``.
    launch
        ``RUN/N`` of one of several launches in the run; by default the one that reported last.
    seen
        Ranks that are known from other sources, such as those that logged steps.
    """
    problems: list[SourceError] = []
    try:
        reports = read_reports(run, launch, recorded_ranks(run, launch))
    except OSError as error:
        reports = RoleReports()
        reason = error.strerror or str(error)
        problems.append(SourceError(f"{REPORTS_FILE} can't be read: {reason}.", "Check its permissions."))
    locations = _current(read_ranks(run / "telemetry"), reports)
    known = {*seen, *reports.ranks, *(each.rank for each in locations)}
    size = reports.world_size
    roles, source = Roles(), ""
    for name, read in _sources(run, layout, reports):
        try:
            roles, source = _checked(read(), size, known, name), name
            break
        except SourceError as error:
            problems.append(error)
            roles = Roles()
    if size is None:
        size = max({*roles.coordinates, *roles.places, *known}, default=-1) + 1 or None
    roles = _with_nodes(roles.with_places(locations), reports)
    topology = read_topology(run, {own["node"] for own in roles.places.values() if own.get("node")})
    locations = tuple(_with_numa(topology, each) for each in locations)
    roles = _with_hardware(topology, roles, locations)
    problems += _shared(roles)
    return RunRoles(roles, source if roles.known else "", size, locations, reports, tuple(problems))


def _sources(run: Path, layout: str, reports: RoleReports) -> list[tuple[str, Callable[[], Roles]]]:
    """Return name and reader of each available source of roles, in order of precedence."""
    found: list[tuple[str, Callable[[], Roles]]] = []
    if layout.strip():
        found.append(("typed", lambda: _of_layout(layout, reports.world_size)))
    if (run / ROLES_FILE).exists():
        found.append(("file", lambda: read_roles(run / ROLES_FILE, follow=False)))
    if reports.table:
        found.append((reports.source, lambda: _of_reports(reports)))
    return found


def _of_layout(text: str, world_size: int | None) -> Roles:
    sizes = parse_layout(text)
    if world_size is not None:
        check_size(sizes, world_size)
    return roles_of_layout(sizes)


def _of_reports(reports: RoleReports) -> Roles:
    try:
        found = roles_of(reports.table)
    except ValueError as error:
        raise SourceError(
            f"The roles that ranks reported contradict each other: {error}.",
            f"Call roles(…) with the same axes on every rank, or write {ROLES_FILE} into the run folder.",
        ) from error
    silent = tuple(sorted(set(reports.ranks) - set(found.coordinates)))
    if found.known and silent:
        raise SourceError(
            f"{_sentence(silent)} reported no role. {_UNTIL_THEN}",
            "Call roles(…) on every rank.",
        )
    return found


def _checked(roles: Roles, world_size: int | None, seen: set[int], source: str) -> Roles:
    """Return the roles; raise `SourceError` if a table written by a person does not fit the job."""
    ranks = set(roles.coordinates) | set(roles.places)
    if source != "file":
        return roles
    if roles.known and world_size is not None and ranks != set(range(world_size)):
        many = f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'}"
        raise SourceError(
            f"{ROLES_FILE} does not fit the job: it names {many}, and the job has {world_size}.",
            f"Give the roles of ranks 0 to {world_size - 1}. {_UNTIL_THEN}",
        )
    roles.check(seen)
    return roles


def _current(locations: tuple[RankLocation, ...], reports: RoleReports) -> tuple[RankLocation, ...]:
    """Return the locations of the current launch: those on the node that the rank reported last."""
    return tuple(
        each
        for each in locations
        if (reported := reports.ranks.get(each.rank)) is None or reported.node in ("", each.node)
    )


def _with_nodes(roles: Roles, reports: RoleReports) -> Roles:
    """Return the roles, with the node that a rank reported if no recorder found the rank."""
    own = {rank: {"node": each.node} for rank, each in reports.ranks.items() if each.node}
    places = {rank: {**own.get(rank, {}), **roles.places.get(rank, {})} for rank in {*own, *roles.places}}
    return Roles(roles.coordinates, places)


def _with_numa(topology: Topology, location: RankLocation) -> RankLocation:
    """Return the location, with its GPU's NUMA node if the process may run on the cores of several."""
    gpu = topology.gpu(location.node, location.gpu_uuid) if location.gpu_uuid else None
    if location.numa is not None or gpu is None:
        return location
    return replace(location, numa=gpu.numa)


def _with_hardware(topology: Topology, roles: Roles, locations: Iterable[RankLocation]) -> Roles:
    """Return the roles with the switch and the NIC of each rank, if they are in the run's topology."""
    gpus: dict[int, list[str]] = {}
    numa: dict[int, int | None] = {}
    for each in locations:
        numa.setdefault(each.rank, each.numa)
        if each.gpu_uuid:
            gpus.setdefault(each.rank, []).append(each.gpu_uuid)
    places: dict[int, Mapping[str, str]] = {}
    for rank, own in roles.places.items():
        node = own.get("node", "")
        used = [own["gpu"]] if "gpu" in own else gpus.get(rank, [])
        found = {"switch": topology.leaf(node), "nic": topology.nic(node, used, numa.get(rank))}
        places[rank] = {**{level: name for level, name in found.items() if name}, **own}
    return Roles(roles.coordinates, places)


def _shared(roles: Roles) -> list[SourceError]:
    shared = list(roles.shared_gpus().items())
    found = [
        SourceError(
            f"{_sentence(tuple(ranks))} use one GPU, {gpu}.",
            "Give each rank its own: --gpus-per-node as many as ranks, or torch.cuda.set_device(local rank).",
        )
        for gpu, ranks in shared[:_MOST_SHARED]
    ]
    if len(shared) > _MOST_SHARED:
        rest = len(shared) - _MOST_SHARED
        found.append(SourceError(f"{rest} more GPUs are each used by several ranks."))
    return found


def _sentence(ranks: tuple[int, ...]) -> str:
    text = named(ranks)
    return text[0].upper() + text[1:]


_MOST_LAUNCHES = 1000
#: Maximum number of launches in jobs of their own (beside the run folder) that are searched for a run's one.
_MOST_OWN_JOBS = 30


def launch_folder(run: Path, launch: str | None) -> Path | None:
    """Return the directory of a launch of a run, by default of the newest; None if there is none.

    Parameters
    ----------
    launch
        ``RUN/N`` of a launch inside the run, or ``N`` of a launch whose job is this run.
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
    # The directory of a launch in a job of its own is beside the run folder, which holds only the samples.
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
    """Yield what a launch recorded about each rank of its newest attempt, with the rank's coordinates."""
    folder = launch_folder(run, launch)
    if folder is None:
        return
    records = read_rank_records(folder)
    attempt = max((each.attempt for each in records.values()), default=0)
    sizes = _layout(folder)
    coordinates = roles_of_layout(sizes).coordinates
    for rank, each in records.items():
        if each.attempt == attempt:
            fits = rank in coordinates and each.world == len(coordinates)
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
    """Return events of the newest launches of a run as UTC nanoseconds, kind and sentence."""
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
