"""Checks of the script or notebook of a launch, before anything is started."""

import re
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ...telemetry.files import open_regular
from ..notebook_file import check_format, language_of, read_content
from ..spec import LaunchSpec

# Commands that people are used to type before a script.
_STARTERS = re.compile(r"python[0-9.]*|torchrun|accelerate|srun")
_LINE_BYTES = 256


def check_target(spec: LaunchSpec, target: Path, *, seen: bool) -> None:
    """Check the file of a script or notebook.

    Parameters
    ----------
    target
        Its absolute path.
    seen
        Whether the ranks have the files that this process has; in an image there may be others.

    Raises
    ------
    GipfelError
        It is missing, or is nothing that Python ranks can run.
    """
    if spec.kind not in {"script", "notebook"}:
        return
    if not target.is_file():
        if spec.kind == "script" and _STARTERS.fullmatch(spec.target):
            others = " ".join(spec.arguments[:1]) or "train.py"
            raise GipfelError(
                f"{spec.target!r} is not a script: ranks run Python by themselves.",
                f"Leave it out: `gipfel launch … -- {others}`; for a module, use -m.",
            )
        if seen and target.is_dir():
            raise GipfelError(f"{target} is a directory.", "Name the script in it.")
        if seen:
            raise GipfelError(f"There is no file {target}.", "Check the name.")
    elif spec.kind == "script":
        _check_script(target)
    else:
        _check_notebook(target)


def _check_script(path: Path) -> None:
    try:
        with open_regular(path, follow=True) as file:
            first = file.readline(_LINE_BYTES)
    except OSError as error:
        raise GipfelError(f"The script {path} can't be read: {error.strerror}.", "Check the path.") from error
    shell = b"python" not in first if first.startswith(b"#!") else path.suffix in {".sh", ".bash"}
    if shell or first.startswith(b"\x7fELF"):
        what = "a compiled program" if first.startswith(b"\x7fELF") else "a shell script"
        raise GipfelError(
            f"{path} is {what}; ranks run Python.",
            "Name the Python script that it starts, and set its variables with --env.",
        )


def _check_notebook(path: Path) -> None:
    content = read_content(path)
    check_format(path, content)
    language = language_of(content)
    if language != "python":
        raise GipfelError(
            f"The notebook {path} is written in {language}; ranks run Python.", "Name a notebook in Python."
        )
