"""Checks of a launch's script or notebook before it starts, and the Python of ranks without a container."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.model import GipfelError

from ...telemetry.files import open_regular
from ..papermill.notebook_file import check_format, language_of, read_content
from ..record.spec import LaunchSpec

# Commands that people are used to type before a script.
_STARTERS = re.compile(r"python[0-9.]*|torchrun|accelerate|srun")
_LINE_BYTES = 256
_LIMIT_S = 20.0
_ASK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


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


def callers_python(environment: Mapping[str, str]) -> str:
    """Return the interpreter that the caller means; empty for Gipfel's own.

    It is that of an activated virtual environment, in a notebook the kernel's, else the first ``python3`` of
    PATH. Where only Gipfel's own has torch, it is that one: nothing was activated then.
    """
    virtual = environment.get("VIRTUAL_ENV", "")
    for name in ("python3", "python"):
        if virtual and Path(virtual, "bin", name).is_file():
            return str(Path(virtual).absolute() / "bin" / name)
    found = shutil.which("python3", path=environment.get("PATH"))
    if found is None or "ipykernel" in sys.modules or Path(found).samefile(sys.executable):
        return ""
    if importlib.util.find_spec("torch") and not _has_torch(found, environment):
        return ""
    return str(Path(found).absolute())


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


def _has_torch(python: str, environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", _ASK],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
