"""Small notebooks of the tests."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

PARAMETERS = 'seconds: float = 0.1  # how long\ntext = "x"\nfail = False'
BODY = """\
import os, pathlib, time
time.sleep(seconds)
print(text.encode().hex() if isinstance(text, str) else text)
print(os.getcwd(), os.environ.get("GIPFEL_ENGINE"), pathlib.Path("/opt/marker.txt").exists())"""


def write_notebook(
    path: Path, *, body: str = BODY, parameters: str = PARAMETERS, kernel: str = "python3"
) -> Path:
    """Write a notebook with a parameters cell, a body and a cell that fails when it is told to."""
    node = new_notebook(
        cells=[new_code_cell(parameters), new_code_cell(body), new_code_cell("assert not fail, 'as told'")],
        metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
    )
    node.cells[0].metadata["tags"] = ["parameters"]
    path.write_text(nbformat.writes(node))
    return path


def printed(path: Path) -> list[str]:
    """The lines that an executed notebook's cells have printed."""
    node = nbformat.reads(path.read_text(), as_version=4)
    texts = [output.text for cell in node.cells for output in cell.get("outputs", ()) if "text" in output]
    return "".join(texts).splitlines()
