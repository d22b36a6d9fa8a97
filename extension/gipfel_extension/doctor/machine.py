"""The machine that probes ask: its files, programs and variables; injected, so that a test brings its own."""

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
_MOST_BYTES = 1 << 20
# Not on every user's PATH, but where administrators' programs are.
_ADMINISTRATORS = "/usr/local/sbin:/usr/sbin:/sbin"


class Answer(Frozen):
    """End of a command; ``problem`` is why it did not end by itself, and then nothing else counts."""

    code: int = 0
    output: str = ""
    errors: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Return whether it ended with exit status 0."""
        return not self.problem and self.code == 0

    @property
    def why(self) -> str:
        """Return the reason that it failed: the last line that it printed as an error."""
        lines = (self.errors or self.output).strip().splitlines()
        return self.problem or (lines[-1].strip() if lines else f"exit status {self.code}")


Run = Callable[[Sequence[str]], Answer]


@dataclass(frozen=True)
class Machine:
    """The machine as probes may look at it.

    Parameters
    ----------
    run
        Runs a command within a time limit; never raises.
    which
        Gives the path of a program, or None.
    slurm
        Tells whether Slurm is configured.
    root
        Where the file system begins.
    engines
        The engines by name, each with what says in one line why it can't run here, or None.
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
    def here(cls, environment: Mapping[str, str]) -> "Machine":
        """Return this very machine."""
        path = f"{environment.get('PATH', os.defpath)}:{_ADMINISTRATORS}"
        uid = os.geteuid()
        try:
            entry = pwd.getpwuid(uid)
            user, home = entry.pw_name, entry.pw_dir
        except KeyError:
            user, home = str(uid), ""
        return cls(
            environment=environment,
            run=lambda argv: run_here(argv, {**environment, "PATH": path}),
            which=partial(shutil.which, path=path),
            slurm=partial(slurm_presence, environment),
            uid=uid,
            user=user,
            home=environment.get("HOME", "") or home,
            engines={name: partial(engine_missing, name) for name in engine_names() if name != "host"},
        )

    @property
    def in_container(self) -> bool:
        """Return whether this is the container of a job, which has the image's programs."""
        return "GIPFEL_RUN" in self.environment and self.environment.get("GIPFEL_ENGINE", "") not in {
            "",
            "host",
        }

    def path(self, absolute: str | Path) -> Path:
        """Return where a path of the machine is, seen from this process."""
        return self.root / str(absolute).lstrip("/")

    def read(self, absolute: str | Path) -> str:
        """Return the text of a file; empty where there is none that can be read."""
        try:
            handle = os.open(self.path(absolute), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                return file.read(_MOST_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def number(self, absolute: str) -> int | None:
        """Return the number in a file of ``/proc``; None where there is none."""
        text = self.read(absolute).strip()
        return int(text) if text.lstrip("-").isdecimal() else None


def run_here(
    argv: Sequence[str], environment: Mapping[str, str], *, limit: float = COMMAND_SECONDS
) -> Answer:
    """Run a command of this machine to its end, or to the end of its time."""
    try:
        done = asyncio.run(run_command(argv, environment=environment, limit=limit))
    except TimeoutError:
        return Answer(problem=f"{argv[0]} did not answer within {limit:.0f} s")
    except GipfelError as error:
        return Answer(problem=error.problem.rstrip("."))
    return Answer(code=done.code, output=done.output, errors=done.errors)
