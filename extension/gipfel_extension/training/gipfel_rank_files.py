"""Files of a launch's directory, for the programs of its ranks; the directory has a copy of this one.

The programs import it by `importlib.import_module` with their own directory in ``sys.path`` only meanwhile,
so that no other file there shadows a module of the user's code. It runs with the image's Python, 3.9 or
newer, and imports only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slower to import


def inside(*parts: str) -> str:
    """Return a path in the launch's directory."""
    return os.path.join(FOLDER, *parts)  # noqa: PTH118


def attempt() -> dict[str, Any]:
    """Return the supervisor's decisions for this attempt."""
    with open(inside("attempt.json"), encoding="utf-8") as file:  # noqa: PTH123
        content: dict[str, Any] = json.load(file)
    return content


def load(name: str) -> Any:
    """Return a program of the launch's directory as a module, which the user's code does not import."""
    import importlib.util  # noqa: PLC0415

    module_name = f"gipfel_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, inside(f"{name}.py"))
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    return sys.modules[module_name]


def touched_ns(name: str) -> int:
    """Return when the supervisor or a user last touched a file of the launch's directory; 0 without it."""
    try:
        return os.stat(inside(name)).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def write_json(path: str, content: dict[str, Any]) -> None:
    """Replace a file for its owner alone; report an error, because the training must not depend on it."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "w", encoding="utf-8", opener=private) as file:
            json.dump(content, file)
        os.replace(beside, path)  # noqa: PTH105
    except OSError as error:
        sys.stderr.write(f"gipfel: {path} can't be written: {error.strerror}\n")


def private(path: str, flags: int) -> int:
    """Open a file that is created for its owner alone."""
    return os.open(path, flags, 0o600)
