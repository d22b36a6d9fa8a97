"""A vetting run in a cell: executed, returned, and displayed as a table."""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from gipfel_cluster.model import GipfelError
from gipfel_extension.vetting.model import CheckResult, Scope, Verdict
from gipfel_extension.vetting.protocol import ProtocolCheck, VettingProtocol
from gipfel_extension.vetting.report import make_report
from gipfel_widgets import Vetting, vet

_STRICT = """\
name: strict
checks:
- {name: variable, type: environment, parameters: {expected: {NOT_SET_HERE: "<b>"}}}
- {name: memory, type: host_memory, parameters: {min_available: 1 %}}
"""
_ESM_BYTES = 50_000


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test, with a protocol; the current folder."""
    for name in ("SLURM_JOB_ID", "GIPFEL_VETTING_HISTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strict.yaml").write_text(_STRICT)
    return tmp_path


def test_a_cell_shows_the_run_returns_its_report_and_keeps_the_table(home: Path) -> None:
    cells = [
        "from gipfel_widgets import vet\nreport = vet('./strict.yaml')",
        "print(report.vetted, list(report.bad_nodes))\nreport",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    kernel = {"name": "here", "display_name": "here", "language": "python"}
    folder = home / "kernels" / "here"
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, **kernel}))
    client = NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(home)}})
    manager = client.create_kernel_manager()
    manager.kernel_spec_manager.kernel_dirs = [str(folder.parent)]
    manager.kernel_name = "here"
    client.execute()
    (shown,) = [each for each in notebook.cells[0].outputs if each.output_type == "display_data"]
    # The view is gone with its kernel; what stays needs none.
    assert set(shown.data) == {"text/plain", "text/html"}
    assert "0 of 1 node vetted (strict" in shown.data["text/plain"]
    table = shown.data["text/html"]
    assert "NOT_SET_HERE is not set, and must be &#x27;&lt;b&gt;&#x27;" in table
    assert "<b>" not in table
    assert all(each in table for each in ("✗", "✓", "fail (image).", '<th scope="col">memory</th>'))
    assert "--exclude=" not in table
    said = "".join(str(each.get("text", "")) for each in notebook.cells[1].outputs)
    assert said.startswith("False")
    assert "Vetting: 0 of 1 node vetted" in str(notebook.cells[1].outputs[-1].data["text/plain"])


def test_what_can_t_be_run_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GipfelError, match="There is no protocol 'strct'"):
        vet("strct")
    with pytest.raises(GipfelError, match="not a valid action in a notebook"):
        vet("strict", action="exclude")
    with pytest.raises(GipfelError, match="belongs to no run"):
        Vetting()
    # A vetting leaves a report when it is interrupted, if it got as far as that.
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr("gipfel_widgets.vetting.vet_argv", lambda *_, **__: argv)
    with pytest.raises(GipfelError, match=r"0\.1 s were too short"):
        vet("strict", timeout=0.1, show=False)


def test_a_report_that_grows_is_followed(home: Path, wait_for: Any) -> None:
    run = home / "a-run"
    run.mkdir()
    view = Vetting(run)
    assert (view.grid, "Not vetted yet" in view.message) == ({}, True)
    protocol = VettingProtocol(name="quick", checks=(ProtocolCheck(name="only", type="dns"),))
    nodes = [f"nid{number:04}" for number in range(200)]
    results = [
        CheckResult(
            check="only", type="dns", scope=Scope.NODE, subject=node, node=node,
            verdict=Verdict.FAIL if number == 150 else Verdict.PASS, reason="So it is.",
        )
        for number, node in enumerate(nodes)
    ]  # fmt: skip
    make_report(protocol, nodes, results[:10], started_ns=1, running={nodes[20]: "only"}).write(run)
    wait_for(lambda: view.grid.get("done") == 10, 20)
    make_report(protocol, nodes, results, started_ns=1, ended_ns=2, complete=True).write(run)
    wait_for(lambda: view.grid.get("vetted") == 199, 20)
    assert (view.grid["rows"][0]["node"], len(view.grid["rows"])) == ("nid0150", 60)
    assert view.grid["more"] == {"pass": 140}
    (run / "vetting.json").write_text('{"schema_version": 9}')
    wait_for(lambda: "is not a vetting report" in view.message, 20)
    view.close()
    assert 0 < len(str(view._esm).encode()) < _ESM_BYTES
