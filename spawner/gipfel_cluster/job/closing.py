"""What is left to do with a run folder when its job has ended: its score, and smaller files."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: Longer than this no job's end waits; what was not done by then is done by who asks for the score.
LIMIT_S = 10.0


def close_run(run: Path, environment: Mapping[str, str], *, limit_s: float = LIMIT_S) -> bool:
    """Let ``gipfel score --save`` write ``score.json``, and make Parquet of closed segments.

    It is another process, killed when the limit has passed: whatever becomes of it, the job's end and exit
    status are what they are, and no file of the run is half written.

    Returns
    -------
    bool
        Whether it came to its end.
    """
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "score", str(run), "--save", "--json"]
    try:
        process = subprocess.Popen(
            argv,
            env={name: value for name, value in environment.items() if "TOKEN" not in name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return False
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
