"""The notebook that measures: its parameters for papermill, and its outputs after a run."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest

_NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "measure-saturation.ipynb"
_PLOTLY = "application/vnd.plotly.v1+json"
_WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def execute(tmp_path):
    """Runs the notebook as a batch job does; the result, and where runs went."""

    def run(**parameters):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIPFEL_")}
        environment = {**kept, "GIPFEL_RUNS": str(tmp_path / "runs"), "IPYTHONDIR": str(tmp_path / "ipython")}
        out = tmp_path / "out.ipynb"
        argv = [sys.executable, "-m", "papermill", str(_NOTEBOOK), str(out), "--no-progress-bar"]
        for name, value in parameters.items():
            argv += ["-p", name, str(value)]
        done = subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return nbformat.read(out, as_version=4)

    return run


def _outputs(notebook, cell_id):
    return next(cell for cell in notebook.cells if cell.id == cell_id).outputs


def _texts(outputs):
    return " ".join(str(output.get("data", {}).get("text/markdown", "")) for output in outputs)


def test_it_is_valid_and_holds_no_output():
    notebook = nbformat.read(_NOTEBOOK, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].source.startswith("# ")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_every_parameter_is_typed_and_explained():
    found = papermill.inspect_notebook(str(_NOTEBOOK))
    assert {name: each["inferred_type_name"] for name, each in found.items()} == {
        "seconds": "float",
        "workload": "str",
        "source": "str",
        "interval": "float",
        "window": "float",
    }
    assert all(each["help"] for each in found.values())


def test_simulated_gpus_are_in_the_executed_notebook_and_marked(execute, tmp_path):
    done = execute(seconds=2, workload="sleep", source="synthetic:training", interval=0.2)
    for cell_id in ("live", "plot"):
        bundle = next(o.data for o in _outputs(done, cell_id) if _PLOTLY in o.get("data", {}))
        figure = bundle[_PLOTLY]
        assert "simulated" in figure["layout"]["title"]["text"]
        assert len(figure["data"]) == 16
        assert all(len(trace["y"]) >= 3 and ("x" in trace or trace["dx"] > 0) for trace in figure["data"])
        assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
        # It must show without this kernel.
        assert _WIDGET not in bundle
    assert "Simulated" in _texts(_outputs(done, "plot"))
    assert "simulated" in str(_outputs(done, "summary")[0].data["text/html"]).lower()
    (run,) = (tmp_path / "runs").iterdir()
    assert str(run) in _texts(_outputs(done, "where"))
    assert list(run.glob("telemetry/*.closed.arrows"))


def test_real_work_is_measured_with_or_without_a_gpu(execute):
    done = execute(seconds=3, workload="matmul", interval=0.2)
    assert "matmul" in _texts(_outputs(done, "run"))
    figure = next(o.data[_PLOTLY] for o in _outputs(done, "plot") if _PLOTLY in o.get("data", {}))
    assert "simulated" not in str(figure["layout"]["title"])
    gpus = [trace for trace in figure["data"] if trace["uid"].endswith("/SM_ACTIVE")]
    assert bool(gpus) is ("There is no GPU here" not in _texts(_outputs(done, "plot")))
    busy = next(trace for trace in figure["data"] if trace["uid"].endswith("/CPU_UTIL"))
    assert max(value for value in busy["y"] if value is not None) > 1
