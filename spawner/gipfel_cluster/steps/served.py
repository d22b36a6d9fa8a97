"""Start steps and launches for the clients of a job's broker.

A step lives as long as its client, and no longer than the broker. The supervisor of a launch outlives
whoever asked for it.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from pydantic import ValidationError

from ..broker.context import JobContext
from ..broker.messages import PathRef, Started, StepRequest, SuperviseRequest
from ..broker.serving import Connection, follow
from ..edf import Mount
from ..environment import without_tokens
from ..model import GipfelError
from ..process.liveness import LOCKS_FOLDER, hand_over, locked_file
from ..process.tree import kill_tree
from .container import setting_of_job
from .handle import supervisor_arguments
from .spec import StepPlan, StepSpec

_MOST_STEPS = 64
_END_S = 45.0
MODULE = "gipfel_extension.training.launches"
LOG = "supervisor.log"


class Steps:
    """Starts steps for clients."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._count = 0

    async def run(self, request: StepRequest, client: Connection) -> None:
        """Run a step until it or its client ends, and report its exit status.

        Raises
        ------
        GipfelError
            It can't be run, or there are too many.
        """
        if self._count >= _MOST_STEPS:
            raise GipfelError(f"The broker already runs {_MOST_STEPS} steps.", "Stop a launch and try again.")
        plan = await asyncio.to_thread(step_plan, request, self._context)
        self._count += 1
        try:
            process = await self._started(plan)
            try:
                await self._follow(process, client)
            finally:
                await _end(process, plan.spec.grace_s)
        finally:
            self._count -= 1

    def supervise(self, request: SuperviseRequest) -> None:
        """Start the supervisor of a launch; raises as `supervise`."""
        supervise(request, self._context)

    async def _started(self, plan: StepPlan) -> Process:
        host = self._context.host
        process = await asyncio.create_subprocess_exec(
            *supervisor_arguments(),
            stdin=PIPE,
            stdout=DEVNULL,
            env=without_tokens(host),
            cwd="/",
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        # It stays open: its end, which comes with this process's too, stops the step.
        process.stdin.write(plan.model_dump_json().encode() + b"\n")
        return process

    async def _follow(self, process: Process, client: Connection) -> None:
        await client.send(Started())
        await follow(process, client)


def step_plan(request: StepRequest, context: JobContext) -> StepPlan:
    """Turn a client's request into a plan, with folders as the host has them.

    Raises
    ------
    GipfelError
        The host does not see the folder, or the request is not a valid step.
    """
    try:
        spec = StepSpec.model_validate(request.spec)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:80] or "step"
        raise GipfelError(f"The step's {where} can't be used: {first['msg'][:200]}.") from None
    folder = context.located(request.folder)
    if folder is None or request.folder.path != spec.folder:
        raise GipfelError(
            f"The host does not see the folder {spec.folder}: it is in the image or in memory.",
            "Choose one that is mounted, such as one below the run folder.",
        )
    refs = [request.folder, *([request.directory] if request.directory else [])]
    return StepPlan(
        spec=spec,
        setting=setting_of_job(context),
        folder=str(folder),
        mounts=_mounts(refs, context),
    )


def _mounts(refs: list[PathRef], context: JobContext) -> tuple[Mount, ...]:
    found = ((ref, context.located(ref)) for ref in refs)
    return tuple(
        Mount(source=str(source), destination=ref.path)
        for ref, source in found
        if source is not None and Path(ref.path) != Path("/")
    )


async def _end(process: Process, grace_s: float) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s + _END_S):
            await process.wait()
            return
    kill_tree(process.pid)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def supervise(request: SuperviseRequest, context: JobContext) -> None:
    """Start a launch's supervisor, in a session of its own; it holds a lock for which the job waits.

    Raises
    ------
    GipfelError
        The host does not see the folder, or it can't be started.
    """
    folder = context.located(request.folder)
    if folder is None:
        raise GipfelError(
            f"The host does not see the launch's folder {request.folder.path}.", "Set GIPFEL_RUNS to another."
        )
    host = without_tokens(context.host)
    setting = setting_of_job(context).model_dump_json().encode() + b"\n"
    try:
        log = os.open(Path(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Locked before it starts: the server may end at any moment.
        held, descriptor = locked_file(Path(context.scratch, LOCKS_FOLDER))
        try:
            process = subprocess.Popen(
                (sys.executable, "-I", "-m", MODULE, str(folder), "-"),
                env=host,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                pass_fds=(descriptor,),
            )
            hand_over(held, descriptor, process.pid)
        finally:
            os.close(log)
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        with process.stdin:
            process.stdin.write(setting)
    except OSError as error:
        raise GipfelError(
            f"The launch's supervisor can't be started: {error.strerror or error}.", "Try again."
        ) from error
