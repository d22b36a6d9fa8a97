"""Machine that the probes examine: its files, programs and variables. Tests inject their own."""

import asyncio
import os
import pwd
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gipfel_cluster.engines import engine_missing, engine_names
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler import SlurmPresence, slurm_presence
from gipfel_cluster.scheduler.command import run_command

COMMAND_SECONDS = 10.0
_MAX_BYTES = 1 << 20
# Directories of administration programs, which are not on every user's PATH.
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


class Answer(Frozen):
    """Result of a command; ``problem`` is why it did not run to its end, else empty."""

    code: int = 0
    output: str = ""
    errors: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """True if the command ended with exit status 0."""
        return not self.problem and self.code == 0

    @property
    def error(self) -> str:
        """Reason of the failure: the last line of its error output."""
        lines = (self.errors or self.output).strip().splitlines()
        return self.problem or (lines[-1].strip() if lines else f"exit status {self.code}")


Run = Callable[[Sequence[str]], Answer]


@dataclass(frozen=True)
class Machine:
    """Machine as the probes see it.

    Parameters
    ----------
    run
        Runs a command within a time limit; never raises.
    which
        Returns the path of a program, or None.
    slurm
        Returns whether Slurm is configured.
    root
        Root of the file system.
    engines
        Engines by name, each with a function that returns why it can't run here, or None.
    """

    environment: Mapping[str, str]
    run: Run
    which: Callable[[str], str | None]
    slurm: Callable[[], SlurmPresence]
    root: Path = Path("/")
    uid: int = field(default_factory=os.geteuid)
    user: str = ""
    home: str = ""
    engines: Mapping[str, Callable[[], str | None]] = field(default_factory=dict)
    python: str = sys.executable

    @classmethod
    def local(cls, environment: Mapping[str, str]) -> "Machine":
        """Return the machine that this process runs on."""
        path = f"{environment.get('PATH', os.defpath)}:{_ADMIN_PATH}"
        uid = os.geteuid()
        try:
            entry = pwd.getpwuid(uid)
            user, home = entry.pw_name, entry.pw_dir
        except KeyError:
            user, home = str(uid), ""
        return cls(
            environment=environment,
            run=lambda argv: run_locally(argv, {**environment, "PATH": path}),
            which=partial(shutil.which, path=path),
            slurm=partial(slurm_presence, environment),
            uid=uid,
            user=user,
            home=environment.get("HOME", "") or home,
            engines={name: partial(engine_missing, name) for name in engine_names() if name != "host"},
        )

    @property
    def in_container(self) -> bool:
        """True if this process runs in the container of a job."""
        return "GIPFEL_RUN" in self.environment and self.environment.get("GIPFEL_ENGINE", "") not in {
            "",
            "host",
        }

    def path(self, absolute: str | Path) -> Path:
        """Return the path in this process of an absolute path of the machine."""
        return self.root / str(absolute).lstrip("/")

    def read(self, absolute: str | Path) -> str:
        """Return the text of a file; empty if it can't be read."""
        try:
            handle = os.open(self.path(absolute), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                return file.read(_MAX_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def number(self, absolute: str) -> int | None:
        """Return the number in a file of ``/proc``; None if there is none."""
        text = self.read(absolute).strip()
        return int(text) if text.lstrip("-").isdecimal() else None


def run_locally(
    argv: Sequence[str], environment: Mapping[str, str], *, limit: float = COMMAND_SECONDS
) -> Answer:
    """Run a command on this machine with a time limit."""
    try:
        done = asyncio.run(run_command(argv, environment=environment, limit=limit))
    except TimeoutError:
        return Answer(problem=f"{argv[0]} did not answer within {limit:.0f} s")
    except GipfelError as error:
        return Answer(problem=error.problem.rstrip("."))
    return Answer(code=done.code, output=done.output, errors=done.errors)
