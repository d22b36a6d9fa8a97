"""Everything that can be tested on this machine; what it can't run is named in the last lines."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def main() -> int:
    """Style and types first, since they are quick; then the tests, and what was skipped last."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    steps = (
        ([str(BIN / "ruff"), "check", "."], ROOT),
        ([str(BIN / "ruff"), "format", "--check", "-q", "."], ROOT),
        ([str(BIN / "mypy")], ROOT),
        (["jlpm", "lint:check"], ROOT / "extension"),
    )
    for argv, folder in steps:
        print("::", " ".join(argv), flush=True)
        status = subprocess.run(
            argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False
        ).returncode
        if status:
            return status
    pytest = [sys.executable, "-m", "pytest", "-q", "--durations=15", *sys.argv[1:]]
    return subprocess.run(pytest, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


sys.exit(main())
