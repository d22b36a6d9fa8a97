"""Run jobs on this machine: each job has a supervisor process that outlives the process that submitted it."""

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

from ..model import GipfelError, ReportOSError
from ..process.fork import ForkedProgram, can_fork
from ..process.tree import Process, kill_tree
from ..runs import make_private, write_atomically
from .array import PLAN_VARIABLE, ArrayPlan, TaskState, array_script, task_file
from .machine import count_gpus, current_user_name, gpus_are_known, local_cpus, local_gpus, local_memory
from .notation import parse_duration
from .protocol import JobRequest, JobStatus, Partition
from .supervisor import EXTENSION, GRACE_SECONDS, JobExit, SupervisedJob
from .supervisor import main as supervise_job

_ID = re.compile(r"([0-9]+-[0-9a-f]{6})(?:_([0-9]{1,5}))?")
#: Time in which a supervisor must report that its job has started.
_START_SECONDS = 20.0
#: Age from which the state of an ended job is removed.
_HISTORY_SECONDS = 7 * 24 * 3600.0


class LocalScheduler:
    """Starts jobs immediately on this machine.

    All state is in ``folder``, so the process that has this scheduler (such as the hub) can be restarted
    while jobs run.

    Parameters
    ----------
    folder
        Directory of the jobs' states; created when needed, accessible to its owner alone.
    environment
        Variables for finding programs (``PATH``).
    python
        Interpreter of the jobs' supervisors, with this package installed.
    """

    name = "local"

    def __init__(self, folder: Path, *, environment: Mapping[str, str], python: str = sys.executable) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._python = python
        self._node = socket.gethostname()
        self._cancellations: set[asyncio.Task[None]] = set()

    async def submit(self, request: JobRequest) -> str:
        """Start the job now and return its id; ignore account, memory, nodes and other cluster options."""
        gpus = await self._gpus()
        environment = dict(request.environment)
        if request.gpus_per_node == 0:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        elif gpus:
            if request.gpus_per_node > len(gpus):
                raise GipfelError(
                    f"The job requests {request.gpus_per_node} GPUs, but this machine has {len(gpus)}.",
                    "Request fewer GPUs.",
                )
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[: request.gpus_per_node])
        with ReportOSError("The job can't be started"):
            make_private(self._folder)
            self._remove_old()
            supervisor = await self._start_supervisor()
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
            # Each task of an array has its own log.
            output="" if request.array else request.output.replace("%j", job_id),
            environment=environment,
            user=request.user if request.user != current_user_name() else "",
            time_limit_s=seconds,
        )
        try:
            start = asyncio.ensure_future(_start_job(supervisor, plan))
            await asyncio.shield(start)
        except GipfelError:
            await self.cancel(job_id)
            raise
        except asyncio.CancelledError:
            # The caller will not get the job's id, so the job must end.
            cancellation = asyncio.ensure_future(self._cancel_started(job_id, start))
            self._cancellations.add(cancellation)
            cancellation.add_done_callback(self._cancellations.discard)
            raise
        return job_id

    async def _start_supervisor(self) -> "asyncio.subprocess.Process | ForkedProgram":
        argv = (self._python, "-I", "-m", "gipfel_cluster.scheduler.supervisor")
        if self._python == sys.executable and can_fork():
            return ForkedProgram(argv, supervise_job, self._environment, output="capture")
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
        """Return the script and variables of the job that runs an array; each task has its own GPUs."""
        per_task, limit = request.gpus_per_node, request.array_limit or request.array
        if per_task and gpus:
            limit = min(limit, len(gpus) // per_task)
        plan = ArrayPlan(
            folder=str(self._folder / job_id),
            script=request.script,
            output=request.output.replace("%j", job_id),
            tasks=request.array,
            limit=limit,
            gpus=tuple(",".join(gpus[at * per_task : (at + 1) * per_task]) for at in range(limit))
            if per_task and gpus
            else (),
        )
        return array_script(self._python), {**environment, PLAN_VARIABLE: plan.model_dump_json()}

    async def _cancel_started(self, job_id: str, start: "asyncio.Future[None]") -> None:
        with contextlib.suppress(GipfelError):
            await start
        with contextlib.suppress(GipfelError):
            await self.cancel(job_id)

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Return the status of each job, from its supervisor and its state files."""
        return {job_id: self._status_of(job_id) for job_id in job_ids}

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """Send SIGTERM, and SIGKILL after `GRACE_SECONDS`; return when the whole job has ended.

        A task of an array gets SIGTERM only; processes that it leaves behind end with the array.
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
        # Polled, because the supervisor may be no child of this process.
        while supervisor.alive and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if supervisor.alive:
            kill_tree(supervisor.pid)
            supervisor.signal(signal.SIGKILL)

    async def extend(self, job_id: str, minutes: int) -> None:
        """Add to a running job's time limit; its supervisor reads the extension when the limit is reached."""
        supervisor = self._supervisor(job_id)
        if supervisor is None or not supervisor.alive:
            raise GipfelError("This job is not running.")
        path = self._folder / job_id / EXTENSION
        before = int(path.read_text()) if path.exists() else 0
        write_atomically(path, str(before + minutes * 60))

    async def address(self, node: str) -> str:  # noqa: ARG002 - the Protocol's
        """Return the loopback address, since jobs run on the hub's machine."""
        return "127.0.0.1"

    async def partitions(self) -> tuple[Partition, ...]:
        """Return one partition, this machine; a GPU is idle if no process computes on it."""
        gpus = await local_gpus(self._environment)
        return (
            Partition(
                name="local",
                default=True,
                gpus=count_gpus(gpus),
                gpus_known=gpus_are_known(gpus),
                total_gpus=count_gpus(gpus),
                idle_gpus=count_gpus([each for each in gpus if not each.busy]),
                nodes=1,
                idle_nodes=1,
                cpus=local_cpus(),
                memory=local_memory(),
            ),
        )

    async def _gpus(self) -> tuple[str, ...]:
        """Return the indices of this machine's GPUs; none without a driver."""
        return tuple(each.index for each in await local_gpus(self._environment))

    def _status_of(self, job_id: str) -> JobStatus:
        match = _ID.fullmatch(job_id)
        if not match:
            return JobStatus(answer="ended", reason="This is not a job of this machine.")
        task = match[2]
        return self._task_status(match[1], int(task), (self._node,)) if task else self._status(job_id)

    def _status(self, job_id: str) -> JobStatus:
        nodes = (self._node,)
        try:
            # Check the supervisor before reading the exit file: the job may end in between.
            supervisor = self._supervisor(job_id)
            alive = supervisor is not None and supervisor.alive
            job_exit = JobExit.model_validate_json((self._folder / job_id / "exit.json").read_text())
        except FileNotFoundError:
            if alive:
                return JobStatus(answer="running", state="RUNNING", nodes=nodes)
            if not self._folder.is_dir():
                return JobStatus(answer="unknown", reason=f"The directory {self._folder} does not exist.")
            return JobStatus(
                answer="ended", state="NODE_FAIL", nodes=nodes, reason="Its supervisor was killed."
            )
        except (OSError, ValidationError) as error:
            return JobStatus(
                answer="unknown", reason=f"The job's state can't be read: {type(error).__name__}."
            )
        return JobStatus(answer="ended", state=job_exit.state, nodes=nodes, exit_code=job_exit.exit_code)

    def _task_status(self, job_id: str, task: int, nodes: tuple[str, ...]) -> JobStatus:
        """Return the status of an array's task; a task without a state is pending while the array runs."""
        array = self._status(job_id)
        try:
            state = TaskState.model_validate_json(task_file(self._folder / job_id, task).read_text())
        except FileNotFoundError:
            if array.answer != "ended":
                return JobStatus(
                    answer=array.answer, state="PENDING", reason=array.reason or "other tasks run first"
                )
            return JobStatus(answer="ended", state="CANCELLED", reason="It never started.", exit_code=143)
        except (OSError, ValidationError) as error:
            return JobStatus(
                answer="unknown", reason=f"The task's state can't be read: {type(error).__name__}."
            )
        if state.exit_code is None:
            if array.answer == "ended":
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

    def _remove_old(self) -> None:
        for folder in self._folder.iterdir():
            exit_file = folder / "exit.json"
            if exit_file.is_file() and time.time() - exit_file.stat().st_mtime > _HISTORY_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


async def _start_job(supervisor: "asyncio.subprocess.Process | ForkedProgram", plan: SupervisedJob) -> None:
    """Send the job to its supervisor, and wait until it runs."""
    try:
        line = await _communicate(supervisor, plan.model_dump_json().encode())
        answer = json.loads(line or b'{"problem": "its supervisor ended immediately."}')
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"The job did not start within {_START_SECONDS:.0f} s.") from error
    except (OSError, ValueError) as error:
        raise GipfelError(f"The job can't be started: {error}.") from error
    if "problem" in answer:
        raise GipfelError(
            f"The job can't be started: {answer['problem']}", "Check the job's working directory and log."
        )


async def _communicate(supervisor: "asyncio.subprocess.Process | ForkedProgram", content: bytes) -> bytes:
    if isinstance(supervisor, ForkedProgram):
        return await asyncio.to_thread(supervisor.communicate, content, _START_SECONDS)
    assert supervisor.stdin is not None and supervisor.stdout is not None  # noqa: S101, PT018 - its pipes
    supervisor.stdin.write(content)
    supervisor.stdin.close()
    async with asyncio.timeout(_START_SECONDS):
        line = await supervisor.stdout.readline()
    async with asyncio.timeout(_START_SECONDS):
        await asyncio.gather(supervisor.stdout.read(), supervisor.wait())
    return line
