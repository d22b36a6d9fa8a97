"""Checked exercises of the ``learn-…`` notebooks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError


class Lesson:
    """Steps of a guided notebook, each with a check whether the reader has done it.

    Example
    -------
    ``lesson = Lesson()``; in each step ``answer = lesson.gipfel("edf", "check", "my.toml", "--json")``, then
    ``lesson.check("the EDF is valid", answer, "Correct the line that the message names.")``; in the last cell
    ``lesson.summary()``.
    """

    def __init__(self) -> None:
        #: Whether each step is done, by its name, in the order in which the steps were first checked.
        self.steps: dict[str, bool] = {}

    def gipfel(self, *words: str) -> "Answer":
        """Run a ``gipfel`` command as in a terminal, and return its output; if it fails, print what it wrote.

        Raises
        ------
        GipfelError
            This kernel's Python has no Gipfel.
        """
        beside = Path(sys.executable).with_name("gipfel")
        program = str(beside) if beside.exists() else shutil.which("gipfel")
        if program is None:
            raise GipfelError(
                "This kernel has no command `gipfel`.", "Choose the kernel of this lab's Python."
            )
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stdout.write(f"{done.stderr}{done.stdout}")
        return Answer(done.returncode, done.stdout.strip())

    def check(self, step: str, done: object, hint: str) -> None:
        """Record and print whether a step is done (`done` is true), with the hint if it is not."""
        self.steps[step] = bool(done)
        sys.stdout.write(f"done      {step}\n" if done else f"NOT DONE  {step}. {hint}\n")

    def summary(self) -> None:
        """Print how many steps are done, and each step."""
        sys.stdout.write(f"{sum(self.steps.values())} of {len(self.steps)} steps are done.\n")
        for step, done in self.steps.items():
            sys.stdout.write(f"{'done    ' if done else 'NOT DONE'}  {step}\n")


class Answer:
    """Exit status and standard output of a command; true if it ended with status 0."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    def __bool__(self) -> bool:
        """Return whether the command ended with status 0."""
        return self.status == 0

    def json(self) -> Any:
        """Return the parsed JSON output; an empty dictionary if the command failed or printed no JSON."""
        try:
            return json.loads(self.text) if self else {}
        except ValueError:
            return {}
