"""Submit jobs from the host, or from a container through the broker of its job."""

import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.broker.client import BrokerScheduler, send_request_sync
from gipfel_cluster.broker.context import find_runtime, variables_for_new_job
from gipfel_cluster.broker.messages import (
    Answer,
    EdfAnswer,
    EdfRequest,
    FactsAnswer,
    FactsRequest,
    LintRequest,
    LocateRequest,
    PathRef,
    SuperviseRequest,
    VerdictRequest,
    broker_socket,
)
from gipfel_cluster.edf import Diagnostic, check_edf
from gipfel_cluster.edf.gate import network_annotations
from gipfel_cluster.engines import engine_for, load_usable_edf
from gipfel_cluster.environment import without_tokens
from gipfel_cluster.image_verdict import SecurityVerdict, is_configured, judge_image
from gipfel_cluster.model import Frozen, GipfelError, first_problem
from gipfel_cluster.scheduler import LocalScheduler, Scheduler, SlurmPresence, SlurmScheduler, slurm_presence
from gipfel_cluster.steps.broker import LAUNCH_SUPERVISOR_MODULE, LOG, TRANSFER_SUPERVISOR_MODULE

from .directory import start_detached

SCHEDULERS = ("slurm", "local")


class ChosenEdf(Frozen):
    """A usable EDF: its file on the host, its image, and its annotations about a network gate."""

    file: str
    image: str
    network: dict[str, str] = Field(default_factory=dict)


class ChosenRuntime(Frozen):
    """The path of a runtime on the host, empty for none, and the host's interpreter that runs the job."""

    root: str
    python: str


def submission_context(environment: Mapping[str, str]) -> "SubmissionContext":
    """Return the submission context of this process.

    Raises
    ------
    GipfelError
        The process is in a container whose job has no broker.
    """
    engine = environment.get("GIPFEL_ENGINE", "") if "GIPFEL_RUN" in environment else ""
    if engine in {"", "host"}:
        return HostContext(environment, in_job=bool(engine))
    socket = broker_socket(environment)
    if socket is None:
        raise GipfelError("This job's broker does not answer.", "Run the command in a terminal of the host.")
    return ContainerContext(socket)


def chosen_scheduler(name: str, context: "SubmissionContext") -> str:
    """Return the scheduler that was requested, by default the configured one.

    Raises
    ------
    GipfelError
        There is no such scheduler.
    """
    chosen = name or context.default_setting("scheduler")
    if chosen not in SCHEDULERS:
        raise GipfelError(f"There is no scheduler {chosen!r}.", f"Choose one of {', '.join(SCHEDULERS)}.")
    return chosen


def refused_option(error: ValidationError, what: str, fix: str) -> GipfelError:
    """Return the error about the first option of a job that can't be used; `what` is such as ``launch``."""
    # Without the value, which may be the entire environment.
    field, reason = first_problem(error)
    return GipfelError(f"The {what}'s {field or 'options'} can't be used: {reason}.", fix)


def start_supervisor(
    folder: Path, program: Literal["launch", "transfer"], environment: Mapping[str, str]
) -> None:
    """Start the supervisor of a workload: by the broker in a container, else as a process of its own.

    Raises
    ------
    GipfelError
        The broker can't start it.
    OSError
        It can't be started.
    """
    socket = broker_socket(environment)
    if socket is not None:
        send_request_sync(socket, SuperviseRequest(folder=PathRef.of(folder), program=program), Answer[None])
        return
    module = LAUNCH_SUPERVISOR_MODULE if program == "launch" else TRANSFER_SUPERVISOR_MODULE
    argv = (sys.executable, "-I", "-m", module, str(folder))
    # To import a transfer's supervisor again takes longer than to copy small files.
    start_detached(argv, folder / LOG, environment, fork=program == "transfer")


class HostContext:
    """Submission from the host; `ContainerContext` has the same methods.

    Each of them raises `GipfelError` if what it is called for does not exist, can't be used or can't be
    reached from here, or if the job's broker does not answer.
    """

    in_container = False

    def __init__(self, environment: Mapping[str, str], *, in_job: bool) -> None:
        self._environment = environment
        # In a job, GIPFEL_ENGINE names the engine of that job, not the user's default.
        self._unset = {"engine"} if in_job else set()

    def default_setting(self, name: str) -> str:
        """Return ``$GIPFEL_SCHEDULER``, ``_ENGINE`` or ``_CLUSTER``; unset, a usable scheduler or empty."""
        configured = "" if name in self._unset else self._environment.get(f"GIPFEL_{name.upper()}", "")
        if name == "scheduler" and not configured:
            return "slurm" if self._slurm.configured else "local"
        return configured

    @cached_property
    def _slurm(self) -> SlurmPresence:
        return slurm_presence(self._environment)

    def scheduler_note(self, chosen: str) -> str:
        """Return a sentence if the default scheduler may surprise the user, else an empty text.

        That is if Slurm's commands are installed without a configured cluster. ``chosen`` is the scheduler
        that the user named, empty for the default.
        """
        if chosen or self._environment.get("GIPFEL_SCHEDULER"):
            return ""
        if self._slurm.configured or not self._slurm.commands:
            return ""
        return f"{self._slurm.problem} The job runs on this machine."

    def on_host(self, path: Path) -> Path:
        """Return the path unchanged."""
        return path

    def edf(self, name: str, engine: str, directory: Path) -> ChosenEdf:
        """Look up and check an EDF as this user."""
        edf = load_usable_edf(
            name, engine, environment=self._environment, directory=directory, job_variables=True
        )
        engine_for(edf, engine)
        return ChosenEdf(file=edf.path or "", image=edf.image, network=network_annotations(edf.annotations))

    def lint(self, file: str, directory: Path) -> tuple[Diagnostic, ...]:
        """Check an EDF as this user."""
        return check_edf(file, environment=self._environment, directory=directory).diagnostics

    def image_verdict(self, image: str) -> SecurityVerdict | None:
        """Judge an image of this machine as this user; None if neither site nor user configured verdicts."""
        if not is_configured(self._environment):
            return None
        return judge_image(sys.executable, image, without_tokens(self._environment))

    def runtime(self, path: str, scheduler: str) -> ChosenRuntime:
        """Return the runtime at a path, by default the user's, and the interpreter for a job.

        On a cluster the runtime's interpreter runs the job: nodes may lack this one.
        """
        runtime = find_runtime(path, self._environment)
        root = runtime.root if runtime else ""
        # On this machine a job without a container uses this interpreter and its packages, such as torch.
        host_python = runtime.host_python if runtime and scheduler != "local" else None
        return ChosenRuntime(root=root, python=host_python or sys.executable)

    def environment(self) -> dict[str, str]:
        """Return the user's variables without tokens and those of the current job."""
        return variables_for_new_job(self._environment)

    def scheduler(self, name: str) -> Scheduler:
        """Return the scheduler with a name of `SCHEDULERS`: for Slurm, or for this machine."""
        if name == "slurm":
            return SlurmScheduler(environment=self._environment)
        return LocalScheduler(local_jobs_directory(self._environment), environment=self._environment)


class ContainerContext:
    """Submission from a container: the job's broker acts on the host, which has other files and variables."""

    in_container = True

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._facts = send_request_sync(socket, FactsRequest(), FactsAnswer)

    def default_setting(self, name: str) -> str:
        """Return the setting of this container's job."""
        return {
            "scheduler": self._facts.scheduler,
            "engine": self._facts.engine,
            "cluster": self._facts.cluster,
        }.get(name, "")

    def scheduler_note(self, chosen: str) -> str:  # noqa: ARG002 - the job has one scheduler
        """Return an empty text: the job has one scheduler only."""
        return ""

    def on_host(self, path: Path) -> Path:
        """Return the host's path of the same file, from the broker."""
        try:
            ref = PathRef.of(path)
        except OSError as error:
            raise GipfelError(f"{path} can't be used: {error.strerror}.", "Check the path.") from error
        except ValueError as error:
            raise GipfelError(f"The path {str(path)!r} is not valid.", "Choose another path.") from error
        host_path = send_request_sync(self._socket, LocateRequest(ref=ref), Answer[str | None]).value
        if host_path is None:
            raise GipfelError(
                f"The host does not see {path}: it is in the image or in the container's memory.",
                "Move it to a mounted directory, such as the one where the server starts.",
            )
        return Path(host_path)

    def edf(self, name: str, engine: str, directory: Path) -> ChosenEdf:
        """Let the broker look up an EDF on the host; a path is translated from this container's."""
        if name.startswith(("/", ".", "~/")):
            name = str(self.on_host(Path(os.path.normpath(directory / Path(name).expanduser()))))
        try:
            request = EdfRequest(edf=name, engine=engine)
        except ValueError as error:
            raise GipfelError(
                f"{name!r} is not a valid EDF.", "Give the name or the path of an EDF."
            ) from error
        edf = send_request_sync(self._socket, request, EdfAnswer)
        return ChosenEdf(file=edf.file, image=edf.image, network=edf.network)

    def lint(self, file: str, directory: Path) -> tuple[Diagnostic, ...]:  # noqa: ARG002 - the host has its own
        """Let the broker check an EDF on the host."""
        return send_request_sync(self._socket, LintRequest(edf=file), Answer[tuple[Diagnostic, ...]]).value

    def image_verdict(self, image: str) -> SecurityVerdict | None:
        """Let the broker judge an image of the host."""
        return send_request_sync(
            self._socket, VerdictRequest(image=image), Answer[SecurityVerdict | None]
        ).value

    def runtime(self, path: str, scheduler: str) -> ChosenRuntime:  # noqa: ARG002 - the job has one scheduler
        """Return the runtime at a path, by default that of the job."""
        root = str(self.on_host(Path(path).expanduser())) if path else self._facts.runtime
        return ChosenRuntime(root=root, python=self._facts.python)

    def environment(self) -> dict[str, str]:
        """Return variables of the host, because those of the image are wrong for programs on the host."""
        return dict(self._facts.environment)

    def scheduler(self, name: str) -> Scheduler:
        """Return a scheduler that submits through the broker to the scheduler of this job."""
        if name != self._facts.scheduler:
            raise GipfelError(
                f"A container can submit to the scheduler of its job only, which is {self._facts.scheduler}.",
                "Omit --scheduler.",
            )
        return BrokerScheduler(self._socket)


#: The host or a container, from which jobs are planned and submitted.
SubmissionContext = HostContext | ContainerContext


def local_jobs_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of the local scheduler's jobs of a user."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "jobs"
