"""``make bench [BENCH=name]``: every measurement beside its peer, as a table and as ``build/bench.json``.

A measurement is a file here that prints rows as JSON, each on a line: name, ours, peer, unit, ratio, bound,
holds. The ratio is ours over the peer's, unless the row's name says otherwise: "peer/ours", or "of" a limit,
and then it is ours over that limit. One that this machine cannot make is left out, with its reason.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORT = HERE.parents[1] / "build" / "bench.json"
LIMIT_S = 900
#: The status of a measurement that this machine cannot make.
LEFT_OUT = 77
_END_S = 60


def main(wanted: str) -> int:
    """Run them one after the other; 1 where a bound does not hold, or a measurement broke."""
    files = {each.stem.replace("_", "-"): each for each in sorted(HERE.glob("*.py")) if each.name != "run.py"}
    if wanted and wanted not in files:
        print(f"There is no measurement {wanted!r}. There are: {', '.join(files)}.", file=sys.stderr)
        return 2
    rows: list[dict[str, object]] = []
    whole = True
    for name, file in files.items():
        if wanted in ("", name):
            found, status = _run(file)
            rows += found
            if status == LEFT_OUT:
                print(f"{name} is left out.", file=sys.stderr)
            elif not found or (status and all(row["holds"] for row in found)):
                print(f"{name} broke: it ended with status {status}.", file=sys.stderr)
                whole = False
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(rows, indent=2) + "\n")
    _print(rows)
    return 0 if whole and all(row["holds"] for row in rows) else 1


def _run(file: Path) -> tuple[list[dict[str, object]], int]:
    """Rows and status of a measurement; one that takes too long is interrupted, so that it tidies up."""
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"{file.name} took longer than {LIMIT_S} s.", file=sys.stderr)
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output = b""
    return [json.loads(line) for line in output.splitlines() if line.startswith(b"{")], process.returncode


def _print(rows: list[dict[str, object]]) -> None:
    width = max((len(str(row["name"])) for row in rows), default=0)
    print(f"{'':{width}}{'ours':>10}{'peer':>10}  {'':6}{'ratio':>8}{'bound':>8}")
    for row in rows:
        sides = f"{row['ours']:>10.3g}{row['peer']:>10.3g}  {row['unit']:6}"
        verdict = "holds" if row["holds"] else "DOES NOT HOLD"
        print(f"{row['name']:{width}}{sides}{row['ratio']:>8.2f}{row['bound']:>8.1f}  {verdict}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
