"""Looks into the ranks of a running launch: choice of ranks, cost of a look, and flame graphs.

A look collects stacks, a flame graph, a trace or a memory snapshot of some ranks, see
`training.launches.requests`. A rank is accused if the diagnosis or the analysis of a hang names it as the
cause. A flame graph of one or several ranks is an SVG that is drawn from files in speedscope's format.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from zlib import crc32

from gipfel_cluster.model import Frozen, GipfelError, pluralize
from gipfel_cluster.runs import write_atomically

from ..diagnosis.roles import Roles, parse_selection
from ..diagnosis.verdict import named
from ..telemetry.files import read_regular
from ..telemetry.sample import SourceError
from ..training.launches.requests import Look, LookRequest, running_ranks
from ..training.record import read_rank_records, read_state
from .run_diagnosis import diagnose_run
from .run_roles import roles_of_run

#: Maximum number of accused ranks that are chosen by default: an uneven pipeline stage may have hundreds of
#: them, and a few suffice to show the problem.
_MOST_ACCUSED = 4
ALL = "all"
_MAX_BYTES = 64 << 20
#: Pixels of the SVG: width, height of a row, height of the title, and width below which a frame is omitted.
_WIDTH, _ROW, _HEAD, _LEAST = 1200.0, 17, 44, 0.6
_MOST_ROWS, _MOST_BOXES = 200, 20_000
_STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#222;pointer-events:none}"
    ".t{font:14px system-ui,sans-serif}rect:hover{stroke:#000}"
    "@media(prefers-color-scheme:dark){svg{background:#111}.t{fill:#ddd}}"
)


class ChosenRanks(Frozen):
    """Ranks to look into, and why these were chosen."""

    ranks: tuple[int, ...]
    why: str


class LaunchRoles(Frozen, arbitrary_types_allowed=True):
    """Running ranks of a launch, with their roles.

    ``run`` is the run folder with their samples; None for a launch without one.
    """

    folder: Path
    run: Path | None
    ranks: tuple[int, ...]
    roles: Roles

    @classmethod
    def of(cls, folder: Path) -> "LaunchRoles":
        """Return the running ranks of the launch in a directory."""
        run = run_of_launch(folder)
        nodes = {rank: each.node for rank, each in read_rank_records(folder).items() if each.node}
        roles = roles_of_run(run).roles if run is not None else Roles()
        places = {rank: {"node": node, **roles.places.get(rank, {})} for rank, node in nodes.items()}
        return cls(
            folder=folder, run=run, ranks=running_ranks(folder), roles=Roles(roles.coordinates, places)
        )


def run_of_launch(folder: Path) -> Path | None:
    """Return the run folder that has the samples of a launch; None if there is none."""
    state = read_state(folder)
    run = Path(state.run) if state.run else folder.parents[1]
    return run if (run / "telemetry").is_dir() or (run / "metrics.jsonl").exists() else None


def select_ranks(text: str, launch: LaunchRoles) -> ChosenRanks:
    """Return the running ranks that a text selects: ``all``, ``0,3,8-11``, ``pp=1 & dp=0``, ``node=nid001``.

    Raises
    ------
    GipfelError
        The text is not a selection, names a rank that does not run, or selects no running rank.
    """
    words = text.strip()
    found: tuple[int, ...] = launch.ranks
    if words.lower() != ALL:
        selection = parse_selection(words if "=" in words else f"rank={words}")
        found = selection.ranks(launch.ranks, launch.roles)
        ends = (end for term in selection.terms if term.key == "rank" for pair in term.ranges for end in pair)
        absent = sorted(set(ends) - set(launch.ranks))
        if absent:
            raise GipfelError(f"Rank {absent[0]} is not running.", _running(launch))
    if not found:
        raise GipfelError(f"{text[:80]!r} selects no running rank.", _running(launch))
    return ChosenRanks(ranks=found, why="as selected")


def _running(launch: LaunchRoles) -> str:
    return f"Running: {named(launch.ranks) if launch.ranks else 'no rank'}."


def default_ranks(launch: LaunchRoles) -> ChosenRanks:
    """Return at most four accused ranks, a peer of the first of them, and the lowest running rank.

    They are accused of a hang that still lasts, else by the diagnosis. Without an accused rank, the result is
    the lowest running rank and a peer of it.
    """
    accused, why = _accused(launch)
    accused = tuple(rank for rank in accused if rank in launch.ranks)[:_MOST_ACCUSED]
    peer = _peer(accused or launch.ranks[:1], launch)
    chosen = dict.fromkeys((*accused, *([] if peer is None else [peer]), *launch.ranks[:1]))
    if not accused:
        first = f"rank {launch.ranks[0]} and a peer" if launch.ranks else "no rank runs"
        return ChosenRanks(ranks=tuple(sorted(chosen)), why=f"no rank is accused: {first}")
    return ChosenRanks(ranks=tuple(sorted(chosen)), why=f"{why}, a peer, and rank {launch.ranks[0]}")


def _accused(launch: LaunchRoles) -> tuple[tuple[int, ...], str]:
    hang = read_state(launch.folder).hang
    if hang is not None and hang.ended_ns is None and hang.ranks:
        return hang.ranks, "accused of the hang"
    if launch.run is None:
        return (), ""
    try:
        verdicts = diagnose_run(launch.run).verdicts
    except SourceError:
        return (), ""
    found = next((each for each in verdicts if each.ranks), None)
    return (found.ranks, f"accused by the diagnosis ({found.kind})") if found else ((), "")


def _peer(accused: Sequence[int], launch: LaunchRoles) -> int | None:
    """Return a rank of the same role that is not accused, preferably on another node."""
    groups = launch.roles.groups(launch.ranks) if launch.roles.known else [list(launch.ranks)]
    first = next(iter(accused), None)
    group = next((each for each in groups if first in each), [])
    others = [rank for rank in group if rank not in accused]
    node = launch.roles.places.get(first if first is not None else -1, {}).get("node")
    elsewhere = [rank for rank in others if launch.roles.places.get(rank, {}).get("node") != node]
    return next(iter(elsewhere or others), None)


def cost_of(request: LookRequest) -> str:
    """Return sentences on how a look slows the training down; measured on CPU ranks with gloo."""
    count = pluralize(len(request.ranks), "rank")
    if request.what == "stacks":
        pause = "1 to 2 s, to read symbols" if request.native else "a few milliseconds"
        return f"{count} {_each(request)} for {pause}, and others wait meanwhile. A few kB per rank."
    if request.what == "flame":
        return (
            f"{count} {_are(request)} sampled 100 times a second for {request.seconds} s; steps take a few "
            "percent longer. About 50 kB per rank."
        )
    steps = pluralize(request.steps, "step")
    if request.what == "trace":
        return (
            f"{steps} of {count} {_are(request, request.steps)} traced with stacks, and take several times "
            "as long; the others wait. 0.2 to 1 MB per step and rank for small models, up to 30 MB for large."
        )
    return (
        f"The GPU allocator of {count} records the stack of each allocation for {steps}. 1 to 50 MB per rank."
    )


DUMP_COST = (
    "Every rank writes its last 2000 collectives in a background thread; training continues. "
    "Up to 5 MB per rank."
)


def _each(request: LookRequest) -> str:
    return "is stopped" if len(request.ranks) == 1 else "are stopped"


def _are(request: LookRequest, count: int | None = None) -> str:
    return "is" if (count or len(request.ranks)) == 1 else "are"


@dataclass
class _Node:
    name: str
    seconds: float = 0.0
    below: dict[str, "_Node"] = field(default_factory=dict)


def draw_flame_graph(look: Look) -> str:
    """Write the flame graph of a look, and return its path; empty if no rank has samples.

    Raises
    ------
    OSError
        The SVG can't be written.
    """
    files = [(rank, look.file(rank)) for rank in look.ranks if rank in look.answers]
    target = look.directory / "flame.svg"
    title = f"Main thread of {named(look.ranks)}, {look.request.seconds} s"
    return str(target) if write_flame_graph(files, target, title) else ""


def write_flame_graph(files: Sequence[tuple[int, Path]], target: Path, title: str) -> int:
    """Write the main threads of ranks as one flame graph, and return the number of ranks in it.

    The width of a frame is its time; frames that several ranks have in common are merged.

    Parameters
    ----------
    files
        Ranks with their files in speedscope's format; unreadable files are omitted.

    Raises
    ------
    OSError
        The SVG can't be written.
    """
    root, drawn = _Node("all"), 0
    for _, path in files:
        try:
            drawn += _add(root, json.loads(read_regular(path, _MAX_BYTES)))
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
            continue
    if drawn:
        write_atomically(target, _svg(root, title))
    return drawn


def _add(root: _Node, content: object) -> int:
    """Add the main thread of a file to the tree."""
    if not isinstance(content, dict):
        raise TypeError("it is not an object")
    frames = content["shared"]["frames"]
    names = [_name(each) for each in frames]
    profiles = content["profiles"]
    profile = next((each for each in profiles if "MainThread" in str(each.get("name"))), profiles[0])
    for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
        seconds, node = float(weight), root
        root.seconds += seconds
        for index in sample[:_MOST_ROWS]:
            node = node.below.setdefault(names[index], _Node(names[index]))
            node.seconds += seconds
    return 1


def _name(frame: dict[str, object]) -> str:
    file = str(frame.get("file") or "").rpartition("/")[2]
    line = f":{frame['line']}" if frame.get("line") else ""
    return f"{frame['name']} ({file}{line})" if file else str(frame["name"])


def _boxes(node: _Node, left: float, depth: int, scale: float) -> Iterator[tuple[_Node, float, int]]:
    for child in sorted(node.below.values(), key=lambda each: each.name):
        if child.seconds * scale >= _LEAST:
            yield child, left, depth
            yield from _boxes(child, left, depth + 1, scale)
        left += child.seconds * scale


def _svg(root: _Node, title: str) -> str:
    scale = _WIDTH / max(root.seconds, 1e-9)
    boxes = [each for each, _ in zip(_boxes(root, 0.0, 0, scale), range(_MOST_BOXES), strict=False)]
    height = _HEAD + _ROW * (1 + max((depth for _, _, depth in boxes), default=0)) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="t" x="8" y="26">{escape(title)}</text>',
    ]
    for node, left, depth in boxes:
        width, top = node.seconds * scale, _HEAD + depth * _ROW
        label = f"{node.name}: {node.seconds:.2f} s, {100 * node.seconds / root.seconds:.1f} %"
        hue = 20 + crc32(node.name.encode()) % 40
        parts.append(
            f'<g><title>{escape(label)}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{_ROW - 1}" rx="2" fill="hsl({hue},85%,68%)"/>'
        )
        shown = node.name[: int(width / 6.8)]
        if len(shown) > 3:
            parts.append(f'<text x="{left + 3:.1f}" y="{top + 12}">{escape(shown)}</text>')
        parts.append("</g>")
    return "".join([*parts, "</svg>\n"])
