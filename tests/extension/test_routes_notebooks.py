import json

import nbformat
import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory of notebooks on the server's data path."""
    folder = tmp_path_factory.mktemp("share") / "gipfel" / "notebooks"
    folder.mkdir(parents=True)
    cells = [nbformat.v4.new_markdown_cell("# Measure it\nwords"), nbformat.v4.new_code_cell("1 + 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "measure-it.ipynb")
    nbformat.write(nbformat.v4.new_notebook(cells=cells[1:]), folder / "start-here.ipynb")
    return folder


@pytest.fixture(scope="module")
def server(start_shared, folder):
    return start_shared(JUPYTER_PATH=str(folder.parent.parent))


def test_shipped_notebooks_are_listed_by_their_titles(server):
    status, answer = server.call("gipfel/notebooks")
    assert status == 200
    assert {"name": "measure-it", "title": "Measure it"} in answer["notebooks"]
    # Newcomers open this one first; the others follow by name.
    first, *others = (each["name"] for each in answer["notebooks"])
    assert first == "start-here"
    assert others == sorted(others)


def test_a_copy_is_made_once_and_never_overwritten(server):
    assert server.call("gipfel/notebooks/measure-it", "POST", {}) == (
        201,
        {"path": "measure-it.ipynb", "created": True},
    )
    copy = server.root / "measure-it.ipynb"
    assert nbformat.read(copy, 4).cells[1].source == "1 + 1"
    changed = copy.read_text().replace("1 + 1", "2 + 2")
    copy.write_text(changed)
    assert server.call("gipfel/notebooks/measure-it", "POST", {}) == (
        200,
        {"path": "measure-it.ipynb", "created": False},
    )
    assert copy.read_text() == changed


def test_unknown_names_and_paths_are_refused(server):
    before = list(server.root.iterdir())
    status, answer = server.call("gipfel/notebooks/other", "POST", {})
    assert status == 400
    assert "measure-it" in answer["message"]
    for name in ("..%2Fx", ".hidden", "a%2Fb"):
        assert server.call(f"gipfel/notebooks/{name}", "POST", {})[0] == 404
    assert list(server.root.iterdir()) == before


def test_a_damaged_notebook_is_said_in_one_line(server, folder):
    (folder / "broken.ipynb").write_text('{"cells"')
    status, answer = server.call("gipfel/notebooks/broken", "POST", {})
    assert status == 400
    assert "is not a notebook" in answer["message"]
    assert "\n" not in json.dumps(answer)
    assert not (server.root / "broken.ipynb").exists()
