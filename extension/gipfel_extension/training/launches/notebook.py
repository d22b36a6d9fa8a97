"""``python -I -m gipfel_extension.training.launches.notebook FOLDER``: rank 0 of a notebook's launch.

The notebook runs through the papermill engine in a kernel of the image's Python, which inherits this rank's
variables; the other ranks run the same cells as a script. It always runs from its first cell on: ranks that
left cells out would wait for each other. What shall survive a restart is in the program's checkpoints.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ..papermill.run import kernel_of, run_notebook

OUTPUT = "notebook.ipynb"


def main(arguments: Sequence[str]) -> int:
    """Run the notebook of a launch's folder; its exit status is the engine's."""
    folder = Path(arguments[0])
    plan = json.loads((folder / "attempt.json").read_bytes())
    notebook = Path(plan["target"])
    with tempfile.TemporaryDirectory(prefix="gipfel-k", dir="/tmp") as runtime:
        os.environ["JUPYTER_RUNTIME_DIR"] = runtime
        from ...kernels import offer_image_kernel  # noqa: PLC0415 - above this floor, and here only

        problem = offer_image_kernel(os.environ)
        if problem:
            _tell(f"{problem} The notebook runs with Gipfel's Python instead.")
        try:
            outcome = run_notebook(
                notebook,
                folder / OUTPUT,
                plan["parameters"],
                kernel=kernel_of(notebook),
                directory=Path.cwd(),
                log_output=True,
            )
        except GipfelError as error:
            _tell(f"The notebook can't be run: {error}")
            return 1
    if outcome.problem:
        _tell(outcome.problem)
        _note(folder, outcome.problem)
    return outcome.exit_status


def _note(folder: Path, problem: str) -> None:
    path = os.environ.get("GIPFEL_RANK_ERROR")
    if path:
        node = os.environ.get("GIPFEL_NODE", "")
        content = {"rank": 0, "node": node, "message": problem, "where": str(folder / OUTPUT)}
        import time  # noqa: PLC0415

        Path(path).write_text(json.dumps({**content, "time_ns": time.time_ns(), "traceback": ""}))


def _tell(line: str) -> None:
    sys.stderr.write(f"gipfel: {one_line(line)}\n")


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    sys.exit(main(sys.argv[1:]))
