"""Notebook files: reading and checking a batch notebook, its kernel, and where its output may go."""

import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

from ...telemetry.files import read_json

#: Largest notebook; outputs with images are large, but browsers can't open larger files.
MAX_NOTEBOOK_BYTES = 512 << 20
#: First format with cells at the top level.
_FORMAT = 4
# Characters that Slurm interprets in the path of a log.
_PATTERNS = ("%", "\\")
#: Name of ipykernel's default kernel.
NATIVE = "python3"


def read_notebook(path: Path) -> Any:
    """Read a file and check that it is a notebook that can run as a batch job.

    Raises
    ------
    GipfelError
        The file is missing, unreadable or not a notebook, or the notebook names no kernel.
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
        The file is missing, unreadable, not JSON or not a notebook.
    """
    try:
        content = read_json(path, MAX_NOTEBOOK_BYTES, follow=True)
    except FileNotFoundError:
        raise GipfelError(f"The notebook {path} does not exist.", "Check the path.") from None
    except OSError as error:
        why = f"The notebook {path} can't be read: {error.strerror}."
        raise GipfelError(why, "Give a notebook that you can read.") from error
    except ValueError as error:
        raise _no_notebook(path, f"not valid JSON ({one_line(str(error))[:120]})") from error
    if not isinstance(content, dict) or not isinstance(content.get("nbformat"), int):
        raise _no_notebook(path, "it has no 'nbformat'")
    return content


def check_format(path: Path, content: Mapping[str, Any]) -> None:
    """Check that a notebook has format 4 or newer, with a list of cells.

    Raises
    ------
    GipfelError
        The notebook has an older format, or no list of cells.
    """
    if content["nbformat"] < _FORMAT:
        raise GipfelError(
            f"The notebook {path} has the old format nbformat {content['nbformat']}.",
            f"Convert it with `jupyter nbconvert --to notebook {shlex.quote(path.name)}`.",
        )
    cells = content.get("cells")
    if not isinstance(cells, list) or not all(isinstance(each, dict) and "source" in each for each in cells):
        raise _no_notebook(path, "it has no list of cells")


def check_output(output: Path, notebook: Path, names: Sequence[str]) -> None:
    """Check that the executed notebook and its log can be written, without writing anything.

    Parameters
    ----------
    output
        Path of the executed notebook; its name is a template if the notebook runs once for each point of a
        grid of parameters.
    names
        Names of all files that will be written to the output's directory.

    Raises
    ------
    GipfelError
        The directory is missing or not writable, or the output would overwrite the notebook itself or
        something that is not a writable file.
    """
    folder, again = output.parent, "Give another path for the executed notebook."
    for path in (notebook, output):
        # Bytes of a file's name that are not UTF-8 become surrogates.
        if str(path) != str(path).encode(errors="replace").decode():
            raise GipfelError(f"The path {str(path)!a} is not UTF-8 text.", "Rename the file.")
    directory = f"The directory {folder} for the executed notebook"
    problems = (
        (output.suffix != ".ipynb", f"The executed notebook {output} must end in '.ipynb'.", again),
        (
            any(character in str(output) for character in _PATTERNS),
            f"The path {output} has a '%' or a backslash, which Slurm interprets.",
            again,
        ),
        (not folder.is_dir(), f"{directory} does not exist.", "Create it."),
        (not os.access(folder, os.W_OK | os.X_OK), f"{directory} can't be written to.", again),
    )
    for applies, problem, fix in problems:
        if applies:
            raise GipfelError(problem, fix)
    for path in (folder / name for name in names):
        if path.exists() and path.samefile(notebook):
            raise GipfelError(f"The executed notebook would overwrite {notebook}.", again)
        if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            raise GipfelError(f"{path} exists, but is not a file that you can write to.", again)


def language_of(content: Mapping[str, Any]) -> str:
    """Return the language of a notebook's cells in lower case from its metadata; by default Python."""
    metadata = content.get("metadata")
    for name, key in (("kernelspec", "language"), ("language_info", "name")):
        about = metadata.get(name) if isinstance(metadata, dict) else None
        said = about.get(key) if isinstance(about, dict) else None
        if isinstance(said, str) and said:
            return said.lower()
    return "python"


def kernel_of(notebook: Path) -> str:
    """Return the name of a notebook's kernel.

    Raises
    ------
    GipfelError
        The notebook can't be read or names no kernel.
    """
    name = requested_kernel(notebook)
    if not name:
        raise GipfelError(f"The notebook {notebook} names no kernel.", "Pick one in JupyterLab and save it.")
    return name


def requested_kernel(notebook: Path) -> str:
    """Return the name of a notebook's kernel; empty if it names none.

    Raises
    ------
    GipfelError
        The notebook can't be read, or has an old format.
    """
    content = read_content(notebook)
    check_format(notebook, content)
    try:
        return str(content["metadata"]["kernelspec"]["name"])
    except (KeyError, TypeError):
        return ""


def is_native(name: str) -> bool:
    """Return whether a name is empty or that of ipykernel's default kernel, which every runtime has."""
    return name in {"", "python", NATIVE}


def find_kernel(name: str) -> tuple[str, ...]:
    """Return the argv of the kernel with this name.

    Raises
    ------
    GipfelError
        The kernel is not installed; the error has the names of installed ones.
    """
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel  # noqa: PLC0415

    known = KernelSpecManager()
    try:
        # "python" means the default kernel, as in Jupyter's kernel manager.
        return tuple(known.get_kernel_spec(NATIVE if name == "python" else name).argv)
    except NoSuchKernel:
        have = ", ".join(sorted(known.find_kernel_specs()))
        raise GipfelError(f"There is no kernel {name!r} here.", f"Give --kernel one of: {have}.") from None


def escape_braces(path: Path) -> str:
    """Return a path with doubled braces, because papermill formats paths with the parameters."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _read(path: Path) -> Any:
    import nbformat  # noqa: PLC0415 - half a second
    from nbformat.v4.rwbase import rejoin_lines  # noqa: PLC0415

    content = read_content(path)
    if not _tags_are_words(content):
        raise _no_notebook(path, "the tags of a cell are not a list of texts")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Cells of an older notebook have no id.
            node = nbformat.convert(nbformat.from_dict(content), 4)  # type: ignore[no-untyped-call]
            nbformat.validate(node, relax_add_props=True)
            node = rejoin_lines(node)  # type: ignore[no-untyped-call]
    except nbformat.ValidationError as error:
        raise _no_notebook(path, one_line(str(error.message))[:120]) from error
    except Exception as error:  # the conversion may raise anything
        raise _no_notebook(path, f"its content is not of format {content['nbformat']}") from error
    return node


def _tags_are_words(content: dict[str, Any]) -> bool:
    """Return whether all tags are lists of texts; nbformat takes quadratic time to validate others."""
    cells = content.get("cells")
    metadata = (
        [cell.get("metadata") for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []
    )
    tags = [each.get("tags", []) for each in metadata if isinstance(each, dict)]
    return all(isinstance(each, list) and all(isinstance(tag, str) for tag in each) for each in tags)


def _no_notebook(path: Path, why: str) -> GipfelError:
    return GipfelError(f"{path} is not a notebook: {why}.", "Give a notebook that JupyterLab has saved.")
