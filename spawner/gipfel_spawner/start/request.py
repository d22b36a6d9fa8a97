"""Job of a server: the request to the scheduler, and the specification for the node; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler.protocol import JobRequest

from ..form.options import UserOptions
from .account import Account

_PYTHON = ("{python}", "-I")
_SERVER = ("-m", "gipfel_extension.singleuser")
_VET_FIRST = ("-m", "gipfel_extension.vet_first")


class SiteOptions(Frozen):
    """Options of the site's configuration, for what a user left empty.

    ``arguments`` go to the command that submits; ``prologue`` and ``epilogue`` are shell around the server.
    """

    account: Line = ""
    qos: Line = ""
    reservation: Line = ""
    constraint: Line = ""
    memory: Line = ""
    cpus_per_task: Line = "0"
    time: Line = ""
    arguments: tuple[str, ...] = ()
    prologue: str = ""
    epilogue: str = ""


def server_spec(
    options: UserOptions, *, cluster: str, edf: str, engine: str, runtime: str, arguments: Sequence[str]
) -> JobSpec:
    """Return what the node runs: the single-user server in the EDF's container, vetted first where asked."""
    first = (*_VET_FIRST, options.vet, options.vet_action or "abort", "--") if options.vet else ()
    return JobSpec(
        kind="server",
        command=(*_PYTHON, *first, *_SERVER, *arguments),
        cluster=cluster,
        edf=edf,
        engine=engine,
        runtime=runtime,
        options=options.model_dump(mode="json"),
    )


def site_script(script: str, *, prologue: str = "", epilogue: str = "") -> str:
    """Return the job's script with the site's own shell around its one command; no user's text is in it."""
    first, command = script.rstrip("\n").split("\n", 1)
    if epilogue:
        # The shell waits for the command, and survives the signal that ends the job.
        run = command.removeprefix("exec ")
        command = f"trap : TERM\n{run} &\nserver=$!\nwhile kill -0 $server 2>/dev/null; do wait $server; "
        command += f"status=$?; done\n{epilogue.strip()}\nexit ${{status:-0}}"
    lines = [first, *([prologue.strip()] if prologue else []), command]
    return "\n".join(lines) + "\n"


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
    """Return the request to the scheduler; ``python`` runs the host side of the job, ``log`` names its log.

    Raises
    ------
    GipfelError
        The site's configuration or the user's name holds what no job can.
    """
    variables = {name: str(value) for name, value in environment.items() if value is not None}
    content = {
        "name": options.name or "gipfel-server",
        "script": site_script(batch_script(python), prologue=site.prologue, epilogue=site.epilogue),
        "directory": account.home,
        "output": f"{account.log_folder}/{log}",
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
        # Never the value: it may be the environment, with the server's token.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise GipfelError(
            f"The job's {first['loc'][0]} can't be used: {first['msg']}.", "Tell the hub's administrators."
        ) from None
