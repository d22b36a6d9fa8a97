"""The process that keeps a step: it can be started ahead of it, and loads while its caller loads.

This module is imported first, so it imports little itself.
"""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

_ahead: list[tuple[dict[str, str], subprocess.Popen[bytes]]] = []


def keeper_arguments() -> tuple[str, ...]:
    """The argv of a keeper, which reads its plan."""
    return (sys.executable, "-I", "-m", "gipfel_cluster.steps.keeper")


def in_container(environment: Mapping[str, str]) -> bool:
    """Return whether a process is in the container of a job, whose broker starts its steps."""
    return "GIPFEL_RUN" in environment and environment.get("GIPFEL_ENGINE", "") not in {"", "host"}


def start_ahead(environment: Mapping[str, str]) -> None:
    """Start the keeper of a step that this process will start; without a step it ends with this process."""
    if not in_container(environment):
        # Where it can't be started, whoever starts the step says so.
        with suppress(OSError):
            _ahead.append((_variables(environment), _started(environment)))


def keeper_process(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A keeper that waits for its plan on standard input: one that was started ahead, or else a new one."""
    while _ahead:
        variables, process = _ahead.pop()
        if variables == _variables(environment) and process.poll() is None:
            return process
        _dismiss(process)
    return _started(environment)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if "TOKEN" not in name}


def _started(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        keeper_arguments(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=_variables(environment),
        cwd="/",
        start_new_session=True,
    )


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.close()
    process.wait()
