"""Rate of correct causes of a score: the last ``make campaign NAME=causes``, else a reduced sample of it.

The peer is one rule on plain means of the same samples. Prints rows as JSON.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "campaigns"), str(ROOT / "extension"), str(ROOT / "spawner")]

from run import BUILD, run  # noqa: E402 - found through the path above

#: Draws of each shape where the campaign was not run on this code.
_REDUCED = 3
_SEED = 7


def main() -> int:
    """Print the rows; 1 where a bound does not hold."""
    report = BUILD / "causes.json"
    rows = json.loads(report.read_text())["rows"] if report.exists() else None
    if rows is None:
        _, rows = run("causes", _SEED, _REDUCED, report=lambda text: print(text, file=sys.stderr))
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
