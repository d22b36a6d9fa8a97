"""An executed notebook, what its launch logged, and the environment of a machine without a cluster."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LIMIT_S = 600


@dataclass(frozen=True)
class Executed:
    """An executed notebook, and the folder of all runs that it made."""

    notebook: Any
    runs: Path

    def outputs(self, cell_id: str) -> list[Any]:
        """Return what a cell has shown."""
        return list(next(cell for cell in self.notebook.cells if cell.id == cell_id).outputs)

    def text(self, cell_id: str) -> str:
        """All text of a cell."""
        parts = []
        for output in self.outputs(cell_id):
            data = output.get("data", {})
            parts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/markdown", "")]
            parts.append(data.get("text/html", ""))
        return "\n".join(part for part in parts if part)

    @property
    def launch(self) -> Path:
        """The folder of its only launch."""
        (found,) = (self.runs / "launches").glob("[0-9]*")
        return found

    @property
    def logged(self) -> list[dict[str, Any]]:
        """Return what its launch has logged."""
        return logged(Path(json.loads((self.launch / "state.json").read_text())["run"]))


def logged(run: Path) -> list[dict[str, Any]]:
    """Return what was noted by ``log`` in a run folder."""
    return [json.loads(line)["values"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(lines: list[dict[str, Any]]) -> dict[int, float]:
    """Loss by step."""
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def job_environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIPFEL_", "SLURM_"))}
    # Without a cluster: Slurm's commands may be here all the same.
    here = {"GIPFEL_SCHEDULER": "local", "GIPFEL_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    return {**kept, **here, "IPYTHONDIR": str(folder / "ipython"), **more}


def last_words(folder: Path) -> str:
    """The end of every log of its launches, for a test that fails."""
    logs = folder.glob("runs/**/launches/*/*.log")
    return "".join(f"\n--- {path}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)
