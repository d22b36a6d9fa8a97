"""Time of a notebook with Gipfel's engine, beside papermill's; and of a resumed one, beside a whole run.

Prints two rows as JSON. The first is the median of alternating runs of 200 short cells, each a process of its
own; the second of a notebook whose first 50 of 60 cells are finished, each of a tenth of a second.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat

#: Of stock papermill's time.
BOUND = 1.02
#: Of the time of a whole run, where 50 of 60 equal cells are finished: 1/6 and the kernel's start.
RESUME_BOUND = 0.5
_LIMIT_S = 300
_KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def main(rounds: int) -> int:
    """Measure; 1 where a bound does not hold."""
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        rows = [_overhead(folder, rounds), _resume(folder, max(1, rounds // 3))]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _overhead(folder: Path, rounds: int) -> dict[str, object]:
    given = folder / "short.ipynb"
    _write(given, [f"x = {number}\nprint('cell', x)" for number in range(200)])
    engines = ("gipfel", "nbclient")
    # In turns, after one round to warm up; who is first changes.
    seconds: dict[str, list[float]] = {each: [] for each in engines}
    for number in range(rounds + 1):
        for engine in engines if number % 2 else reversed(engines):
            taken = _seconds(given, folder / f"{engine}.ipynb", engine)
            if number:
                seconds[engine].append(taken)
    ours, peer = (statistics.median(seconds[each]) for each in engines)
    return {
        "name": "papermill, 200 short cells", "ours": ours, "peer": peer, "unit": "s", "ratio": ours / peer,
        "bound": BOUND, "holds": ours <= BOUND * peer, "runs": seconds,
    }  # fmt: skip


def _resume(folder: Path, rounds: int) -> dict[str, object]:
    given, output = folder / "long.ipynb", folder / "resumed.ipynb"
    work = "import time\ntime.sleep(0.1)"
    broken, whole, resumed = folder / "broken.ipynb", [], []
    _write(given, [work] * 60)
    _write(broken, [*[work] * 50, "raise SystemError('broken off')", *[work] * 9])
    for _ in range(rounds):
        _seconds(broken, output, "gipfel", fails=True)
        resumed.append(_seconds(given, output, "gipfel", resume=True))
        whole.append(_seconds(given, folder / "whole.ipynb", "gipfel"))
    ours, peer = statistics.median(resumed), statistics.median(whole)
    return {
        "name": "resumed after 50 of 60 cells", "ours": ours, "peer": peer, "unit": "s", "ratio": ours / peer,
        "bound": RESUME_BOUND, "holds": ours <= RESUME_BOUND * peer,
    }  # fmt: skip


def _seconds(given: Path, output: Path, engine: str, *, resume: bool = False, fails: bool = False) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIPFEL_")}
    if resume:
        environment["GIPFEL_RESUME"] = "1"
    argv = [
        sys.executable,
        "-I",
        "-m",
        "papermill",
        "--engine",
        engine,
        "--no-progress-bar",
        "--log-level",
        "ERROR",
    ]
    start = time.perf_counter()
    done = subprocess.run(
        [*argv, str(given), str(output)],
        stdin=subprocess.DEVNULL, capture_output=True, cwd=given.parent, env=environment, timeout=_LIMIT_S,
        check=False,
    )  # fmt: skip
    taken = time.perf_counter() - start
    if bool(done.returncode) is not fails:
        raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
    return taken


def _write(path: Path, sources: list[str]) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=_KERNEL), path)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
