"""The process that keeps a step: a new interpreter, or a fork of a program of this package.

This module is imported first, so it imports little itself.
"""

import subprocess
import sys
from collections.abc import Mapping

from .forking import ForkedProgram, is_alone

_own_program = False


def keeper_arguments() -> tuple[str, ...]:
    """The argv of a keeper, which reads its plan."""
    return (sys.executable, "-I", "-m", "gipfel_cluster.steps.keeper")


def in_container(environment: Mapping[str, str]) -> bool:
    """Return whether a process is in the container of a job, whose broker starts its steps."""
    return "GIPFEL_RUN" in environment and environment.get("GIPFEL_ENGINE", "") not in {"", "host"}


def fork_keepers() -> None:
    """Let keepers be forks of this process, which is a program of this package and holds nothing large.

    A keeper's modules are loaded here anyway, since the plan of a step is made of them.
    """
    global _own_program  # noqa: PLW0603 - of the process, as what it runs is
    _own_program = True


def keeper_process(environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | ForkedProgram":
    """A keeper that waits for its plan on standard input."""
    variables = {name: value for name, value in environment.items() if "TOKEN" not in name}
    if _own_program and is_alone():
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
