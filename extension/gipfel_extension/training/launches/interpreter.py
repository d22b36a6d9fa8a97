"""Python interpreter of ranks that run without a container: the caller's."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_LIMIT_S = 20.0
_ASK = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


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
