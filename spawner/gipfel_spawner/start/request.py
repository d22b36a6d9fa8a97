"""Job of a server: the request to the scheduler and the `JobSpec` for the node. Pure functions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.job.staging import StageRequest
from gipfel_cluster.model import Frozen, GipfelError, OneLine, first_problem, split_list
from gipfel_cluster.scheduler.protocol import JobRequest

from ..form.options import UserOptions
from .account import Account

_PYTHON = ("{python}", "-I")
_SERVER = ("-m", "gipfel_extension.singleuser")
_SERVICE = ("-m", "gipfel_extension.services.supervisor")
_VET_FIRST = ("-m", "gipfel_extension.vet_first")


class SiteOptions(Frozen):
    """Job options from the site's configuration, used if the user gave none.

    An empty text, or ``0`` as ``cpus_per_task``, means the scheduler's default. ``arguments`` are
    added to the submit command; ``prologue`` and ``epilogue`` are shell commands that run before and after
    the server.
    """

    account: OneLine = ""
    qos: OneLine = ""
    reservation: OneLine = ""
    constraint: OneLine = ""
    memory: OneLine = ""
    cpus_per_task: OneLine = "0"
    time: OneLine = ""
    arguments: tuple[str, ...] = ()
    prologue: str = ""
    epilogue: str = ""


def server_spec(
    options: UserOptions,
    *,
    cluster: str,
    edf: str,
    engine: str,
    runtime: str,
    arguments: Sequence[str],
    service: tuple[str, ...] = (),
) -> JobSpec:
    """Return the job's specification: a single-user server in the EDF's container, perhaps vetted first.

    ``service`` has the directory of a service to run instead of a notebook server, and further directories
    that the container mounts; empty for none.
    """
    vetting = (*_VET_FIRST, options.vet, options.vet_action or "abort", "--") if options.vet else ()
    program = (*_SERVICE, service[0]) if service else (*_SERVER, *arguments)
    return JobSpec(
        kind="service" if service else "server",
        command=(*_PYTHON, *vetting, *program),
        folders=service,
        cluster=cluster,
        edf=edf,
        engine=engine,
        runtime=runtime,
        options=options.model_dump(mode="json"),
        stage=StageRequest(data=split_list(options.stage)) if options.stage else None,
    )


def site_script(script: str, *, prologue: str = "", epilogue: str = "") -> str:
    """Return the job's script with the site's prologue and epilogue; it contains no text from users."""
    first, command = script.rstrip("\n").split("\n", 1)
    if epilogue:
        # The shell waits for the command and survives SIGTERM, so that the epilogue runs.
        run = command.removeprefix("exec ")
        command = f"trap : TERM\n{run} &\nserver=$!\nwhile kill -0 $server 2>/dev/null; do wait $server; "
        command += f"status=$?; done\n{epilogue.strip()}\nexit ${{status:-0}}"
    return "\n".join([first, *([prologue.strip()] if prologue else []), command]) + "\n"


def _job_name(spec: JobSpec) -> str:
    """Return the name of a job, by which the GPU hours of a service are found."""
    is_service = spec.kind == "service" and spec.folders
    return f"gipfel-{Path(spec.folders[0]).name}" if is_service else "gipfel-server"


def server_request(
    options: UserOptions,
    site: SiteOptions,
    spec: JobSpec,
    *,
    account: Account,
    log: str = "server-%j.log",
    python: str,
    environment: Mapping[str, Any],
) -> JobRequest:
    """Return the job request for the scheduler.

    Parameters
    ----------
    log
        File name of the job's log; ``%j`` stands for the job's ID.
    python
        Interpreter of the job's part outside the container.
    environment
        Environment variables of the job; those that are None are left out.

    Raises
    ------
    GipfelError
        The site's configuration or the user's name contains a value that is not valid in a job.
    """
    variables = {name: str(value) for name, value in environment.items() if value is not None}
    content = {
        "name": options.name or _job_name(spec),
        "script": site_script(batch_script(python), prologue=site.prologue, epilogue=site.epilogue),
        "directory": account.home,
        "output": f"{account.log_directory}/{log}",
        "partition": options.partition,
        "account": options.account or site.account,
        "qos": options.qos or site.qos,
        "reservation": options.reservation or site.reservation,
        "constraint": site.constraint,
        "memory": options.memory or site.memory,
        "nodes": options.nodes,
        "gpus_per_node": options.gpus or 0,
        "cpus_per_task": options.cpus or site.cpus_per_task,
        "time": options.time or site.time,
        "site_arguments": site.arguments,
        "environment": variables | {JOB_VARIABLE: spec.model_dump_json()},
        "user": account.user,
    }
    try:
        return JobRequest.model_validate(content)
    except ValidationError as error:
        # The value is not shown, because it may be the environment with the server's token.
        key, message = first_problem(error)
        raise GipfelError(
            f"The job's {key} is not valid: {message}.", "Tell the hub's administrators."
        ) from None
