"""Use Slurm through its commands: argv lists with a time limit, without a shell."""

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from secrets import token_hex

from ..model import GipfelError, one_line
from .env_from_stdin import encode_environment
from .machine import SLURM_VARIABLES, CommandResult, OutputLimitError, run_as_prefix, run_command
from .protocol import Choices, GpuUsage, JobRequest, JobStatus, LostJobError, MarkedJob, Partition, Quota
from .slurm_output import (
    JOB_FIELDS,
    QUEUE_FIELDS,
    TASK_FIELDS,
    SlurmUnavailableError,
    command_error,
    mark_format,
    parse_address,
    parse_daemon_users,
    parse_jobs,
    parse_marks,
    parse_queue_positions,
)
from .slurm_site import SlurmSite
from .slurm_usage import SlurmUsage

_CACHE_SECONDS = 30.0
_QUEUE_CACHE_SECONDS = 15.0
# Commands for which no web page waits may take this many times the limit: a busy controller may need a
# minute.
_PATIENCE = 6
# One argument can have 128 KiB, and a job id with its comma has at most 11 bytes.
_MAX_JOBS = 4000


_TASK = re.compile(r"[0-9]+_[0-9]+")
_UNREADABLE = JobStatus(answer="unknown", reason="squeue's answer can't be read.")


class SlurmScheduler:
    """A Slurm cluster, used with ``sbatch``, ``squeue``, ``scancel``, ``sinfo`` and ``scontrol``.

    Jobs are submitted and cancelled as their user. Queries run as the user of this process, who must see
    other users' jobs; with ``PrivateData=jobs`` this must be an operator.

    Parameters
    ----------
    environment
        Provides ``PATH``, ``LD_LIBRARY_PATH``, ``SLURM_CONF`` and ``SLURM_CONF_SERVER``.
    exec_prefix
        Command that runs another one as another user; see `run_as_prefix`.
    limit
        Time limit of a command in seconds. It is six times as long where no page waits: for submitting a job,
        querying the status of jobs, and finding a job by its mark.
    environment_reader
        Command that reads a job's environment from its input and executes the command that follows, such as
        `scheduler.env_from_stdin`. Without one (the default), ``exec_prefix`` itself runs with the job's
        environment, too; with one, only the command that follows does.
    """

    name = "slurm"

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        exec_prefix: str = "",
        limit: float = 10.0,
        environment_reader: Sequence[str] = (),
    ) -> None:
        names = ("PATH", "LD_LIBRARY_PATH", *SLURM_VARIABLES)
        self._environment = {name: environment[name] for name in names if name in environment}
        self._exec_prefix = exec_prefix
        self._limit = limit
        self._environment_reader = tuple(environment_reader)
        self._partitions: tuple[float, tuple[Partition, ...]] | None = None
        self._addresses: dict[str, tuple[float, str]] = {}
        self._site = SlurmSite(self._run)
        self._usage = SlurmUsage(self._run)
        self._queue: tuple[float, Mapping[str, int]] = (0.0, {})

    async def submit(self, request: JobRequest) -> str:
        """Submit with ``sbatch``, which gets script and environment of the job, and return the job id.

        Raises
        ------
        LostJobError
            Slurm may have accepted the job, but printed no id, or did not answer in time.
        GipfelError
            Slurm refused the job.
        """
        environment = dict(request.environment)
        environment.setdefault("PATH", self._environment.get("PATH", ""))
        environment |= {
            name: self._environment[name] for name in SLURM_VARIABLES if name in self._environment
        }
        if request.gpus_per_node == 0:
            # Slurm sets it only for jobs with GPUs; otherwise a job without GPUs would see those of other
            # jobs.
            environment["CUDA_VISIBLE_DEVICES"] = ""
        try:
            result = await self._run(
                submit_arguments(request),
                user=request.user,
                environment=environment,
                stdin=request.script,
                patience=_PATIENCE,
            )
        except (SlurmUnavailableError, OutputLimitError) as error:
            # Slurm may have accepted the job although no answer arrived.
            raise LostJobError(request.mark, request.user, error) from None
        # Use the last line, since a plugin may print before it. A federated cluster adds ";name".
        lines = result.output.strip().splitlines()
        job_id = lines[-1].partition(";")[0].strip() if lines else ""
        if not job_id.isdecimal():
            fix = "Look for the job with squeue, and tell the cluster's administrators."
            output = one_line(result.output)[:200]
            no_job_id = GipfelError(f"Slurm printed no job id (sbatch): {output!r}.", fix)
            raise LostJobError(request.mark, request.user, no_job_id)
        return job_id

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Query up to 4000 jobs with one ``squeue``; a job that Slurm no longer knows has ended."""
        answers = {each: JobStatus(answer="ended") for each in job_ids if not each.isdecimal()}
        jobs = sorted({each for each in job_ids if each.isdecimal()}, key=int)
        tasks = sorted({each for each in job_ids if _TASK.fullmatch(each)})
        for listed, options in ((jobs, (JOB_FIELDS,)), (tasks, (TASK_FIELDS, "--array"))):
            for first in range(0, len(listed), _MAX_JOBS):
                answers |= await self._query_some(listed[first : first + _MAX_JOBS], *options)
        # Only pending jobs have `requested`.
        if any(each.requested for each in answers.values()):
            positions = await self._queue_positions()
            answers |= {
                each: status.model_copy(update={"queue_position": positions.get(each)})
                for each, status in answers.items()
                if status.requested
            }
        return answers

    async def _query_some(self, job_ids: Sequence[str], fields: str, *options: str) -> dict[str, JobStatus]:
        argv = (
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={','.join(job_ids)}",
            f"--Format={fields}",
            *options,
        )
        missing = JobStatus(answer="ended", reason="Slurm no longer knows this job.")
        try:
            output = (await self._run(argv, patience=_PATIENCE)).output
            statuses = parse_jobs(output)
            if output.strip() and not statuses:
                # Output without any job is not a valid answer, so no job may count as ended.
                missing = _UNREADABLE
        except ValueError:
            statuses, missing = {}, _UNREADABLE
        except GipfelError as error:
            # squeue reports this only for a single job; of several jobs it omits the unknown ones.
            if not (len(job_ids) == 1 and "Invalid job id" in error.problem):
                missing = JobStatus(answer="unknown", reason=error.problem)
            statuses = {}
        return {each: statuses.get(each, missing) for each in job_ids}

    async def _queue_positions(self) -> Mapping[str, int]:
        """Return the queue position of each pending job, at most 15 s old; empty if Slurm hides them."""
        if time.monotonic() - self._queue[0] > _QUEUE_CACHE_SECONDS:
            argv = ("squeue", "--noheader", "--states=PENDING", "--sort=-p,i", f"--Format={QUEUE_FIELDS}")
            positions: Mapping[str, int] = {}
            with contextlib.suppress(GipfelError):
                positions = parse_queue_positions((await self._run(argv)).output)
            self._queue = (time.monotonic(), positions)
        return self._queue[1]

    async def find(self, mark: str, user: str) -> str | None:
        """Return the id of the job that a user (empty: this process's) submitted with a mark, or None.

        Raises
        ------
        GipfelError
            Slurm does not answer.
        """
        options = ("--states=all", f"--user={user or os.geteuid()}")
        try:
            jobs = await self._query_marks(mark, *options, patience=_PATIENCE)
        except GipfelError as error:
            if "Invalid user" in error.problem:
                return None
            raise
        return next((each.job_id for each in jobs if each.mark == mark), None)

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """Return the pending and running jobs whose mark has this prefix.

        Raises
        ------
        GipfelError
            Slurm does not answer.
        """
        return await self._query_marks(prefix, "--states=PENDING,CONFIGURING,RUNNING")

    async def _query_marks(self, prefix: str, *options: str, patience: int = 1) -> tuple[MarkedJob, ...]:
        # It ends each field of squeue's output. A user who knew it could write lines of invented jobs into a
        # job's comment. So it is passed in a variable: every user can read a process's arguments.
        secret = token_hex(16)
        variables = {"SQUEUE_FORMAT2": mark_format(secret)}
        result = await self._run(("squeue", "--noheader", *options), variables=variables, patience=patience)
        return parse_marks(result.output, prefix, secret)

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        """Cancel with ``scancel`` as the job's user; returns before the job has ended."""
        if job_id.isdecimal() or _TASK.fullmatch(job_id):
            try:
                await self._run(("scancel", job_id), user=user)
            except GipfelError as error:
                if "Invalid job id" not in error.problem and "already completed" not in error.problem:
                    raise

    async def extend(self, job_id: str, minutes: int) -> None:
        """Add to a running job's time limit with ``scontrol``, as the hub's user, who must be an operator."""
        await self._run(("scontrol", "update", f"JobId={int(job_id)}", f"TimeLimit+={int(minutes)}"))

    async def daemon_users(self) -> frozenset[str]:
        """Return the unix users that Slurm's daemons run as, from ``scontrol show config``."""
        return parse_daemon_users((await self._run(("scontrol", "show", "config"))).output)

    async def address(self, node: str) -> str:
        """Return ``NodeAddr`` of the node, from a cache of at most 30 seconds."""
        cached = self._addresses.get(node)
        if cached and time.monotonic() - cached[0] < _CACHE_SECONDS:
            return cached[1]
        address = parse_address((await self._run(("scontrol", "--oneliner", "show", "node", node))).output)
        if address is None:
            raise GipfelError(
                f"Slurm reports no address for node {node}.", "Tell the cluster's administrators."
            )
        self._addresses[node] = (time.monotonic(), address)
        return address

    async def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions from ``sinfo``, which runs at most every 30 seconds."""
        if self._partitions and time.monotonic() - self._partitions[0] < _CACHE_SECONDS:
            return self._partitions[1]
        self._partitions = (time.monotonic(), await self._site.partitions())
        return self._partitions[1]

    async def choices(self, user: str) -> Choices:
        """Return a user's accounts, QoS and reservations, from ``sacctmgr`` and ``scontrol``."""
        return await self._site.choices(user)

    async def gpu_usage(self, user: str, since: date) -> GpuUsage:
        """Return the GPU hours that a user has used (from ``sacct``) and has left (from ``scontrol``)."""
        return await self._usage.gpu_usage(user, since)

    async def quota(self, user: str) -> Quota:
        """Return a user's limits, GPU hours of this month, and waits in the queue in the last 90 days.

        ``usage`` has the GPU hours in total and those left, ``spent`` the same hours by account and service.
        """
        now = datetime.now().astimezone()
        choices = await self._site.choices(user)
        month = now.date().replace(day=1)
        return Quota(
            choices=choices,
            usage=await self._usage.gpu_usage(user, month),
            waits=await self._usage.waits(user, now),
            spent=await self._usage.spent(user, month),
        )

    async def expected_start(self, request: JobRequest) -> str:
        """Return the expected start from ``sbatch --test-only``, run as the user; no job is submitted."""
        return await self._site.expected_start(request, submit_arguments(request))

    async def _run(
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        stdin: str = "",
        patience: int = 1,
    ) -> CommandResult:
        """Run a command of Slurm with a job's environment, or with the scheduler's and `variables`.

        `patience` multiplies the time limit. Raises `SlurmUnavailableError` after it, `GipfelError` if the
        command fails.
        """
        program = argv[0]
        if environment is not None and self._environment_reader:
            argv, stdin, environment = (
                (*self._environment_reader, *argv),
                encode_environment(environment) + stdin,
                None,
            )
        prefixed = (*run_as_prefix(user, self._exec_prefix), *argv)
        limit = self._limit * patience
        environment = environment or {**self._environment, **(variables or {})}
        try:
            result = await run_command(prefixed, environment=environment, limit=limit, stdin=stdin)
        except TimeoutError as error:
            raise SlurmUnavailableError(f"Slurm did not answer within {limit:g} s ({program}).") from error
        if result.code != 0:
            raise command_error(program, result.errors)
        return result


def submit_arguments(request: JobRequest) -> tuple[str, ...]:
    """Return the argv of ``sbatch`` for a request; no value can add an argument."""
    argv = [
        "sbatch",
        "--parsable",
        # ALL is safe, since the environment has only the job's variables. A list of names would make Slurm
        # run the user's login shell on the node and use its environment.
        "--export=ALL",
        f"--job-name={request.name}",
        f"--chdir={request.directory}",
        f"--nodes={request.nodes}",
        f"--output={request.output or '/dev/null'}",
    ]
    concurrent = f"%{request.array_limit}" if request.array_limit else ""
    switches = {
        f"--comment={request.mark}": request.mark,
        f"--signal=B:USR1@{request.warn_s}": request.warn_s,
        "--open-mode=append": request.append,
        "--no-requeue": not request.requeue,
        f"--array=0-{request.array - 1}{concurrent}": request.array,
        f"--gres=gpu:{request.gpus_per_node}": request.gpus_per_node,
        f"--cpus-per-task={request.cpus_per_task}": request.cpus_per_task,
    }
    argv += [switch for switch, is_set in switches.items() if is_set]
    optional = {
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "reservation": request.reservation,
        "constraint": request.constraint,
        "mem": request.memory,
        "exclude": request.exclude,
        "time": request.time,
    }
    argv += [f"--{option}={value}" for option, value in optional.items() if value]
    return (*argv, *request.site_arguments)
