"""Load every shared library of a directory, each in a process of its own.

Asks: folder. Answers: evidence with the number of libraries and those that can't be loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def main() -> None:
    """Answer one request."""
    folder = json.loads(sys.stdin.read())["folder"]
    answer: dict[str, Any] = {"gipfel_probe": 1, "evidence": {"count": 0, "broken": {}}}
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".so"))  # noqa: PTH208 - Python 3.9
        answer["evidence"]["count"] = len(names)
        for name in names:
            said = complaint(os.path.join(folder, name))  # noqa: PTH118
            if said:
                answer["evidence"]["broken"][name] = said
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        answer["error"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def complaint(path: Any) -> Any:
    """Return why a library can't be loaded; empty where it can. A crash stays in the child."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if not done.returncode else (said[-1][:300] if said else f"it ended with {done.returncode}")


if __name__ == "__main__":
    main()
