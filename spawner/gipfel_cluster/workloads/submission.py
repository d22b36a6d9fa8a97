"""Submission context: the host itself, or a container whose job's broker sees the host."""

import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from gipfel_cluster.broker.client import BrokerScheduler, ask_now
from gipfel_cluster.broker.context import find_runtime, passed_on
from gipfel_cluster.broker.messages import (
    EdfAnswer,
    EdfRequest,
    FactsAnswer,
    FactsRequest,
    LintAnswer,
    LintRequest,
    LocateAnswer,
    LocateRequest,
    PathRef,
    broker_socket,
)
from gipfel_cluster.edf import Diagnostic, EdfError, check_edf, check_local, load_edf
from gipfel_cluster.engines import engine_for, engine_pulls
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler import LocalScheduler, Scheduler, SlurmPresence, SlurmScheduler, slurm_presence

SCHEDULERS = ("slurm", "local")


class ChosenEdf(Frozen):
    """An EDF that can be used: its file on the host."""

    file: str
    image: str


class ChosenRuntime(Frozen):
    """A runtime's path on the host, empty for none, and the host's interpreter that runs the job."""

    root: str
    python: str


class SubmissionContext(Protocol):
    """The place from which a job is planned and submitted."""

    inside: bool

    def default(self, name: str) -> str:
        """Return the setting of ``scheduler``, ``engine`` or ``cluster``; empty if unset."""

    def scheduler_note(self, chosen: str) -> str:
        """Return one sentence on why the default scheduler is not the expected one; empty if it is.

        ``chosen`` is what the user asked for, empty for the default.
        """

    def on_host(self, path: Path) -> Path:
        """Return the host's path of a file or directory.

        Raises
        ------
        GipfelError
            The host does not see it.
        """

    def edf(self, name: str, engine: str, directory: Path) -> ChosenEdf:
        """Look an EDF up and check it.

        Raises
        ------
        GipfelError
            There is none, or it can't be used.
        """

    def lint(self, file: str, directory: Path) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of `gipfel edf check` for a chosen EDF.

        Raises
        ------
        GipfelError
            Nobody could be asked.
        """

    def runtime(self, given: str, scheduler: str) -> ChosenRuntime:
        """Choose the runtime, and the interpreter that runs a job of this scheduler.

        Raises
        ------
        GipfelError
            The given one can't be used.
        """

    def environment(self) -> dict[str, str]:
        """Return the variables that the job gets."""

    def scheduler(self, name: str) -> Scheduler:
        """Return the scheduler of a name of `SCHEDULERS`.

        Raises
        ------
        GipfelError
            It can't be reached from here.
        """


def submission_context(environment: Mapping[str, str]) -> SubmissionContext:
    """Return the submission context of this process.

    Raises
    ------
    GipfelError
        It is in a container whose job has no broker.
    """
    inside = environment.get("GIPFEL_ENGINE", "") if "GIPFEL_RUN" in environment else ""
    if inside in {"", "host"}:
        return HostContext(environment, in_job=bool(inside))
    socket = broker_socket(environment)
    if socket is None:
        raise GipfelError("This job's broker does not answer.", "Type it in a terminal of the host.")
    return ContainerContext(socket)


class HostContext:
    """The host itself, where everything is seen."""

    inside = False

    def __init__(self, environment: Mapping[str, str], *, in_job: bool) -> None:
        self._environment = environment
        # In a job the same name tells that job's engine.
        self._unset = {"engine"} if in_job else set()

    def default(self, name: str) -> str:
        """Return ``$GIPFEL_SCHEDULER`` …; ``slurm`` as scheduler if it is configured."""
        given = "" if name in self._unset else self._environment.get(f"GIPFEL_{name.upper()}", "")
        if name == "scheduler" and not given:
            return "slurm" if self._slurm.configured else "local"
        return given

    @cached_property
    def _slurm(self) -> SlurmPresence:
        return slurm_presence(self._environment)

    def scheduler_note(self, chosen: str) -> str:
        """Return a note if Slurm's commands are installed without a configured cluster."""
        if chosen or self._environment.get("GIPFEL_SCHEDULER"):
            return ""
        if self._slurm.configured or not self._slurm.commands:
            return ""
        return f"{self._slurm.problem} This machine is used."

    def on_host(self, path: Path) -> Path:
        """Return the path itself."""
        return path

    def edf(self, name: str, engine: str, directory: Path) -> ChosenEdf:
        """Look it up as this user."""
        edf = load_edf(name, environment=self._environment, directory=directory, job_variables=True)
        found = check_local(edf, pulls=engine_pulls(engine))
        errors = tuple(each for each in found if each.severity == "error")
        if errors:
            raise EdfError(errors)
        engine_for(edf, engine)
        return ChosenEdf(file=edf.path or "", image=edf.image)

    def lint(self, file: str, directory: Path) -> tuple[Diagnostic, ...]:
        """Check it as this user."""
        return check_edf(file, environment=self._environment, directory=directory).diagnostics

    def runtime(self, given: str, scheduler: str) -> ChosenRuntime:
        """Return the user's; its interpreter runs the job where the nodes may lack this one."""
        found = find_runtime(given, self._environment)
        root = found.root if found else ""
        # On this machine a job without a container sees what is installed beside this program: torch, say.
        on_host = found.host_python if found and scheduler != "local" else None
        return ChosenRuntime(root=root, python=on_host or sys.executable)

    def environment(self) -> dict[str, str]:
        """Return the user's variables without tokens and those of the current job."""
        return passed_on(self._environment)

    def scheduler(self, name: str) -> Scheduler:
        """Return Slurm's commands, or this machine."""
        if name == "slurm":
            return SlurmScheduler(environment=self._environment)
        return LocalScheduler(local_folder(self._environment), environment=self._environment)


class ContainerContext:
    """A container, whose files and variables the host does not have: the job's broker is asked."""

    inside = True

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._facts = ask_now(socket, FactsRequest(), FactsAnswer)

    def default(self, name: str) -> str:
        """Return the job's own setting."""
        return {
            "scheduler": self._facts.scheduler,
            "engine": self._facts.engine,
            "cluster": self._facts.cluster,
        }.get(name, "")

    def scheduler_note(self, chosen: str) -> str:  # noqa: ARG002 - the job has one scheduler
        """Return nothing: the job's own scheduler is the only one."""
        return ""

    def on_host(self, path: Path) -> Path:
        """Ask the broker for the same file."""
        try:
            ref = PathRef.of(path)
        except OSError as error:
            raise GipfelError(f"{path} can't be used: {error.strerror}.", "Check the path.") from error
        except ValueError as error:
            raise GipfelError(f"The path {str(path)!r} can't be used.", "Give another one.") from error
        found = ask_now(self._socket, LocateRequest(ref=ref), LocateAnswer).path
        if found is None:
            raise GipfelError(
                f"The host does not see {path}: it is in the image or in the container's memory.",
                "Put it into a mounted directory, such as the one where the server starts.",
            )
        return Path(found)

    def edf(self, name: str, engine: str, directory: Path) -> ChosenEdf:
        """Let the broker look it up on the host; a path is one of this container."""
        if name.startswith(("/", ".", "~/")):
            name = str(self.on_host(Path(os.path.normpath(directory / Path(name).expanduser()))))
        try:
            request = EdfRequest(edf=name, engine=engine)
        except ValueError as error:
            raise GipfelError(f"{name!r} can't name an EDF.", "Give a name or a path.") from error
        found = ask_now(self._socket, request, EdfAnswer)
        return ChosenEdf(file=found.file, image=found.image)

    def lint(self, file: str, directory: Path) -> tuple[Diagnostic, ...]:  # noqa: ARG002 - the host has its own
        """Let the broker check the host's file."""
        return ask_now(self._socket, LintRequest(edf=file), LintAnswer).diagnostics

    def runtime(self, given: str, scheduler: str) -> ChosenRuntime:  # noqa: ARG002 - the job has one
        """Return the job's own runtime if none is given."""
        root = str(self.on_host(Path(given).expanduser())) if given else self._facts.runtime
        return ChosenRuntime(root=root, python=self._facts.python)

    def environment(self) -> dict[str, str]:
        """Return the variables of the host: those of the image would mislead its programs."""
        return dict(self._facts.environment)

    def scheduler(self, name: str) -> Scheduler:
        """Return the job's own scheduler, through the broker."""
        if name != self._facts.scheduler:
            raise GipfelError(
                f"From inside this job only its own scheduler is reached: {self._facts.scheduler}.",
                "Leave --scheduler out.",
            )
        return BrokerScheduler(self._socket)


def local_folder(environment: Mapping[str, str]) -> Path:
    """Return the directory where the local scheduler keeps the state of a user's jobs."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "jobs"
