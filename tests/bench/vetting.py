"""Rate of correct attributions by vetting's pair rounds, on simulated allocations with a known fault.

Read from the campaign ``vetting`` where it was run on this machine, else a reduced sample: then a bound
holds where the interval does not contradict it. ``peer`` is a rule of one line, the best round of a node a
tenth below the median and more than four MADs.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "campaigns"), str(ROOT / "extension"), str(ROOT / "spawner")]

from run import BUILD  # noqa: E402 - found through the path above

_SEED, _REDUCED = 7, 5
_CELLS = (
    "none.quiet.8",
    "none.congested-10.4",
    "none.congested-10.64",
    "none.heavy-8.8",
    "slow-15.quiet.4",
    "slow-15.quiet.64",
    "slow-15.congested-5.8",
    "link.quiet.8",
    "switch-of-2-known.quiet.16",
)


def main() -> int:
    """Print the rows; 1 where a bound does not hold."""
    report = BUILD / "vetting.json"
    rows = json.loads(report.read_text())["rows"] if report.exists() else _reduced()
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["holds"] for row in rows) else 1


def _reduced() -> list[dict[str, Any]]:
    campaign = importlib.import_module("vetting")
    cells = campaign.cells(_SEED, _REDUCED)
    rows = campaign.summary({name: cells[name]() for name in _CELLS})
    for row in rows:
        low, high = row["interval"]
        row["holds"] = high >= row["bound"] if row["at least"] else low <= row["bound"]
    return rows


if __name__ == "__main__":
    sys.exit(main())
