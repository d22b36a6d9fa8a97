"""Requirements on every notebook: its form, its parameters, and its line in the README."""

from pathlib import Path

import nbformat
import papermill
import pytest
from notebook_runs import NOTEBOOKS

_KINDS = {"str", "int", "float", "bool", "dict"}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_is_valid_without_outputs_and_says_what_its_parameters_are(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.cells[0].source.startswith("# ")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            if not cell.source.startswith(("%%launch", "%load_ext")):
                compile(cell.source, path.name, "exec")
    found = papermill.inspect_notebook(str(path))
    assert found
    for name, each in found.items():
        assert each["inferred_type_name"] in _KINDS, name
        assert each["help"], name
    assert f"`{path.stem}`" in (NOTEBOOKS / "README.md").read_text()


@pytest.mark.parametrize("name", ["train-ddp", "train-fsdp", "train-tensor-pipeline", "finetune"])
def test_a_launched_cell_gets_every_parameter_of_the_training_and_no_other(name: str) -> None:
    path = NOTEBOOKS / f"{name}.ipynb"
    cells = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    magic, _, code = cells["train"].partition("\n")
    passed = magic.rpartition("--pass ")[2].split(",")
    where = {"nodes", "gpus_per_node", "edf", "vet", "more", "checkpoint"}
    assert set(passed) == set(papermill.inspect_notebook(str(path))) - where
    compile(code, path.name, "exec")
    assert all(each in code for each in passed)
