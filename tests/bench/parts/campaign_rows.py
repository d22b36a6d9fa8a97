"""Rows of a campaign: of its last run on this machine, else of a reduced sample of its cells."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "campaigns"), str(ROOT / "extension"), str(ROOT / "spawner")]

from run import BUILD  # noqa: E402 - found through the path above

_SEED = 7


def main(name: str, cells: Sequence[str], *, draws: int) -> int:
    """Print the rows; 1 where a bound does not hold."""
    report = BUILD / f"{name}.json"
    rows = json.loads(report.read_text())["rows"] if report.exists() else reduced(name, cells, draws=draws)
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["holds"] for row in rows) else 1


def reduced(name: str, cells: Sequence[str], *, draws: int) -> list[dict[str, Any]]:
    """Return the rows of some cells; a bound holds where the interval does not contradict it."""
    campaign = importlib.import_module(name)
    known = campaign.cells(_SEED, draws)
    rows: list[dict[str, Any]] = campaign.summary({cell: known[cell]() for cell in cells})
    for row in rows:
        low, high = row["interval"]
        row["holds"] = high >= row["bound"] if row["at least"] else low <= row["bound"]
    return rows
