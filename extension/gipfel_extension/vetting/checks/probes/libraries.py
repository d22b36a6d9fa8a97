"""Load every shared library of a directory, each in its own process.

Request: folder. Answer: evidence with the number of libraries, and the errors of those that can't be loaded.
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
            error = loading_error(os.path.join(folder, name))  # noqa: PTH118
            if error:
                answer["evidence"]["broken"][name] = error
    except Exception as error:  # noqa: BLE001 - every error is reported
        answer["error"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def loading_error(path: Any) -> Any:
    """Return why a library can't be loaded; empty where it can. A child process contains crashes."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if not done.returncode:
        return ""
    return lines[-1][:300] if lines else f"it exited with status {done.returncode}"


if __name__ == "__main__":
    main()
