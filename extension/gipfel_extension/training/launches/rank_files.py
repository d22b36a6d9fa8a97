"""Files that ranks leave for other programs: traces of torch's profiler, and dumps of its flight recorder."""

import re
from pathlib import Path
from typing import Literal

Kind = Literal["trace", "dump"]

#: Chrome's trace format, which torch writes, opens here; torch's own pages name chrome://tracing beside it.
VIEWER = "https://ui.perfetto.dev"
HOW = "Open trace file there: it stays in the browser. In Chrome, chrome://tracing shows it, too."

_NAMES: dict[str, tuple[str, re.Pattern[str], str]] = {
    "trace": ("profile", re.compile(r"rank-(0|[1-9][0-9]{0,6})\.json"), "rank-{}.json"),
    "dump": ("flight_recorder", re.compile(r"rank_(0|[1-9][0-9]{0,6})"), "rank_{}"),
}


def ranks_with(folder: Path, kind: Kind) -> tuple[int, ...]:
    """Ranks that have left such a file in a launch's folder."""
    place, pattern, _ = _NAMES[kind]
    try:
        found = list((folder / place).iterdir())
        names = [each.name for each in found if each.is_file() and not each.is_symlink()]
    except OSError:
        return ()
    return tuple(sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name))))


def rank_file(folder: Path, kind: Kind, rank: int) -> Path:
    """Where a rank leaves its file."""
    place, _, name = _NAMES[kind]
    return folder / place / name.format(rank)
