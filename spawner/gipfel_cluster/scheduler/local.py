"""The machine itself as a scheduler: each job a detached process that outlives whoever started it."""

import asyncio
import contextlib
import json
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..forking import ForkedProgram, can_fork
from ..model import GipfelError
from ..runs import make_private, write_atomically
from .account import own_name
from .array import ArrayPlan, TaskState, array_script, task_file
from .durations import parse_duration
from .keeper import EXTENSION, GRACE_SECONDS, Ending, KeptJob
from .keeper import main as keep_job
from .local_machine import count_gpus, gpus_are_known, local_cpus, local_gpus, local_memory
from .processes import Process, kill_tree
from .protocol import JobRequest, JobStatus, Partition
from .site import Choices

_ID = re.compile(r"([0-9]+-[0-9a-f]{6})(?:_([0-9]{1,5}))?")
_START_SECONDS = 20.0
_KEPT_SECONDS = 7 * 24 * 3600.0


class LocalScheduler:
    """Starts each job at once on this machine; its state is in ``folder``, so that a restart loses nothing.

    Parameters
    ----------
    folder
        Where the jobs' states are kept; made when needed, its owner's alone.
    environment
        Where programs are looked up (``PATH``).
    python
        The interpreter that keeps a job; it imports this package.
    """

    name = "local"

    def __init__(self, folder: Path, *, environment: Mapping[str, str], python: str = sys.executable) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._python = python
        self._node = socket.gethostname()
        self._unwanted: set[asyncio.Task[None]] = set()

    async def submit(self, request: JobRequest) -> str:
        """Start the job now; what only a cluster has (account, memory, more nodes) is not looked at."""
        gpus = await self._gpus()
        environment = dict(request.environment)
        if request.gpus_per_node == 0:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        elif gpus:
            if request.gpus_per_node > len(gpus):
                raise GipfelError(
                    f"This machine has {len(gpus)} GPUs, {request.gpus_per_node} were asked for.",
                    "Ask for fewer.",
                )
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[: request.gpus_per_node])
        try:
            make_private(self._folder)
            self._forget_old()
            keeper = await self._started_keeper()
        except OSError as error:
            raise GipfelError(f"The job can't be started: {error.strerror} ({error.filename}).") from error
        job_id = f"{keeper.pid}-{secrets.token_hex(3)}"
        script = request.script
        if request.array:
            script, environment = self._array(request, job_id, environment, gpus)
        environment["GIPFEL_JOB_ID"] = job_id
        seconds = parse_duration(request.time) if request.time else None
        if seconds is not None:
            # As Slurm's SLURM_JOB_END_TIME.
            environment["GIPFEL_JOB_END_TIME"] = str(int(time.time()) + seconds)
        (self._folder / job_id).mkdir(mode=0o700)
        plan = KeptJob(
            folder=str(self._folder / job_id),
            script=script,
            directory=request.directory,
            # The tasks of an array write their own.
            output="" if request.array else request.output.replace("%j", job_id),
            environment=environment,
            user=request.user if request.user != own_name() else "",
            seconds=seconds,
        )
        try:
            handing = asyncio.ensure_future(_hand_over(keeper, plan))
            await asyncio.shield(handing)
        except GipfelError:
            await self.cancel(job_id)
            raise
        except asyncio.CancelledError:
            # Nobody learns this job's number: it must not outlive who asked for it.
            unwanted = asyncio.ensure_future(self._end_unwanted(job_id, handing))
            self._unwanted.add(unwanted)
            unwanted.add_done_callback(self._unwanted.discard)
            raise
        return job_id

    async def _started_keeper(self) -> "asyncio.subprocess.Process | ForkedProgram":
        argv = (self._python, "-I", "-m", "gipfel_cluster.scheduler.keeper")
        if self._python == sys.executable and can_fork():
            return ForkedProgram(argv, keep_job, self._environment, output="answer")
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=self._environment,
        )

    def _array(
        self, request: JobRequest, job_id: str, environment: dict[str, str], gpus: Sequence[str]
    ) -> tuple[str, dict[str, str]]:
        """The script and variables of the one job that runs an array's tasks, and GPUs for each at once."""
        each, most = request.gpus_per_node, request.array_limit or request.array
        if each and gpus:
            most = min(most, len(gpus) // each)
        plan = ArrayPlan(
            folder=str(self._folder / job_id),
            script=request.script,
            output=request.output.replace("%j", job_id),
            tasks=request.array,
            limit=most,
            gpus=tuple(",".join(gpus[at * each : (at + 1) * each]) for at in range(most))
            if each and gpus
            else (),
        )
        return array_script(self._python), {**environment, **plan.variables()}

    async def _end_unwanted(self, job_id: str, handing: "asyncio.Future[None]") -> None:
        with contextlib.suppress(GipfelError):
            await handing
        with contextlib.suppress(GipfelError):
            await self.cancel(job_id)

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """How each job is, from its keeper and the state that it left."""
        return {job_id: self._status_of(job_id) for job_id in job_ids}

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """TERM, after `GRACE_SECONDS` KILL for the whole tree; returns when nothing of the job is left.

        A task of an array gets the TERM alone, and what it leaves behind ends with the array.
        """
        match = _ID.fullmatch(job_id)
        if match and match[2]:
            with contextlib.suppress(OSError, ValidationError):
                text = task_file(self._folder / match[1], int(match[2])).read_text()
                state = TaskState.model_validate_json(text)
                if state.exit_code is None:
                    state.process.signal(signal.SIGTERM)
            return
        keeper = self._keeper(job_id)
        if keeper is None:
            return
        keeper.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS + 5
        while keeper.alive and time.monotonic() < deadline:  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.05)
        if keeper.alive:
            kill_tree(keeper.pid)
            keeper.signal(signal.SIGKILL)

    async def extend(self, job_id: str, minutes: int) -> None:
        """Add to a running job's limit; its keeper looks when the time is up."""
        keeper = self._keeper(job_id)
        if keeper is None or not keeper.alive:
            raise GipfelError("This job does not run any more.")
        path = self._folder / job_id / EXTENSION
        before = int(path.read_text()) if path.exists() else 0
        write_atomically(path, str(before + minutes * 60))

    async def address(self, node: str) -> str:  # noqa: ARG002 - the Protocol's
        """The loopback address: a job runs where the hub runs."""
        return "127.0.0.1"

    async def partitions(self) -> tuple[Partition, ...]:
        """One partition, this machine; a GPU is idle when no process computes on it."""
        gpus = await local_gpus(self._environment)
        return (
            Partition(
                name="local",
                default=True,
                gpus=count_gpus(gpus),
                gpus_known=gpus_are_known(gpus),
                all_gpus=count_gpus(gpus),
                idle_gpus=count_gpus([each for each in gpus if not each.busy]),
                nodes=1,
                idle=1,
                cpus=local_cpus(),
                memory=local_memory(),
            ),
        )

    async def choices(self, user: str) -> Choices:  # noqa: ARG002 - the Protocol's
        """Nothing to choose: a machine keeps no accounts."""
        return Choices()

    async def expected_start(self, request: JobRequest) -> str:  # noqa: ARG002 - the Protocol's
        """At once."""
        return ""

    async def _gpus(self) -> tuple[str, ...]:
        """Indices of this machine's GPUs; none where there is no driver."""
        return tuple(each.index for each in await local_gpus(self._environment))

    def _status_of(self, job_id: str) -> JobStatus:
        match = _ID.fullmatch(job_id)
        if not match:
            return JobStatus(answer="ended", reason="This machine never had such a job.")
        if match[2]:
            return self._task_status(match[1], int(match[2]), (self._node,))
        return self._status(job_id)

    def _status(self, job_id: str) -> JobStatus:
        nodes = (self._node,)
        try:
            # Asked before the ending is read: a job may end in between.
            keeper = self._keeper(job_id)
            alive = keeper is not None and keeper.alive
            ending = Ending.model_validate_json((self._folder / job_id / "exit.json").read_text())
        except FileNotFoundError:
            if alive:
                return JobStatus(answer="running", state="RUNNING", nodes=nodes)
            if not self._folder.is_dir():
                return JobStatus(answer="unknown", reason=f"The folder {self._folder} is not there.")
            return JobStatus(answer="ended", state="NODE_FAIL", nodes=nodes, reason="Its keeper was killed.")
        except (OSError, ValidationError) as error:
            return JobStatus(
                answer="unknown", reason=f"The job's state can't be read: {type(error).__name__}."
            )
        return JobStatus(answer="ended", state=ending.state, nodes=nodes, exit_code=ending.exit_code)

    def _task_status(self, job_id: str, task: int, nodes: tuple[str, ...]) -> JobStatus:
        """How a task of an array is: its own state, or that it waits while the array lives."""
        whole = self._status(job_id)
        try:
            state = TaskState.model_validate_json(task_file(self._folder / job_id, task).read_text())
        except FileNotFoundError:
            if whole.answer != "ended":
                return JobStatus(
                    answer=whole.answer, state="PENDING", reason=whole.reason or "its turn comes"
                )
            return JobStatus(answer="ended", state="CANCELLED", reason="It never began.", exit_code=143)
        except (OSError, ValidationError) as error:
            return JobStatus(
                answer="unknown", reason=f"The task's state can't be read: {type(error).__name__}."
            )
        if state.exit_code is None:
            if whole.answer == "ended":
                return JobStatus(
                    answer="ended", state="NODE_FAIL", nodes=nodes, reason="Its keeper was killed."
                )
            return JobStatus(answer="running", state="RUNNING", nodes=nodes)
        return JobStatus(answer="ended", state=state.state, nodes=nodes, exit_code=state.exit_code)

    def _keeper(self, job_id: str) -> Process | None:
        if not _ID.fullmatch(job_id):
            return None
        try:
            return Process.model_validate_json((self._folder / job_id / "keeper.json").read_text())
        except FileNotFoundError:
            return None

    def _forget_old(self) -> None:
        for folder in self._folder.iterdir():
            ending = folder / "exit.json"
            if ending.is_file() and time.time() - ending.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


async def _hand_over(keeper: "asyncio.subprocess.Process | ForkedProgram", plan: KeptJob) -> None:
    """Give the keeper its job and wait until it runs."""
    try:
        line = await _answer(keeper, plan.model_dump_json().encode())
        answer = json.loads(line or b'{"problem": "its keeper ended at once."}')
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"The job did not start within {_START_SECONDS:.0f} s.") from error
    except (OSError, ValueError) as error:
        raise GipfelError(f"The job can't be started: {error}.") from error
    if "problem" in answer:
        raise GipfelError(f"The job can't be started: {answer['problem']}", "Check the job's folder and log.")


async def _answer(keeper: "asyncio.subprocess.Process | ForkedProgram", question: bytes) -> bytes:
    if isinstance(keeper, ForkedProgram):
        return await asyncio.to_thread(keeper.answer_to, question, _START_SECONDS)
    if keeper.stdin is None or keeper.stdout is None:
        raise GipfelError("The job's keeper has no pipes.")
    keeper.stdin.write(question)
    keeper.stdin.close()
    line = await asyncio.wait_for(keeper.stdout.readline(), _START_SECONDS)
    await asyncio.wait_for(asyncio.gather(keeper.stdout.read(), keeper.wait()), _START_SECONDS)
    return line
