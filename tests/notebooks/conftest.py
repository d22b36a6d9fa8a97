"""Run notebooks as a batch job does, and the code of their launched cells with torchrun."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from notebook_runs import LIMIT_S, NOTEBOOKS, Executed, job_environment, last_words, logged


@pytest.fixture
def execute_notebook(tmp_path: Path) -> Callable[..., Executed]:
    """Runs a notebook by its name with papermill and our engine; parameters by name."""

    def run(name: str, **parameters: Any) -> Executed:
        given, out = tmp_path / "given.yaml", tmp_path / "out.ipynb"
        given.write_text(json.dumps(parameters))
        argv = [
            sys.executable,
            "-m",
            "papermill",
            "--engine",
            "gipfel",
            "--no-progress-bar",
            "-f",
            str(given),
        ]
        argv += [str(NOTEBOOKS / f"{name}.ipynb"), str(out)]
        done = subprocess.run(
            argv, env=job_environment(tmp_path, {}), cwd=tmp_path, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:] + last_words(tmp_path)
        return Executed(nbformat.read(out, as_version=4), tmp_path / "runs")

    return run


@pytest.fixture
def run_cell(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs the launched cell of a notebook by torchrun alone; what it logged."""
    count = 0

    def run(name: str, ranks: int, folder: Path, **parameters: Any) -> list[dict[str, Any]]:
        nonlocal count
        count += 1
        cells = {cell.id: cell for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells}
        magic, _, code = cells["train"].source.partition("\n")
        assert magic.startswith("%%launch ")
        given = "".join(f"{key} = {value!r}\n" for key, value in parameters.items())
        script = tmp_path / f"cell-{count}.py"
        script.write_text(f"{cells['parameters'].source}\n{given}{code}\n")
        place = tmp_path / f"run-{count}"
        place.mkdir()
        folder.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*argv, str(script)],
            env=job_environment(tmp_path, {"GIPFEL_RUN": str(place), "GIPFEL_CHECKPOINT": str(folder)}),
            cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return logged(place)

    return run
