"""The job of a server: what the scheduler is asked for, and what the node is told; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler.protocol import JobRequest

from .account import Account
from .options import UserOptions

_SERVER = ("{python}", "-I", "-m", "gipfel_extension.singleuser")


class SiteOptions(Frozen):
    """What the site's configuration adds to what a user chose; ``time`` is for a user who gave none."""

    account: Line = ""
    qos: Line = ""
    reservation: Line = ""
    constraint: Line = ""
    memory: Line = ""
    cpus_per_task: Line = "0"
    time: Line = ""


def server_spec(
    options: UserOptions, *, cluster: str, edf: str, engine: str, runtime: str, arguments: Sequence[str]
) -> JobSpec:
    """What the node runs: the single-user server in the EDF's container."""
    return JobSpec(
        kind="server",
        command=(*_SERVER, *arguments),
        cluster=cluster,
        edf=edf,
        engine=engine,
        runtime=runtime,
        options=options.model_dump(mode="json"),
    )


def server_request(
    options: UserOptions,
    site: SiteOptions,
    spec: JobSpec,
    *,
    account: Account,
    python: str,
    environment: Mapping[str, Any],
) -> JobRequest:
    """What the scheduler is asked for; ``python`` runs the host side of the job.

    Raises
    ------
    GipfelError
        The site's configuration or the user's name holds what no job can.
    """
    variables = {name: str(value) for name, value in environment.items() if value is not None}
    content = site.model_dump() | {
        "name": "gipfel-server",
        "script": batch_script(python),
        "directory": account.home,
        "output": f"{account.log_folder}/server-%j.log",
        "partition": options.partition,
        "nodes": options.nodes,
        "gpus_per_node": options.gpus or 0,
        "time": options.time or site.time,
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
