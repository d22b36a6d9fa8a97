"""Start a service as a job; services as workloads for ``gipfel ps``, ``logs``, ``stop`` and ``rerun``."""

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON, GipfelError
from gipfel_cluster.runs import make_private, write_atomically
from gipfel_cluster.scheduler import JobRequest
from gipfel_cluster.scheduler.machine import run_sync
from gipfel_cluster.workloads.directory import (
    COMMAND,
    EXIT,
    SPEC,
    STATE,
    STOP,
    hold_supervisor_lock,
    is_supervised,
    refresh_queued_state,
    refresh_state,
    write_state,
)
from gipfel_cluster.workloads.kinds import Report, Workload
from gipfel_cluster.workloads.logs import LogFiles
from gipfel_cluster.workloads.quota import check_limits
from gipfel_cluster.workloads.submission import (
    SubmissionContext,
    chosen_scheduler,
    refused_option,
    submission_context,
)

from ..gate.scan.verdict import judge_start, model_paths
from .directory import (
    HUB,
    SECRETS,
    SUCCESSOR,
    TOKEN,
    ServiceSpec,
    ServiceState,
    copy_secrets,
    read_service_state,
    read_spec,
    remove_secrets,
    service_directory,
)
from .hub_services import hub_services
from .plan import VARIABLE, find_environment, parameter_references
from .workers import LOGS

JOB_LOG = "job.log"
_MODULE = "gipfel_extension.services.supervisor"


def start_service(
    spec: ServiceSpec, environment: Mapping[str, str], report: Report = lambda _line: None
) -> Workload:
    """Write a service's directory, and submit its job.

    Parameters
    ----------
    report
        Called with each line that the user must see.

    Raises
    ------
    GipfelError
        A service with this name is running, a secret or the EDF can't be used, the site refuses its image, or
        the scheduler refuses the job.
    """
    context = submission_context(environment)
    scheduler = chosen_scheduler(spec.scheduler, context)
    folder = _free_directory(spec.name, environment)
    spec = spec.model_copy(update={"scheduler": scheduler})
    if spec.blueprint.parts[spec.blueprint.front_part].path == "keep":
        # Programs that get the path as an option, such as MLflow, may refuse an empty one.
        spec = spec.model_copy(update={"prefix": f"/{spec.name}/"})
    with hold_supervisor_lock(folder):
        request = _job_request(spec, folder, context, environment, report)
        state = _write(spec, folder, environment)
        write_atomically(folder / TOKEN, secrets.token_urlsafe(32) + "\n")
        write_atomically(folder / COMMAND, f"{request.script}\n")
        try:
            submitter = context.scheduler(scheduler)
            if standing := run_sync(check_limits(submitter, request, environment)):
                report(standing)
            job_id = run_sync(submitter.submit(request))
        except GipfelError as error:
            write_state(folder, state.model_copy(update={**_FAILED, "reason": str(error)}))
            remove_secrets(folder)
            raise
        write_state(folder, state.model_copy(update={"job_id": job_id}))
    return ServiceKind().workload(folder)


def write_service(spec: ServiceSpec, environment: Mapping[str, str]) -> None:
    """Write the directory of a service whose job the hub is about to submit.

    Raises
    ------
    GipfelError
        A service with this name is running, or a secret can't be used.
    """
    folder = _free_directory(spec.name, environment, by_hub=True)
    with hold_supervisor_lock(folder):
        # The hub's tokens give access, and its log of the job is elsewhere.
        for name in (TOKEN, COMMAND, JOB_LOG):
            (folder / name).unlink(missing_ok=True)
        _write(spec, folder, environment)


def _free_directory(name: str, environment: Mapping[str, str], *, by_hub: bool = False) -> Path:
    """Return the directory of a service that does not run, after creating it if it is new."""
    folder = service_directory(name, environment)
    earlier = ServiceKind().find(name, environment)
    # The hub itself knows that its service has ended, before the state file of a killed job says so.
    is_hubs = by_hub and earlier is not None and read_service_state(folder).scheduler == HUB
    if earlier is not None and not earlier.ended and not is_hubs:
        raise GipfelError(
            f"The service {name} is {earlier.state} already.",
            f"See `gipfel service url {name}`, or start another one with --name.",
        )
    try:
        make_private(folder)
    except OSError as error:
        raise GipfelError(f"{folder} can't be created: {error.strerror}.", "Free space there.") from error
    return folder


def _write(spec: ServiceSpec, folder: Path, environment: Mapping[str, str]) -> ServiceState:
    """Write spec, secrets and state of a queued service, and return the state."""
    copy_secrets(spec, folder, environment)
    runs: tuple[str, ...] = ()
    with suppress(GipfelError):
        runs = read_service_state(folder).runs
    for name in (EXIT, STOP, SUCCESSOR):
        (folder / name).unlink(missing_ok=True)
    write_atomically(folder / SPEC, spec.model_dump_json(indent=1) + "\n")
    state = ServiceState(
        phase="queued",
        name=spec.name,
        title=spec.blueprint.title,
        scheduler=spec.scheduler,
        prefix=spec.prefix,
        runs=runs,
        created_ns=time.time_ns(),
    )
    return write_state(folder, state)


_FAILED = {"phase": "ended", "outcome": "failed", "exit_status": 1}
_STOPPED = {"phase": "ended", "outcome": "stopped", "exit_status": 143}
_VERBS = {"failed": "has failed", "lost": "was lost"}


def _job_request(
    spec: ServiceSpec,
    folder: Path,
    context: SubmissionContext,
    environment: Mapping[str, str],
    report: Report,
) -> JobRequest:
    directory = Path(spec.directory)
    resources = spec.blueprint.resources
    engine = spec.engine or context.default_setting("engine") or "bubblewrap"
    edf = context.edf(spec.edf, engine, directory) if spec.edf else None
    runtime = context.runtime("", spec.scheduler)
    if edf is not None and edf.image and not runtime.root:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one: gipfel runtime build ~/.gipfel/runtime",
        )
    models = model_paths(parameter_references(spec).values(), directory)
    for line in judge_start(edf.image if edf else "", models, context, environment):
        report(line)
    on_host = context.on_host(folder)
    packages = find_environment(spec.blueprint, environment)
    # Pass the directory explicitly: a job has few of this shell's variables, a container few of its
    # directories.
    installed = {VARIABLE: str(packages.parent)} if packages else {}
    try:
        job = JobSpec(
            kind="service",
            command=(PYTHON, "-I", "-m", _MODULE, str(on_host)),
            cluster=context.default_setting("cluster") or spec.scheduler,
            edf=edf.file if edf else "",
            engine=engine,
            runtime=runtime.root,
            options={"service": spec.name, "blueprint": spec.blueprint.name, "edf": spec.edf},
            directory=str(context.on_host(directory)),
            folders=(str(on_host), *((str(packages),) if packages else ())),
        )
        return JobRequest(
            name=f"gipfel-{spec.name}",
            script=batch_script(runtime.python),
            directory=job.directory,
            output=str(on_host / JOB_LOG),
            partition=resources.partition,
            account=spec.account,
            time=resources.time,
            memory=resources.memory,
            cpus_per_task=resources.cpus,
            nodes=resources.nodes,
            gpus_per_node=resources.gpus,
            requeue=False,
            environment={**context.environment(), **installed, JOB_VARIABLE: job.model_dump_json()},
        )
    except ValidationError as error:
        raise refused_option(error, "service", "Correct it.") from None


class ServiceKind:
    """Services as workloads; the ID of a service is its name."""

    name = "service"

    def list(self, environment: Mapping[str, str]) -> Iterable[Workload]:
        """Return the user's services, the newest last."""
        parent = service_directory("x", environment).parent
        found = []
        with suppress(OSError):
            for folder in sorted(parent.iterdir()):
                # An unreadable directory must not hide the others.
                with suppress(GipfelError):
                    found.append(self.workload(folder))
        return sorted(found, key=lambda each: each.created_ns)

    def find(self, word: str, environment: Mapping[str, str]) -> Workload | None:
        """Return the service with this name or directory; None if there is none."""
        parent = service_directory("x", environment).parent
        folder = Path(word) if word.startswith("/") else parent / word
        with suppress(OSError, ValueError):
            if word and folder.parent == parent and (folder / STATE).is_file():
                return self.workload(folder)
        return None

    def logs(self, workload: Workload) -> LogFiles:
        """Return the logs of its parts in the order of their names, that of its job, and those of workers."""
        folder = Path(workload.folder)
        run = read_service_state(folder).run
        workers = sorted(Path(run).glob(f"{LOGS}/*/node-0.log")) if run else []
        return LogFiles(dict(enumerate([*sorted(folder.glob("*.log")), *workers])))

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:
        """Ask the hub or its supervisor to end it; cancel the job of a queued one."""
        folder = Path(workload.folder)
        state = read_service_state(folder)
        hub = hub_services(environment)
        if state.scheduler == HUB and hub is not None:
            hub.stop(workload.id)
            if state.phase == "queued" and not is_supervised(folder):
                write_state(folder, state.model_copy(update=_STOPPED | {"ended_ns": time.time_ns()}))
            return
        # Without the hub's token, as on a login node, ask the supervisor: the hub notices the end of the job.
        (folder / STOP).touch(mode=0o600)
        if state.scheduler == HUB:
            return
        if state.phase == "queued" and state.job_id:
            run_sync(submission_context(environment).scheduler(state.scheduler).cancel(state.job_id))
            if not is_supervised(folder):
                write_state(folder, state.model_copy(update=_STOPPED | {"ended_ns": time.time_ns()}))

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,  # noqa: ARG002 - the directory of the first start is used
        report: Report,
        kill_holders: bool = False,  # noqa: ARG002 - a service holds no other process's GPUs
    ) -> Workload:
        """Start the same spec again under the same name, with the same storage."""
        folder = Path(workload.folder)
        spec = read_spec(folder)
        if spec.scheduler == HUB:
            hub = hub_services(environment)
            if hub is None:
                raise GipfelError(
                    f"The hub starts the service {workload.id}, and this terminal has no token of the hub.",
                    "Run this in a terminal of a notebook server, or start it on the hub's home page.",
                )
            hub.start(workload.id, None, report)
            return self.workload(folder)
        report(f"{workload.name} gets a new token.")
        return start_service(spec, environment, report)

    def workload(self, folder: Path) -> Workload:
        """Return the workload of a service's directory.

        Raises
        ------
        GipfelError
            Its state can't be read.
        """
        state = refresh_state(folder, read_service_state(folder))
        if state.phase == "queued" and state.job_id and state.scheduler != HUB:
            with suppress(GipfelError):
                scheduler = submission_context(os.environ).scheduler(state.scheduler)
                state = refresh_queued_state(folder, state, scheduler)
        if state.ended and (folder / SECRETS).exists():
            _remove_left_secrets(folder)
        return Workload.of(self.name, folder, state, folder.name)


def _remove_left_secrets(folder: Path) -> None:
    """Remove the copies of secrets that a killed supervisor has left, unless the service is started again."""
    with suppress(GipfelError), hold_supervisor_lock(folder):
        if read_service_state(folder).ended:
            remove_secrets(folder)


def service_url(folder: Path) -> str:
    """Return the address of a running service on its node; a hub's service also has it on other nodes.

    Raises
    ------
    GipfelError
        The service is not running.
    """
    state = refresh_state(folder, read_service_state(folder))
    if state.phase != "running" or not state.port:
        fix = f"See `gipfel logs service:{folder.name}`." if state.ended else "Wait until it runs."
        verb = _VERBS.get(state.outcome, f"is {state.outcome or state.phase}")
        why = f": {state.reason.rstrip('.')}." if state.reason else "."
        raise GipfelError(f"The service {folder.name} {verb}{why}", fix)
    return f"http://{state.address}:{state.port}{state.prefix}"
