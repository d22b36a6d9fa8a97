"""Steps that a broker starts for its clients: each as long as its client, none longer than the broker."""

import asyncio
import contextlib
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from pydantic import ValidationError

from ..edf import Mount
from ..keeper_process import keeper_arguments
from ..model import GipfelError
from ..scheduler.processes import kill_tree
from ..steps.setting import setting_of_job
from ..steps.spec import StepPlan, StepSpec
from .connection import Connection
from .following import follow
from .messages import Spot, Started, StepRequest
from .surroundings import Surroundings

_MOST = 64
_END_S = 45.0


class Steps:
    """Starts steps for clients."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._count = 0

    async def run(self, request: StepRequest, client: Connection) -> None:
        """Run a step to its end, or to that of its client, and tell its exit status.

        Raises
        ------
        GipfelError
            It can't be run, or there are too many.
        """
        if self._count >= _MOST:
            raise GipfelError(f"The broker keeps {_MOST} steps already.", "Stop a launch and try again.")
        plan = await asyncio.to_thread(step_plan, request, self._surroundings)
        self._count += 1
        try:
            process = await self._started(plan)
            try:
                await self._follow(process, client)
            finally:
                await _end(process, plan.spec.grace_s)
        finally:
            self._count -= 1

    async def _started(self, plan: StepPlan) -> Process:
        host = self._surroundings.host
        process = await asyncio.create_subprocess_exec(
            *keeper_arguments(),
            stdin=PIPE,
            stdout=DEVNULL,
            env={name: value for name, value in host.items() if "TOKEN" not in name},
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


def step_plan(request: StepRequest, surroundings: Surroundings) -> StepPlan:
    """Turn a client's request into a plan: its folders as the host has them.

    Raises
    ------
    GipfelError
        The host does not see the folder, or the request is no step.
    """
    try:
        spec = StepSpec.model_validate(request.spec)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:80] or "step"
        raise GipfelError(f"The step's {where} can't be used: {first['msg'][:200]}.") from None
    folder = surroundings.located(request.folder)
    if folder is None or request.folder.path != spec.folder:
        raise GipfelError(
            f"The host does not see the folder {spec.folder}: it is in the image or in memory.",
            "Choose one that is mounted, such as one below the run folder.",
        )
    spots = [request.folder, *([request.directory] if request.directory else [])]
    return StepPlan(
        spec=spec,
        setting=setting_of_job(surroundings),
        folder=str(folder),
        mounts=_mounts(spots, surroundings),
    )


def _mounts(spots: list[Spot], surroundings: Surroundings) -> tuple[Mount, ...]:
    found = ((spot, surroundings.located(spot)) for spot in spots)
    return tuple(
        Mount(source=str(source), destination=spot.path)
        for spot, source in found
        if source is not None and Path(spot.path) != Path("/")
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
