"""``python -I -m gipfel_extension.training.launches.notebook FOLDER PYTHON``: rank 0 of a notebook's launch.

Papermill runs the notebook in a kernel of the ranks' Python, which inherits this rank's variables. The other
ranks run the same cells as a script. After a restart the notebook begins with its first cell, because the
other ranks wait for a rank that skips cells, and the program resumes from its checkpoint. Only the notebook
of a single rank that has cells tagged ``setup`` resumes at the first cell that has not finished.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line

from ...telemetry.files import read_json
from ..papermill.notebook_file import MAX_NOTEBOOK_BYTES, NATIVE, find_kernel, is_native, requested_kernel
from ..papermill.progress import report_line
from ..record import MAX_BYTES

OUTPUT = "notebook.ipynb"
#: Code that the kernel runs before the first cell, to arm and profile it like the other ranks.
_STARTUP = """
def _gipfel_arm():
    import atexit, importlib.util, sys
    spec = importlib.util.spec_from_file_location("gipfel_run", {program!r})
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.arm()
    atexit.register(module.start_profiler({{"profile": {profile!r}}}))


try:
    _gipfel_arm()
except Exception as _gipfel_error:
    print("gipfel: rank 0 is not watched:", _gipfel_error)
    del _gipfel_error
del _gipfel_arm
"""


def main(arguments: Sequence[str]) -> int:
    """Run the notebook of a launch's directory; its exit status is the engine's."""
    folder = Path(arguments[0])
    plan = read_json(folder / "attempt.json", MAX_BYTES)
    notebook = Path(plan["target"])
    with tempfile.TemporaryDirectory(prefix="gipfel-k", dir="/tmp") as runtime:
        os.environ["JUPYTER_RUNTIME_DIR"] = runtime
        begin = Path(runtime, "startup.py")
        begin.write_text(_STARTUP.format(program=str(folder / "run.py"), profile=bool(plan["profile"])))
        os.environ["PYTHONSTARTUP"] = str(begin)
        try:
            kernel = _prepare_kernel(notebook, str(plan.get("kernel", "")), *arguments[1:])
            from ..papermill.engine import run_notebook  # noqa: PLC0415 - papermill takes a second

            outcome = run_notebook(
                notebook,
                folder / OUTPUT,
                plan["parameters"],
                kernel=kernel,
                directory=Path.cwd(),
                # Write the output of the cells without papermill's log, as the other ranks do.
                stdout=sys.stdout,
                stderr=sys.stderr,
                resume=resumes(notebook, folder, os.environ),
            )
        except GipfelError as error:
            problem, status = f"The notebook can't be run: {error}", 1
        else:
            problem, status = outcome.problem, outcome.exit_status
    if problem:
        report_line(problem)
        _write_error(folder, one_line(problem))
    return status


def _prepare_kernel(notebook: Path, requested: str, python: str = "") -> str:
    """Make the ranks' `python` the kernel ``python3``, and return the name of the kernel to run.

    Raises
    ------
    GipfelError
        The ranks run without a container, and their Python can't be a kernel.
    """
    from ...kernels import INSTALL_IPYKERNEL, offer_image_kernel, offer_rank_kernel  # noqa: PLC0415 - a higher layer

    if os.environ.get("GIPFEL_ENGINE", "host") != "host":
        problem = offer_image_kernel(os.environ)
        if problem:
            report_line(f"{problem} The notebook runs with Gipfel's Python instead.")
        return chosen_kernel(notebook, requested)
    kernel = chosen_kernel(notebook, requested)
    if python and is_native(kernel):
        problem = offer_rank_kernel(python, Path(sys.prefix), os.environ)
        if problem:
            # With Gipfel's Python, rank 0 would have other packages than the other ranks.
            raise GipfelError(problem, INSTALL_IPYKERNEL)
    return kernel


def chosen_kernel(notebook: Path, requested: str) -> str:
    """Return the kernel that runs a notebook: the requested one, else that of the notebook, else python3.

    Raises
    ------
    GipfelError
        The notebook can't be read.
    """
    if requested:
        return requested
    name = requested_kernel(notebook)
    try:
        find_kernel(name or NATIVE)
    except GipfelError:
        # The notebook may name a kernel of another machine.
        report_line(f"The notebook's kernel {name!r} is not installed: {NATIVE} runs the notebook.")
        return NATIVE
    return name or NATIVE


def resumes(notebook: Path, folder: Path, environment: Mapping[str, str]) -> bool:
    """Return whether a restarted rank skips the cells that have finished."""
    restarted = environment.get("GIPFEL_RESUME") == "1" and (folder / OUTPUT).is_file()
    if not restarted or environment.get("WORLD_SIZE") != "1":
        return False
    try:
        cells = read_json(notebook, MAX_NOTEBOOK_BYTES, follow=True)["cells"]
        return any("setup" in each.get("metadata", {}).get("tags", ()) for each in cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_error(folder: Path, problem: str) -> None:
    path = os.environ.get("GIPFEL_RANK_ERROR")
    if path:
        node = os.environ.get("GIPFEL_NODE", "")
        content = {"rank": 0, "node": node, "message": problem, "location": str(folder / OUTPUT)}
        import time  # noqa: PLC0415

        Path(path).write_text(json.dumps({**content, "time_ns": time.time_ns(), "traceback": ""}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
