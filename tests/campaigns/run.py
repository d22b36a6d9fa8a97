"""``make campaign NAME=…``: count how often code is right on random cases.

A campaign is a module here with ``cells(seed, draws)`` (name to a function without arguments that returns a
JSON document, the same for the same seed) and ``summary(documents)`` (rows as ``make bench`` prints them).
Cells run in parallel, one process per core. A finished cell is stored in ``build/campaigns/NAME-<digest>``,
so that an interrupted campaign can continue; the digest is that of the measured code.
``build/campaigns/NAME.json`` holds all results at the end.
"""

import argparse
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "campaigns"
NAMES = (
    "alarms",
    "arrivals",
    "causes",
    "changes",
    "checkpoints",
    "hangs",
    "jobs",
    "packing",
    "scanning",
    "services",
    "stragglers",
    "trip",
    "vetting",
    "weather",
)
sys.path.insert(0, str(HERE))

Documents = Mapping[str, Any]


def digest(folders: Sequence[Path], settings: str) -> str:
    """Return a digest of all Python files below some directories, and of the settings."""
    found = hashlib.sha256(settings.encode())
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def run(
    name: str,
    seed: int,
    draws: int,
    *,
    only: str = "",
    workers: int | None = None,
    report: Callable[[str], None],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the cells that are not finished; return the documents by cell, and the rows."""
    module = importlib.import_module(name)
    cells = [cell for cell in module.cells(seed, draws) if only in cell]
    folder = BUILD / f"{name}-{digest([HERE, *module.MEASURED], f'{seed} {draws}')}"
    folder.mkdir(parents=True, exist_ok=True)
    done = {
        cell: json.loads(path.read_text()) for cell in cells if (path := folder / f"{cell}.json").exists()
    }
    remaining = [cell for cell in cells if cell not in done]
    if done and remaining:
        report(f"{len(done)} of {len(cells)} cells are finished already; running the others.")
    workers = workers or getattr(module, "WORKERS", None) or os.cpu_count() or 1
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(_cell, name, seed, draws, cell): cell for cell in remaining}
        try:
            for future in as_completed(running):
                cell = running[future]
                done[cell] = future.result()
                temporary = folder / f".{cell}.json"
                temporary.write_text(json.dumps(done[cell]))
                temporary.replace(folder / f"{cell}.json")
                report(f"[{len(done)}/{len(cells)}] {cell}: {module.line(done[cell])}")
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            report(f"Interrupted: {len(done)} of {len(cells)} cells are stored. Run this again to continue.")
            raise
    return done, module.summary(done)


def _cell(name: str, seed: int, draws: int, cell: str) -> Any:
    return importlib.import_module(name).cells(seed, draws)[cell]()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print its rows; exit status 1 where a bound does not hold, 130 when interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--seed", type=int, default=1, help="of all random draws (default: 1)")
    parser.add_argument("--draws", type=int, default=0, help="draws per cell (default: the campaign's own)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the cells whose name holds this")
    parser.add_argument("--workers", type=int, default=None, help="processes (default: one per core)")
    given = parser.parse_args(arguments)
    draws = given.draws or importlib.import_module(given.name).DRAWS

    def report(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        done, rows = run(given.name, given.seed, draws, only=given.only, workers=given.workers, report=report)
    except KeyboardInterrupt:
        return 130
    document = {"name": given.name, "seed": given.seed, "draws": draws, "rows": rows, "cells": done}
    (BUILD / f"{given.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
