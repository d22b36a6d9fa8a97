"""Measure time and imports of a ``gipfel`` command in its own process; this module imports nothing large."""

import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

from gipfel_extension.cli import main


def measured(
    words: list[str], folder: Path, environment: dict[str, str], cpu_limit_s: float
) -> tuple[int, float, int, int]:
    """Return a command's exit status, its CPU seconds, and its bytes of memory and of output."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _run(words, folder, environment, int(cpu_limit_s), output.fileno())
        _, status, usage = os.wait4(child, 0)
        output.seek(0)
        printed = output.read()
    assert not os.WIFSIGNALED(status), signal.Signals(os.WTERMSIG(status)).name
    assert os.WEXITSTATUS(status) in {0, 1}, printed[-2000:]
    assert b"Traceback" not in printed
    return os.WEXITSTATUS(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, len(printed)


def _run(words: list[str], folder: Path, environment: dict[str, str], cpu_limit_s: int, output: int) -> None:
    status = 99
    try:
        # One that never ends is killed.
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 5))
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(folder)
        os.environ.update(environment)
        status = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
