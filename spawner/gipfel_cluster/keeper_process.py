"""The process that keeps a step: a new interpreter, or a fork of a program that has loaded the same."""

import subprocess
import sys
from collections.abc import Mapping

from .forking import ForkedProgram, can_fork


def keeper_arguments() -> tuple[str, ...]:
    """The argv of a keeper, which reads its plan."""
    return (sys.executable, "-I", "-m", "gipfel_cluster.steps.keeper")


def in_container(environment: Mapping[str, str]) -> bool:
    """Return whether a process is in the container of a job, whose broker starts its steps."""
    return "GIPFEL_RUN" in environment and environment.get("GIPFEL_ENGINE", "") not in {"", "host"}


def keeper_process(environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | ForkedProgram":
    """A keeper that waits for its plan on standard input."""
    variables = {name: value for name, value in environment.items() if "TOKEN" not in name}
    if can_fork():
        from .steps.keeper import main  # noqa: PLC0415 - not where steps are only planned

        return ForkedProgram(keeper_arguments(), main, variables)
    return subprocess.Popen(
        keeper_arguments(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=variables,
        cwd="/",
        start_new_session=True,
    )
