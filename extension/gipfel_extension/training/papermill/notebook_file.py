"""Notebook files: reading and checking a batch notebook, its kernel, and where its output may go."""

import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

from ...telemetry.files import read_json

#: Outputs with images are large; what is larger no browser opens.
MOST_NOTEBOOK_BYTES = 512 << 20
#: The first format whose cells are at the top.
_FORMAT = 4
# Slurm would read these in the log's path as patterns.
_PATTERNS = ("%", "\\")
#: The name of Python's own kernel.
NATIVE = "python3"


def read_notebook(path: Path) -> Any:
    """Read a file and check that it is a notebook that can run as a batch job.

    Raises
    ------
    GipfelError
        It is missing, unreadable or no notebook, or names no kernel.
    """
    node = _read(path)
    if not node.metadata.get("kernelspec", {}).get("name"):
        raise GipfelError(f"The notebook {path} names no kernel.", "Pick one in JupyterLab and save it.")
    return node


def read_content(path: Path) -> dict[str, Any]:
    """Read a file and check that it is a notebook of any format.

    Raises
    ------
    GipfelError
        It is missing, unreadable, not JSON or not a notebook.
    """
    try:
        content = read_json(path, MOST_NOTEBOOK_BYTES, follow=True)
    except FileNotFoundError:
        raise GipfelError(f"The notebook {path} does not exist.", "Check the path.") from None
    except OSError as error:
        why = f"The notebook {path} can't be read: {error.strerror}."
        raise GipfelError(why, "Give a file that you can read.") from error
    except ValueError as error:
        raise _no_notebook(path, f"not valid JSON ({one_line(str(error))[:120]})") from error
    if not isinstance(content, dict) or not isinstance(content.get("nbformat"), int):
        raise _no_notebook(path, "it has no 'nbformat'")
    return content


def check_format(path: Path, content: Mapping[str, Any]) -> None:
    """Check that a notebook's content is of the format that has its cells at the top.

    Raises
    ------
    GipfelError
        It is of an older format, or has no list of cells.
    """
    if content["nbformat"] < _FORMAT:
        raise GipfelError(
            f"The notebook {path} is of the old format nbformat {content['nbformat']}.",
            f"Convert it with `jupyter nbconvert --to notebook {shlex.quote(path.name)}`.",
        )
    cells = content.get("cells")
    if not isinstance(cells, list) or not all(isinstance(each, dict) and "source" in each for each in cells):
        raise _no_notebook(path, "it has no list of cells")


def check_output(output: Path, notebook: Path, names: Sequence[str]) -> None:
    """Check that the executed notebook and its log can be written; nothing is written.

    Parameters
    ----------
    output
        Where it goes; the directory that counts, and with a grid a template.
    names
        The names of all files that will be written there.

    Raises
    ------
    GipfelError
        The directory is missing or closed, or a file is in the way.
    """
    folder, again = output.parent, "Give another path for the executed notebook."
    for path in (notebook, output):
        if not _is_text(path):
            raise GipfelError(f"The path {str(path)!a} is not UTF-8 text.", "Rename it.")
    if output.suffix != ".ipynb":
        raise GipfelError(f"The executed notebook {output} must end in '.ipynb'.", again)
    if any(character in str(output) for character in _PATTERNS):
        raise GipfelError(f"The path {output} holds a '%' or a backslash, which Slurm would read.", again)
    if not folder.is_dir():
        raise GipfelError(f"The directory {folder} for the executed notebook does not exist.", "Make it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise GipfelError(f"The directory {folder} for the executed notebook can't be written to.", again)
    for path in (folder / name for name in names):
        if path.exists() and path.samefile(notebook):
            raise GipfelError(f"The executed notebook would overwrite {notebook}.", again)
        if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            raise GipfelError(f"{path} exists and is not a file that you can write.", again)


def language_of(content: Mapping[str, Any]) -> str:
    """Return the language of a notebook's cells in lower case: that of its metadata, else Python."""
    metadata = content.get("metadata")
    for name, key in (("kernelspec", "language"), ("language_info", "name")):
        about = metadata.get(name) if isinstance(metadata, dict) else None
        said = about.get(key) if isinstance(about, dict) else None
        if isinstance(said, str) and said:
            return said.lower()
    return "python"


def kernel_of(notebook: Path) -> str:
    """Return the name of the kernel that a notebook asks for.

    Raises
    ------
    GipfelError
        It can't be read or names none.
    """
    name = asked_kernel(notebook)
    if not name:
        raise GipfelError(f"The notebook {notebook} names no kernel.", "Pick one in JupyterLab and save it.")
    return name


def asked_kernel(notebook: Path) -> str:
    """Return the name of the kernel that a notebook asks for, empty where it names none.

    Raises
    ------
    GipfelError
        It can't be read, or is of a format without one.
    """
    content = read_content(notebook)
    check_format(notebook, content)
    try:
        return str(content["metadata"]["kernelspec"]["name"])
    except (KeyError, TypeError):
        return ""


def is_native(name: str) -> bool:
    """Return whether a name, or none, is that of Python's own kernel, which every runtime has."""
    return name in {"", "python", NATIVE}


def find_kernel(name: str) -> tuple[str, ...]:
    """Return the argv of the kernel of this name, before the output is touched.

    Raises
    ------
    GipfelError
        There is none; those that are there are named.
    """
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel  # noqa: PLC0415

    known = KernelSpecManager()
    try:
        # The language's name means its own kernel, as in the kernel manager.
        return tuple(known.get_kernel_spec(NATIVE if name == "python" else name).argv)
    except NoSuchKernel:
        have = ", ".join(sorted(known.find_kernel_specs()))
        raise GipfelError(f"There is no kernel {name!r} here.", f"Give --kernel one of: {have}.") from None


def braced(path: Path) -> str:
    """Return a path with its braces doubled, since papermill fills in what stands in braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(path: Path) -> Any:
    import nbformat  # noqa: PLC0415 - half a second
    from nbformat.v4.rwbase import rejoin_lines  # noqa: PLC0415

    content = read_content(path)
    if not _tags_are_words(content):
        raise _no_notebook(path, "a cell has other tags than words")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Cells of an older notebook have no id.
            node = nbformat.convert(nbformat.from_dict(content), 4)  # type: ignore[no-untyped-call]
            nbformat.validate(node, relax_add_props=True)
            node = rejoin_lines(node)  # type: ignore[no-untyped-call]
    except nbformat.ValidationError as error:
        raise _no_notebook(path, one_line(str(error.message))[:120]) from error
    except Exception as error:  # whatever its conversion stumbles over
        raise _no_notebook(path, f"its content is not of format {content['nbformat']}") from error
    return node


def _tags_are_words(content: dict[str, Any]) -> bool:
    """Return whether tags are what they should be: of others nbformat compares each with each, at length."""
    cells = content.get("cells")
    abouts = (
        [cell.get("metadata") for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []
    )
    tags = [about.get("tags", []) for about in abouts if isinstance(about, dict)]
    return all(isinstance(each, list) and all(isinstance(tag, str) for tag in each) for each in tags)


def _no_notebook(path: Path, why: str) -> GipfelError:
    return GipfelError(f"{path} is not a notebook: {why}.", "Give a file that JupyterLab has saved.")
