"""Flame graph of one or several ranks as SVG, from files in speedscope's format."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from zlib import crc32

from gipfel_cluster.runs import write_atomically

from ..diagnosis.verdict import named
from ..telemetry.files import read_regular
from ..training.launches.requests import Look

_MAX_BYTES = 64 << 20
_WIDTH, _ROW, _HEAD, _LEAST = 1200.0, 17, 44, 0.6
_MOST_ROWS, _MOST_BOXES = 200, 20_000
_STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#222;pointer-events:none}"
    ".t{font:14px system-ui,sans-serif}rect:hover{stroke:#000}"
    "@media(prefers-color-scheme:dark){svg{background:#111}.t{fill:#ddd}}"
)


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
    files = [(rank, look.file(rank)) for rank in look.ranks if look.found.get(rank)]
    target = look.directory / "flame.svg"
    title = f"Main thread of {named(look.ranks)}, {look.request.seconds} s"
    return str(target) if write_flame_graph(files, target, title) else ""


def write_flame_graph(files: Sequence[tuple[int, Path]], target: Path, title: str) -> int:
    """Write the main threads of ranks as one SVG, and return the number of ranks in it.

    Frames are as wide as their time; what several ranks have in common is drawn once.

    Parameters
    ----------
    files
        Ranks with their files; what can't be read is left out.

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
