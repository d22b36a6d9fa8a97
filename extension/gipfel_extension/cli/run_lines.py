"""Runs as lines of a table, and the facts about one run, for a terminal."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .terminal import table_lines

if TYPE_CHECKING:
    from gipfel_cluster.workloads.run_folders import Run

    from ..server.run_table import TableRow

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WIDEST_NAME = 32


def run_lines(runs: "Sequence[Run]") -> list[str]:
    """Return a title line and a line for each run; no lines for no runs. Empty columns are left out."""
    if not runs:
        return []
    table = [(title, right, [text(each) for each in runs]) for title, right, text in _COLUMNS]
    shown = [(title, right, cells) for title, right, cells in table if any(cells) or title in _ALWAYS]
    rows = [[title for title, _, _ in shown], *zip(*(cells for _, _, cells in shown), strict=True)]
    return table_lines(rows, [index for index, (_, right, _) in enumerate(shown) if right])


def facts_of(row: "TableRow") -> dict[str, str]:
    """Return what `gipfel runs show` prints, by name; ``-`` for what is unknown."""
    parameters = " ".join(f"{name}={value}" for name, value in row.parameters.items())
    facts = {
        "folder": row.folder,
        "name": row.display_name,
        "tags": " ".join(row.tags),
        "note": " ".join(row.note.split()),
        "pinned": "yes" if row.pinned else "no",
        "kind": row.kind,
        "started": row.started,
        "ended": row.ended or ("-" if row.in_use_reason else "not recorded"),
        "duration": duration_text(row.duration_s),
        "exit status": "" if row.exit_status is None else str(row.exit_status),
        "score": "" if row.score is None else f"{row.score:.0f}",
        "largest loss": _loss(row),
        "GPU hours": _number(row.gpu_hours),
        "energy": _energy(row),
        "throughput": "" if row.throughput is None else f"{_number(row.throughput)} {row.throughput_name}",
        "commit": _commit(row, digits=40),
        "parameters": parameters,
        "size": size_text(row.bytes),
        "in use": row.in_use_reason or "no",
    }
    return {name: text or "-" for name, text in facts.items()}


def size_text(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def duration_text(seconds: float | None) -> str:
    """Return a duration such as ``2:05:10``, or ``1-02:05:10`` from a day on; empty if unknown."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


def _name(run: "Run") -> str:
    return f"{'*' if run.pinned else ''}{run.display_name[:_WIDEST_NAME]}"


def _changed(run: "Run") -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run.modified)) if run.modified else ""


def _loss(run: "Run") -> str:
    return f"{run.loss} {run.loss_points:.0f}" if run.loss_points is not None else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _energy(run: "Run") -> str:
    return "" if run.energy_wh is None else f"{_number(run.energy_wh)} Wh"


def _commit(run: "Run", *, digits: int = 8) -> str:
    # A plus sign, as in `git describe --dirty`, would be hard to see in a column.
    return f"{run.commit[:digits]}{' changed' if run.changed_files else ''}" if run.commit else ""


def _end(run: "Run") -> str:
    status = f"exit status {run.exit_status}" if run.exit_status is not None else "ended"
    return status if run.ended else "in use" if run.in_use_reason else "no end recorded"


#: Title, whether it is aligned to the right, and the text of each column.
_COLUMNS: "tuple[tuple[str, bool, Callable[[Run], str]], ...]" = (
    ("RUN", False, lambda run: run.name),
    ("NAME", False, _name),
    ("KIND", False, lambda run: run.kind[:10]),
    ("CHANGED", False, _changed),
    ("SIZE", True, lambda run: size_text(run.bytes)),
    ("SCORE", True, lambda run: "" if run.score is None else f"{run.score:.0f}"),
    ("LARGEST LOSS", False, _loss),
    ("DURATION", True, lambda run: duration_text(run.duration_s)),
    ("GPU HOURS", True, lambda run: _number(run.gpu_hours)),
    ("ENERGY", True, _energy),
    ("COMMIT", False, _commit),
    ("TAGS", False, lambda run: " ".join(run.tags)),
    ("END", False, _end),
)
_ALWAYS = frozenset(("RUN", "KIND", "CHANGED", "SIZE", "SCORE", "END"))
