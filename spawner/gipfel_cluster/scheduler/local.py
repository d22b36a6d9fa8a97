"""The machine itself as a scheduler: each job has a supervisor that outlives whoever started it."""

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

from ..model import GipfelError
from ..process.fork import ForkedProgram, can_fork
from ..process.tree import Process, kill_tree
from ..runs import make_private, write_atomically
from .array import ArrayPlan, TaskState, array_script, task_file
from .command import own_name
from .machine import count_gpus, gpus_are_known, local_cpus, local_gpus, local_memory
from .notation import parse_duration
from .protocol import Choices, JobRequest, JobStatus, Partition
from .supervisor import EXTENSION, GRACE_SECONDS, JobExit, SupervisedJob
from .supervisor import main as supervise_job

_ID = re.compile(r"([0-9]+-[0-9a-f]{6})(?:_([0-9]{1,5}))?")
_START_SECONDS = 20.0
_KEPT_SECONDS = 7 * 24 * 3600.0


class LocalScheduler:
    """Starts each job immediately on this machine; a restart loses nothing, since state is in ``folder``.

    Parameters
    ----------
    folder
        Folder for the jobs' states; made when needed, for its owner alone.
    environment
        Variables for looking up programs (``PATH``).
    python
        The interpreter of a job's supervisor; it imports this package.
    """

    name = "local"

    def __init__(self, folder: Path, *, environment: Mapping[str, str], python: str = sys.executable) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._python = python
        self._node = socket.gethostname()
        self._unwanted: set[asyncio.Task[None]] = set()

    async def submit(self, request: JobRequest) -> str:
        """Start the job now; what only a cluster has (account, memory, more nodes) is ignored."""
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
            supervisor = await self._start_supervisor()
        except OSError as error:
            raise GipfelError(f"The job can't be started: {error.strerror} ({error.filename}).") from error
        job_id = f"{supervisor.pid}-{secrets.token_hex(3)}"
        script = request.script
        if request.array:
            script, environment = self._array(request, job_id, environment, gpus)
        environment["GIPFEL_JOB_ID"] = job_id
        seconds = parse_duration(request.time) if request.time else None
        if seconds is not None:
            # As Slurm's SLURM_JOB_END_TIME.
            environment["GIPFEL_JOB_END_TIME"] = str(int(time.time()) + seconds)
        (self._folder / job_id).mkdir(mode=0o700)
        plan = SupervisedJob(
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
            handing = asyncio.ensure_future(_hand_over(supervisor, plan))
            await asyncio.shield(handing)
        except GipfelError:
            await self.cancel(job_id)
            raise
        except asyncio.CancelledError:
            # The job's number is lost: the job must not outlive this request.
            unwanted = asyncio.ensure_future(self._end_unwanted(job_id, handing))
            self._unwanted.add(unwanted)
            unwanted.add_done_callback(self._unwanted.discard)
            raise
        return job_id

    async def _start_supervisor(self) -> "asyncio.subprocess.Process | ForkedProgram":
        argv = (self._python, "-I", "-m", "gipfel_cluster.scheduler.supervisor")
        if self._python == sys.executable and can_fork():
            return ForkedProgram(argv, supervise_job, self._environment, output="answer")
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
        """Return the script and variables of the one job that runs an array's tasks, with GPUs for each."""
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
        """Return the state of each job, from its supervisor and the files that it left."""
        return {job_id: self._status_of(job_id) for job_id in job_ids}

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """Send SIGTERM, and SIGKILL after `GRACE_SECONDS`; return when nothing of the job is left.

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
        supervisor = self._supervisor(job_id)
        if supervisor is None:
            return
        supervisor.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS + 5
        while supervisor.alive and time.monotonic() < deadline:  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.05)
        if supervisor.alive:
            kill_tree(supervisor.pid)
            supervisor.signal(signal.SIGKILL)

    async def extend(self, job_id: str, minutes: int) -> None:
        """Add to a running job's limit; its supervisor reads it when the time is up."""
        supervisor = self._supervisor(job_id)
        if supervisor is None or not supervisor.alive:
            raise GipfelError("This job does not run any more.")
        path = self._folder / job_id / EXTENSION
        before = int(path.read_text()) if path.exists() else 0
        write_atomically(path, str(before + minutes * 60))

    async def address(self, node: str) -> str:  # noqa: ARG002 - the Protocol's
        """Return the loopback address: a job runs where the hub runs."""
        return "127.0.0.1"

    async def partitions(self) -> tuple[Partition, ...]:
        """Return one partition, this machine; a GPU is idle when no process computes on it."""
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
        """Return an empty value: a machine keeps no accounts."""
        return Choices()

    async def expected_start(self, request: JobRequest) -> str:  # noqa: ARG002 - the Protocol's
        """Return an empty text: a job starts immediately."""
        return ""

    async def _gpus(self) -> tuple[str, ...]:
        """Return the indices of this machine's GPUs; none where there is no driver."""
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
            supervisor = self._supervisor(job_id)
            alive = supervisor is not None and supervisor.alive
            ending = JobExit.model_validate_json((self._folder / job_id / "exit.json").read_text())
        except FileNotFoundError:
            if alive:
                return JobStatus(answer="running", state="RUNNING", nodes=nodes)
            if not self._folder.is_dir():
                return JobStatus(answer="unknown", reason=f"The folder {self._folder} is not there.")
            return JobStatus(
                answer="ended", state="NODE_FAIL", nodes=nodes, reason="Its supervisor was killed."
            )
        except (OSError, ValidationError) as error:
            return JobStatus(
                answer="unknown", reason=f"The job's state can't be read: {type(error).__name__}."
            )
        return JobStatus(answer="ended", state=ending.state, nodes=nodes, exit_code=ending.exit_code)

    def _task_status(self, job_id: str, task: int, nodes: tuple[str, ...]) -> JobStatus:
        """Return the status of an array's task: its own state, or pending while the array lives."""
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
                    answer="ended", state="NODE_FAIL", nodes=nodes, reason="Its supervisor was killed."
                )
            return JobStatus(answer="running", state="RUNNING", nodes=nodes)
        return JobStatus(answer="ended", state=state.state, nodes=nodes, exit_code=state.exit_code)

    def _supervisor(self, job_id: str) -> Process | None:
        if not _ID.fullmatch(job_id):
            return None
        try:
            return Process.model_validate_json((self._folder / job_id / "supervisor.json").read_text())
        except FileNotFoundError:
            return None

    def _forget_old(self) -> None:
        for folder in self._folder.iterdir():
            ending = folder / "exit.json"
            if ending.is_file() and time.time() - ending.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


async def _hand_over(supervisor: "asyncio.subprocess.Process | ForkedProgram", plan: SupervisedJob) -> None:
    """Give the supervisor its job and wait until it runs."""
    try:
        line = await _answer(supervisor, plan.model_dump_json().encode())
        answer = json.loads(line or b'{"problem": "its supervisor ended immediately."}')
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"The job did not start within {_START_SECONDS:.0f} s.") from error
    except (OSError, ValueError) as error:
        raise GipfelError(f"The job can't be started: {error}.") from error
    if "problem" in answer:
        raise GipfelError(f"The job can't be started: {answer['problem']}", "Check the job's folder and log.")


async def _answer(supervisor: "asyncio.subprocess.Process | ForkedProgram", question: bytes) -> bytes:
    if isinstance(supervisor, ForkedProgram):
        return await asyncio.to_thread(supervisor.answer_to, question, _START_SECONDS)
    if supervisor.stdin is None or supervisor.stdout is None:
        raise GipfelError("The job's supervisor has no pipes.")
    supervisor.stdin.write(question)
    supervisor.stdin.close()
    async with asyncio.timeout(_START_SECONDS):
        line = await supervisor.stdout.readline()
    async with asyncio.timeout(_START_SECONDS):
        await asyncio.gather(supervisor.stdout.read(), supervisor.wait())
    return line
