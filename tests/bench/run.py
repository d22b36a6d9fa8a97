"""``make bench [BENCH=name]``: every measurement beside its peer, as a table and as ``build/bench.json``.

A measurement is a file here that prints rows as JSON, each on a line: name, ours, peer, unit, ratio, bound,
holds.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORT = HERE.parents[1] / "build" / "bench.json"
LIMIT_S = 1800


def main(wanted: str) -> int:
    """Run them one after the other; 1 where a bound does not hold."""
    files = {each.stem.replace("_", "-"): each for each in sorted(HERE.glob("*.py")) if each.name != "run.py"}
    if wanted and wanted not in files:
        print(f"There is no measurement {wanted!r}. There are: {', '.join(files)}.", file=sys.stderr)
        return 2
    rows = [row for name, file in files.items() if wanted in ("", name) for row in _rows(file)]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"{'':24}{'ours':>10}{'peer':>10}  {'':6}{'ratio':>8}{'bound':>8}")
    for row in rows:
        sides = f"{row['ours']:>10.3g}{row['peer']:>10.3g}  {row['unit']:6}"
        verdict = "holds" if row["holds"] else "DOES NOT HOLD"
        print(f"{row['name']:24}{sides}{row['ratio']:>8.2f}{row['bound']:>8.1f}  {verdict}")
    return 0 if all(row["holds"] for row in rows) else 1


def _rows(file: Path) -> list[dict[str, object]]:
    done = subprocess.run([sys.executable, str(file)], stdout=subprocess.PIPE, timeout=LIMIT_S, check=False)
    rows: list[dict[str, object]] = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")
    ]
    if not rows:
        raise SystemExit(f"{file.name} printed no row; it ended with status {done.returncode}.")
    return rows


sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
