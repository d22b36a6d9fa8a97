"""Slurm through its commands: argv lists, a time limit for each, no shell."""

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from secrets import token_hex

from ..model import GipfelError, one_line
from .carry import carried
from .command import CommandResult, PrintedTooMuchError, acting_as, run_command
from .machine import SLURM_VARIABLES
from .protocol import Choices, JobRequest, JobStatus, LostJobError, MarkedJob, Partition
from .slurm_answers import (
    JOB_FIELDS,
    LINE_FIELDS,
    TASK_FIELDS,
    SlurmUnavailableError,
    mark_format,
    read_address,
    read_jobs,
    read_line,
    read_marks,
    read_own_users,
    refusal,
)
from .slurm_site import SlurmSite

_FRESH_SECONDS = 30.0
_LINE_SECONDS = 15.0
# Requests that no page waits for may take longer: a busy controller answers within a minute.
_PATIENCE = 6
# One argument holds 128 KiB, and a job's number with its comma at most 11 bytes.
_MOST_JOBS = 4000


_TASK = re.compile(r"[0-9]+_[0-9]+")
_UNREADABLE = JobStatus(answer="unknown", reason="squeue's answer can't be read.")


class SlurmScheduler:
    """A Slurm cluster, as ``sbatch``, ``squeue``, ``scancel``, ``sinfo`` and ``scontrol`` show it.

    Jobs are submitted and cancelled as their user; questions are asked as the user of this process, who must
    see other users' jobs (with ``PrivateData=jobs`` an operator).

    Parameters
    ----------
    environment
        ``PATH``, ``LD_LIBRARY_PATH``, ``SLURM_CONF`` and ``SLURM_CONF_SERVER`` are taken from it.
    exec_prefix
        How to act as another user; see `acting_as`.
    limit
        Seconds that a command may take; six times as many for submitting and for asking about jobs.
    carrier
        What takes a job's environment from the front of its input, as `broker.hub.carry` does, and becomes
        the command behind it. Default: none, the command that acts as another user gets that environment.
    """

    name = "slurm"

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        exec_prefix: str = "",
        limit: float = 10.0,
        carrier: Sequence[str] = (),
    ) -> None:
        wanted = ("PATH", "LD_LIBRARY_PATH", *SLURM_VARIABLES)
        self._environment = {name: environment[name] for name in wanted if name in environment}
        self._exec_prefix = exec_prefix
        self._limit = limit
        self._carrier = tuple(carrier)
        self._partitions: tuple[float, tuple[Partition, ...]] | None = None
        self._addresses: dict[str, tuple[float, str]] = {}
        self._site = SlurmSite(self._run)
        self._line: tuple[float, Mapping[str, int]] = (0.0, {})

    async def submit(self, request: JobRequest) -> str:
        """Submit with ``sbatch``; the script goes to its input and the environment through its own."""
        environment = dict(request.environment)
        environment.setdefault("PATH", self._environment.get("PATH", ""))
        environment |= {
            name: self._environment[name] for name in SLURM_VARIABLES if name in self._environment
        }
        if request.gpus_per_node == 0:
            # Slurm sets it only for jobs that ask for GPUs; without it such a job sees those of its
            # neighbours.
            environment["CUDA_VISIBLE_DEVICES"] = ""
        try:
            result = await self._run(
                submit_arguments(request),
                user=request.user,
                environment=environment,
                given=request.script,
                patience=_PATIENCE,
            )
        except (SlurmUnavailableError, PrintedTooMuchError) as error:
            # It may have taken the job without an answer.
            raise LostJobError(request.mark, request.user, error) from None
        # Only the last line: a plugin may print before it. A federated cluster adds ";name".
        lines = result.output.strip().splitlines()
        job_id = lines[-1].partition(";")[0].strip() if lines else ""
        if not job_id.isdecimal():
            fix = "Look for the job with squeue; tell the cluster's administrators."
            output = one_line(result.output)[:200]
            no_number = GipfelError(f"Slurm gave no job number (sbatch): {output!r}.", fix)
            raise LostJobError(request.mark, request.user, no_number)
        return job_id

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Ask ``squeue`` once for all, or once for every 4000; a job that Slurm has forgotten has ended."""
        answers = {each: JobStatus(answer="ended") for each in job_ids if not each.isdecimal()}
        asked = sorted({each for each in job_ids if each.isdecimal()}, key=int)
        for first in range(0, len(asked), _MOST_JOBS):
            answers |= await self._query_some(asked[first : first + _MOST_JOBS], JOB_FIELDS)
        tasks = sorted({each for each in job_ids if _TASK.fullmatch(each)})
        for first in range(0, len(tasks), _MOST_JOBS):
            some = tasks[first : first + _MOST_JOBS]
            answers |= await self._query_some(some, TASK_FIELDS, "--array")
        if any(each.wants for each in answers.values()):
            line = await self._ask_line()
            answers |= {
                each: status.model_copy(update={"place": line.get(each)})
                for each, status in answers.items()
                if status.wants
            }
        return answers

    async def _query_some(self, asked: Sequence[str], fields: str, *more: str) -> dict[str, JobStatus]:
        argv = (
            "squeue",
            "--noheader",
            "--states=all",
            f"--jobs={','.join(asked)}",
            f"--Format={fields}",
            *more,
        )
        missing = JobStatus(answer="ended", reason="Slurm no longer knows this job.")
        try:
            output = (await self._run(argv, patience=_PATIENCE)).output
            found = read_jobs(output)
            if output.strip() and not found:
                # Without any job it is not a valid answer, and ends nothing.
                missing = _UNREADABLE
        except ValueError:
            found, missing = {}, _UNREADABLE
        except GipfelError as error:
            # squeue reports this only for a single job; of several it leaves the unknown ones out.
            if not (len(asked) == 1 and "Invalid job id" in error.problem):
                missing = JobStatus(answer="unknown", reason=error.problem)
            found = {}
        return {each: found.get(each, missing) for each in asked}

    async def _ask_line(self) -> Mapping[str, int]:
        """Return each waiting job's place in line, at most 15 seconds old; nothing where Slurm hides it."""
        if time.monotonic() - self._line[0] > _LINE_SECONDS:
            argv = ("squeue", "--noheader", "--states=PENDING", "--sort=-p,i", f"--Format={LINE_FIELDS}")
            line: Mapping[str, int] = {}
            with contextlib.suppress(GipfelError):
                line = read_line((await self._run(argv)).output)
            self._line = (time.monotonic(), line)
        return self._line[1]

    async def find(self, mark: str, user: str) -> str | None:
        """Return the number of the job that this user (empty: this process's) submitted with a mark.

        Raises
        ------
        GipfelError
            Slurm does not answer.
        """
        options = ("--states=all", f"--user={user or os.geteuid()}")
        try:
            found = await self._ask_marks(mark, *options, patience=_PATIENCE)
        except GipfelError as error:
            if "Invalid user" in error.problem:
                return None
            raise
        return next((each.job_id for each in found if each.mark == mark), None)

    async def marked(self, prefix: str) -> tuple[MarkedJob, ...]:
        """Return the jobs that wait or run and whose mark has this prefix.

        Raises
        ------
        GipfelError
            Slurm does not answer.
        """
        return await self._ask_marks(prefix, "--states=PENDING,CONFIGURING,RUNNING")

    async def _ask_marks(self, prefix: str, *options: str, patience: int = 1) -> tuple[MarkedJob, ...]:
        secret = token_hex(16)
        # Not as an argument: those of a process can be read by every user of its machine, who could then
        # change the comment of a job before Slurm's controller is asked.
        variables = {"SQUEUE_FORMAT2": mark_format(secret)}
        argv = ("squeue", "--noheader", *options)
        result = await self._run(argv, variables=variables, patience=patience)
        return read_marks(result.output, prefix, secret)

    async def cancel(self, job_id: str, *, user: str = "") -> None:
        """Cancel with ``scancel`` as the job's user; returns before the job has ended."""
        if job_id.isdecimal() or _TASK.fullmatch(job_id):
            try:
                await self._run(("scancel", job_id), user=user)
            except GipfelError as error:
                if "Invalid job id" not in error.problem and "already completed" not in error.problem:
                    raise

    async def extend(self, job_id: str, minutes: int) -> None:
        """Add to a running job's limit with ``scontrol`` as the hub's user, who must be an operator."""
        await self._run(("scontrol", "update", f"JobId={int(job_id)}", f"TimeLimit+={int(minutes)}"))

    async def own_users(self) -> frozenset[str]:
        """Ask ``scontrol`` which unix users Slurm's daemons run as."""
        return read_own_users((await self._run(("scontrol", "show", "config"))).output)

    async def address(self, node: str) -> str:
        """Return ``NodeAddr`` of the node, at most 30 seconds old."""
        known = self._addresses.get(node)
        if known and time.monotonic() - known[0] < _FRESH_SECONDS:
            return known[1]
        result = await self._run(("scontrol", "--oneliner", "show", "node", node))
        address = read_address(result.output)
        if address is None:
            raise GipfelError(
                f"Slurm gives no address for node {node}.", "Tell the cluster's administrators."
            )
        self._addresses[node] = (time.monotonic(), address)
        return address

    async def partitions(self) -> tuple[Partition, ...]:
        """Ask ``sinfo``, at most every 30 seconds."""
        if self._partitions and time.monotonic() - self._partitions[0] < _FRESH_SECONDS:
            return self._partitions[1]
        self._partitions = (time.monotonic(), await self._site.partitions())
        return self._partitions[1]

    async def choices(self, user: str) -> Choices:
        """Return what a user may choose, from ``sacctmgr`` and ``scontrol``."""
        return await self._site.choices(user)

    async def expected_start(self, request: JobRequest) -> str:
        """Ask ``sbatch --test-only``, as the user; no job is made."""
        return await self._site.expected_start(request, submit_arguments(request))

    async def _run(
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        given: str = "",
        patience: int = 1,
    ) -> CommandResult:
        """Run one of Slurm's commands, with a job's environment or, for a question, some variables."""
        program = argv[0]
        if environment is not None and self._carrier:
            argv, given, environment = (*self._carrier, *argv), carried(environment) + given, None
        full = (*acting_as(user, self._exec_prefix), *argv)
        limit = self._limit * patience
        environment = environment or {**self._environment, **(variables or {})}
        try:
            result = await run_command(full, environment=environment, limit=limit, given=given)
        except TimeoutError as error:
            raise SlurmUnavailableError(f"Slurm did not answer within {limit:g} s ({program}).") from error
        if result.code != 0:
            raise refusal(program, result.errors)
        return result


def submit_arguments(request: JobRequest) -> tuple[str, ...]:
    """Return the argv of ``sbatch`` for a request; every value stays within its own argument."""
    argv = [
        "sbatch",
        "--parsable",
        # All of an environment that holds nothing but the job's: a list of names would make Slurm run the
        # user's login shell on the node and take what that prints.
        "--export=ALL",
        f"--job-name={request.name}",
        f"--chdir={request.directory}",
        f"--nodes={request.nodes}",
        f"--output={request.output or '/dev/null'}",
    ]
    if request.mark:
        argv.append(f"--comment={request.mark}")
    if request.warn_s:
        argv.append(f"--signal=B:USR1@{request.warn_s}")
    if request.append:
        argv.append("--open-mode=append")
    if not request.requeue:
        argv.append("--no-requeue")
    if request.array:
        limit = f"%{request.array_limit}" if request.array_limit else ""
        argv.append(f"--array=0-{request.array - 1}{limit}")
    if request.gpus_per_node:
        argv.append(f"--gres=gpu:{request.gpus_per_node}")
    if request.cpus_per_task:
        argv.append(f"--cpus-per-task={request.cpus_per_task}")
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
