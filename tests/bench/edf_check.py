"""Time of ``gipfel edf check`` for 10 000 EDFs, half of them with diagnostics, beside ``tomllib.load``.

Prints one row as JSON. Both sides run in this process, on the same files, in turns; the best of each counts.
"""

import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

from gipfel_cluster.edf import check_edfs

BOUND = 8.0
ROUNDS = 3
_GOOD = """base_environment = "site"
image = "/images/pytorch.sqsh"
workdir = "/work"
mounts = [
  "/scratch:/scratch",
  "${SCRATCH:-/tmp}:/data:ro",
]

[env]
A = "1"
HF_HOME = "${SCRATCH}/hf"

[annotations]
com.hooks.aws_ofi_nccl.enabled = "true"
com.hooks.aws_ofi_nccl.variant = "cuda12"
"""
#: Replacements, of which each causes a diagnostic: five errors, five warnings.
_MISTAKES = (
    ('workdir = "/work"', "workdir = 3"),
    ("/scratch:/scratch", "CHANGE_THIS"),
    ("${SCRATCH}", "${NOWHERE}"),
    ('enabled = "true"', "enabled = true"),
    ("[annotations]", "[env]"),
    ("workdir", "wrkdir"),
    ("com.hooks.aws_ofi_nccl.enabled", "hooks.aws_ofi_nccl.enabled"),
    ("${SCRATCH}", "$SCRATCH"),
    ("A = ", "HF_TOKEN = "),
    ("pytorch.sqsh", "alpine.sqsh"),
)


def main(count: int) -> int:
    """Measure; 1 where the bound does not hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = _write(folder, count)
        environment = {"SCRATCH": "/scratch/me", "HOME": "/home/me", "EDF_PATH": f"{folder}/bases"}

        def ours() -> int:
            checked = check_edfs([name], environment=environment, directory=folder)
            return sum(bool(each.diagnostics) for each in checked)

        best = {"ours": float("inf"), "peer": float("inf")}
        for _ in range(ROUNDS):
            best["peer"] = min(best["peer"], _seconds(lambda: _load(files)))
            best["ours"] = min(best["ours"], _seconds(ours))
        if ours() != count // 2:
            raise SystemExit("Not half of the EDFs give diagnostics.")
    ratio = best["ours"] / best["peer"]
    row = {"name": "edf-check", **best, "unit": "s", "ratio": ratio, "bound": BOUND, "holds": ratio <= BOUND}
    print(json.dumps(row))
    return 0 if row["holds"] else 1


def _write(folder: Path, count: int) -> list[Path]:
    (folder / "bases").mkdir()
    (folder / "bases/site.toml").write_text('mounts = ["/store:/store"]\n')
    files = []
    for number in range(count):
        old, new = _MISTAKES[number // 2 % len(_MISTAKES)]
        files.append(folder / f"{number:05}.toml")
        files[-1].write_text(_GOOD if number % 2 else _GOOD.replace(old, new))
    return files


def _load(files: list[Path]) -> None:
    for file in files:
        with file.open("rb") as content:
            try:
                tomllib.load(content)
            except tomllib.TOMLDecodeError:
                continue


def _seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
