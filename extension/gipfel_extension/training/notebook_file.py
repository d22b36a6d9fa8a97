"""A notebook as a file: whether it is one, which parameters it takes, how far its run is."""

import difflib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

#: As a word of papermill's arguments, ``-p NAME VALUE`` of every parameter of the run.
RECORDED = "--recorded-parameters"

_TAG = "parameters"
# Slurm would read these in the log's path as patterns.
_PATTERNS = ("%", "\\")


def check_notebook(path: Path, names: Sequence[str]) -> None:
    """See that a file is a notebook that can run as a batch job and takes these parameters.

    Raises
    ------
    GipfelError
        It is missing, unreadable or no notebook, names no kernel, or has no parameter of such a name.
    """
    node = _read(path)
    if not node.metadata.get("kernelspec", {}).get("name"):
        raise GipfelError(f"The notebook {path} names no kernel.", "Pick one in JupyterLab and save it.")
    if names:
        _check_names(path, node, names)


def log_of(output: Path) -> Path:
    """Where the log of a notebook's job goes: beside the executed notebook."""
    return output.with_name(f"{output.name}.log")


def check_output(output: Path, notebook: Path) -> None:
    """See that the executed notebook and its log can be written; nothing is written.

    Raises
    ------
    GipfelError
        The folder is missing or closed, or a file is in the way.
    """
    folder, again = output.parent, "Give another path for the executed notebook."
    if output.suffix != ".ipynb":
        raise GipfelError(f"The executed notebook {output} must end in '.ipynb'.", again)
    if any(character in str(output) for character in _PATTERNS):
        raise GipfelError(f"The path {output} holds a '%' or a backslash, which Slurm would read.", again)
    if not folder.is_dir():
        raise GipfelError(f"The folder {folder} for the executed notebook does not exist.", "Make it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise GipfelError(f"The folder {folder} for the executed notebook can't be written to.", again)
    if output.exists() and output.samefile(notebook):
        raise GipfelError(f"The executed notebook would overwrite {notebook}.", again)
    for path in (output, log_of(output)):
        if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            raise GipfelError(f"{path} is in the way: it is no file that you can write.", again)


def written(output: Path) -> int:
    """When an executed notebook was last written, in nanoseconds; 0 where there is none."""
    try:
        return output.stat().st_mtime_ns
    except OSError:
        return 0


def cells_done(output: Path) -> str:
    """How far papermill is, as ``3 of 7 cells``; empty before it has begun or while it writes."""
    try:
        cells = json.loads(output.read_bytes())["cells"]
        code = [cell["metadata"]["papermill"] for cell in cells if cell["cell_type"] == "code"]
        states = [state.get("status") for state in code]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f"{states.count('completed')} of {len(states)} cells" if states else ""


def _read(path: Path) -> Any:
    import nbformat  # noqa: PLC0415 - half a second

    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise GipfelError(f"The notebook {path} does not exist.", "Check the path.") from None
    except OSError as error:
        why = f"The notebook {path} can't be read: {error.strerror}."
        raise GipfelError(why, "Give a file that you can read.") from error
    except (ValueError, RecursionError) as error:
        raise _no_notebook(path, f"it is no JSON text ({one_line(str(error))[:120]})") from error
    if not isinstance(content, dict) or not isinstance(content.get("nbformat"), int):
        raise _no_notebook(path, "it has no 'nbformat'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # An older notebook's cells without an id are no one's concern here.
            node = nbformat.convert(nbformat.from_dict(content), 4)  # type: ignore[no-untyped-call]
            nbformat.validate(node, relax_add_props=True)
    except nbformat.ValidationError as error:
        raise _no_notebook(path, one_line(str(error.message))[:120]) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_notebook(path, f"its content is not of format {content['nbformat']}") from error
    return node


def _no_notebook(path: Path, why: str) -> GipfelError:
    return GipfelError(f"{path} is no notebook: {why}.", "Give a file that JupyterLab has saved.")


def _check_names(path: Path, node: Any, names: Sequence[str]) -> None:
    from papermill.exceptions import PapermillException  # noqa: PLC0415 - a second
    from papermill.inspection import inspect_notebook  # noqa: PLC0415

    if not any(_TAG in cell.metadata.get("tags", ()) for cell in node.cells):
        raise GipfelError(
            f"The notebook {path} takes no parameters.", f"Tag the cell that sets them with '{_TAG}'."
        )
    try:
        known = list(inspect_notebook(braced(path)))
    except PapermillException:
        return  # A language that papermill can't look into; it warns in the log.
    if not known and node.metadata.get("kernelspec", {}).get("language", "python") != "python":
        return
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            fix = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known) or 'none'}."
            raise GipfelError(f"The notebook {path} has no parameter {name!r}.", fix)


def braced(path: Path) -> str:
    """A path as papermill takes it, which fills in what stands in braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def unbraced(argument: str) -> Path:
    """The path that `braced` was given."""
    return Path(argument.replace("{{", "{").replace("}}", "}"))
