"""Peers of the bench, each installed by pip into an environment of its own below ``build/peers``."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

PEERS = Path(__file__).resolve().parents[3] / "build" / "peers"


def peer_python(name: str, requirements: Sequence[str], limit_s: float) -> Path | None:
    """Return the Python of an environment with these packages, made once; None if they can't be installed.

    Parameters
    ----------
    name
        Name of the environment's directory.
    limit_s
        Seconds that the installation may take.
    """
    folder = PEERS / name
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    venv.create(folder, with_pip=False, clear=True)
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *requirements]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        print(f"{name} is left out: its installation took longer than {limit_s:g} s.", file=sys.stderr)
        return None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1][:200]
        print(f"{name} is left out: {last}", file=sys.stderr)
        return None
    (folder / "installed").touch()
    return python
