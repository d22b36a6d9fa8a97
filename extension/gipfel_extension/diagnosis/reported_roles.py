"""Roles that ranks report: lines of ``roles.jsonl`` in the run folder.

``gipfel_widgets.roles`` and a launch's hooks on torch's device mesh, DDP and FSDP append lines ``{"time_ns",
"rank", "world_size", "node", "pid", "launch", "source", "roles"}``; any other line is counted and skipped.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..telemetry.files import read_regular

#: Name of the file in a run folder.
REPORTS_FILE = "roles.jsonl"
_MOST_BYTES = 64 << 20
_MOST_RANK = 1 << 20
_LONGEST = 200


@dataclass(frozen=True)
class ReportedRank:
    """One rank's report about itself.

    Parameters
    ----------
    world_size
        Number of ranks of the job; None if the rank does not know it.
    pid
        Process ID on its node, in the rank's own PID namespace.
    launch
        ``RUN/N`` of its launch, ``N`` of a launch that is a job of its own; empty outside of launches.
    source
        Where the roles come from: ``rank`` (the program called `gipfel_widgets.roles`), ``mesh`` (torch's
        device mesh), ``wrapper`` (DDP or FSDP) or ``launch`` (the layout given to the launch).
    roles
        The rank's coordinates as in the line, not validated; empty if it reported none.
    """

    rank: int
    time_ns: int
    node: str = ""
    pid: int = 0
    world_size: int | None = None
    launch: str = ""
    source: str = ""
    roles: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RoleReports:
    """Newest reports of the ranks of one launch.

    Parameters
    ----------
    launch
        The launch; empty outside of launches.
    launches
        All launches that reported, in order of their first report.
    damaged_lines
        Number of lines that are not reports.
    """

    ranks: Mapping[int, ReportedRank] = field(default_factory=dict)
    world_size: int | None = None
    launch: str = ""
    launches: tuple[str, ...] = ()
    damaged_lines: int = 0

    @property
    def table(self) -> dict[str, Mapping[str, Any]]:
        """Roles by rank, as :func:`.roles.roles_of` takes them; ranks without roles are left out."""
        return {str(rank): each.roles for rank, each in sorted(self.ranks.items()) if each.roles}

    @property
    def source(self) -> str:
        """The most frequent source of roles: ``rank``, ``mesh``, ``wrapper`` or ``launch``; or empty."""
        sources = [each.source for each in self.ranks.values() if each.roles]
        return max(sources, key=sources.count, default="")


def read_reports(run: Path, launch: str | None = None, records: Iterable[ReportedRank] = ()) -> RoleReports:
    """Return the newest reports of a launch of a run, by default of the launch that reported last.

    Parameters
    ----------
    records
        Reports that launches recorded about their ranks, in addition to the file.

    Raises
    ------
    OSError
        The file exists and cannot be read.
    """
    try:
        lines = read_regular(run / REPORTS_FILE, _MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        lines = []
    reports, damaged = list(records), 0
    for line in filter(None, lines):
        try:
            reports.append(_with_launch_of_run(_report(json.loads(line)), run))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            damaged += 1
    reports.sort(key=lambda each: each.time_ns)
    launches = tuple(dict.fromkeys(each.launch for each in reports))
    chosen = reports[-1].launch if launch is None and reports else launch or ""
    own = [each for each in reports if each.launch == chosen]
    sizes = [each.world_size for each in own if each.world_size is not None]
    size = sizes[-1] if sizes else None
    found: dict[int, ReportedRank] = {}
    for each in own:
        # A launch that was restarted with fewer nodes also has reports from the larger world.
        if each.world_size in (None, size) and (size is None or each.rank < size):
            earlier = found.get(each.rank)
            keep_earlier = (
                earlier is not None and earlier.roles and (not each.roles or _trust(each) < _trust(earlier))
            )
            if earlier is not None and keep_earlier:
                found[each.rank] = replace(each, roles=earlier.roles, source=earlier.source)
            else:
                found[each.rank] = each
    return RoleReports(found, size, chosen, launches, damaged)


def _trust(report: ReportedRank) -> int:
    """Return the precedence of a report's roles, whatever its time: those from the program are the highest.

    DDP and FSDP show data parallelism only, so the launch's layout, which a person chose, precedes them.
    """
    return {"wrapper": 0, "launch": 1}.get(report.source, 2)


def _with_launch_of_run(report: ReportedRank, run: Path) -> ReportedRank:
    """Return the report with ``N`` as its launch instead of ``RUN/N`` if RUN is not the name of the run.

    The launch is then a job of its own, and RUN is the name of the directory above all launches.
    """
    name, slash, number = report.launch.rpartition("/")
    return replace(report, launch=number) if slash and name != run.name else report


def _report(content: Any) -> ReportedRank:
    rank, time_ns, size = content["rank"], content["time_ns"], content.get("world_size")
    pid, roles = content.get("pid", 0), content.get("roles") or {}
    numbers = (rank, time_ns, pid, 1 if size is None else size)
    if any(type(each) is not int or abs(each) >= 2**63 for each in numbers) or not isinstance(roles, dict):
        raise TypeError("not a report of a rank")
    if not 0 <= rank < _MOST_RANK or not 0 < numbers[3] <= _MOST_RANK:
        raise ValueError("a rank or a world size is out of range")
    texts = [content.get(name, "") for name in ("node", "launch", "source")]
    if not all(isinstance(each, str) and len(each) <= _LONGEST for each in texts):
        raise TypeError("a name is not a short text")
    node, launch, source = texts
    return ReportedRank(rank, time_ns, node, pid, size, launch, source, roles)
