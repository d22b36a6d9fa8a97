"""Start steps and launches for the clients of a job's broker.

A step ends with its client or with the broker. The supervisor of a launch outlives the client that requested
it.
"""

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from ..broker.context import JobContext
from ..broker.messages import PathRef, Started, StepRequest, SuperviseRequest
from ..broker.serving import Connection, end_process, relay_until_end
from ..edf import Mount
from ..environment import without_tokens
from ..model import GipfelError, ReportOSError, first_problem
from ..process.locks import LOCKS_DIRECTORY, assign_lock_file, create_lock_file
from ..regular_files import open_log
from .container import step_job_from_context
from .handle import supervisor_arguments
from .spec import StepPlan, StepSpec

#: Steps that a broker runs at a time.
_MAX_STEPS = 64
#: Seconds after the step's grace period in which its supervisor must have ended.
_END_S = 45.0
LAUNCH_SUPERVISOR_MODULE = "gipfel_extension.training.launches.supervisor"
TRANSFER_SUPERVISOR_MODULE = "gipfel_extension.data.stage.supervisor"
LOG = "supervisor.log"


class BrokerSteps:
    """Starts steps, and supervisors of launches and transfers, for clients of a broker."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._count = 0

    async def run(self, request: StepRequest, client: Connection) -> None:
        """Run a step until it or its client ends, and report its exit status.

        Raises
        ------
        GipfelError
            The step can't be run, or too many steps are running.
        """
        if self._count >= _MAX_STEPS:
            raise GipfelError(f"The broker already runs {_MAX_STEPS} steps.", "Stop a launch and try again.")
        plan = await asyncio.to_thread(step_plan, request, self._context)
        self._count += 1
        try:
            process = await self._start(plan)
            try:
                await client.send(Started())
                await relay_until_end(process, client)
            finally:
                await end_process(process, plan.spec.grace_s + _END_S)
        finally:
            self._count -= 1

    def supervise(self, request: SuperviseRequest) -> None:
        """Start the supervisor of a launch or transfer in its own session.

        A launch's supervisor holds a lock that keeps the job alive.

        Raises
        ------
        GipfelError
            The host does not see the workload's directory, or the supervisor can't be started.
        """
        context = self._context
        folder = context.host_path(request.folder)
        if folder is None:
            raise GipfelError(
                f"The host does not see the workload's directory {request.folder.path}.",
                "Set GIPFEL_RUNS to a directory that the container mounts.",
            )
        host = without_tokens(context.host_environment)
        step_job = step_job_from_context(context).model_dump_json().encode() + b"\n"
        with ReportOSError("The workload's supervisor can't be started", "Try again."):
            with os.fdopen(open_log(Path(folder, LOG)), "ab") as log:
                if request.program == "transfer":
                    process = _start_supervisor(TRANSFER_SUPERVISOR_MODULE, folder, host, log)
                else:
                    # Locked before the supervisor starts, since the server may end at any moment.
                    lock_file, descriptor = create_lock_file(Path(context.scratch, LOCKS_DIRECTORY))
                    process = _start_supervisor(LAUNCH_SUPERVISOR_MODULE, folder, host, log, descriptor)
                    assign_lock_file(lock_file, descriptor, process.pid)
            assert process.stdin is not None  # noqa: S101 - it was started with a pipe
            with process.stdin:
                process.stdin.write(step_job)

    async def _start(self, plan: StepPlan) -> Process:
        process = await asyncio.create_subprocess_exec(
            *supervisor_arguments(),
            stdin=PIPE,
            stdout=DEVNULL,
            env=without_tokens(self._context.host_environment),
            cwd="/",
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101 - it was started with a pipe
        # The pipe stays open: closing it, also by the end of this process, stops the step.
        process.stdin.write(plan.model_dump_json().encode() + b"\n")
        return process


def step_plan(request: StepRequest, context: JobContext) -> StepPlan:
    """Turn a client's request into a plan with the host's paths.

    Raises
    ------
    GipfelError
        The host does not see the step's directory, or the request is not a valid step.
    """
    try:
        spec = StepSpec.model_validate(request.spec)
    except ValidationError as error:
        where, problem = first_problem(error)
        raise GipfelError(f"The step's {where[:80] or 'step'} can't be used: {problem[:200]}.") from None
    folder = context.host_path(request.folder)
    if folder is None or request.folder.path != spec.folder:
        raise GipfelError(
            f"The host does not see the directory {spec.folder}: it is in the image or in memory.",
            "Choose a mounted directory, such as one below the run folder.",
        )
    refs = [request.folder, *([request.directory] if request.directory else [])]
    return StepPlan(
        spec=spec,
        job=step_job_from_context(context),
        folder=str(folder),
        mounts=_mounts(refs, context),
    )


def _mounts(refs: list[PathRef], context: JobContext) -> tuple[Mount, ...]:
    sources = ((ref, context.host_path(ref)) for ref in refs)
    return tuple(
        Mount(source=str(source), destination=ref.path)
        for ref, source in sources
        if source is not None and Path(ref.path) != Path("/")
    )


def _start_supervisor(
    module: str, folder: Path, environment: dict[str, str], log: BinaryIO, *inherited: int
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        (sys.executable, "-I", "-m", module, str(folder), "-"),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd="/",
        start_new_session=True,
        pass_fds=inherited,
    )
