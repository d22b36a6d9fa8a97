"""Run the broker of a hub that has no Slurm: ``python -m gipfel_cluster.broker.hub --socket PATH``.

The hub's machine or container has no commands of Slurm. The broker runs on a host with Slurm, checks which
users the hub acts as, and passes the hub's requests to Slurm.
"""

import argparse
import asyncio
import os
import pwd
import signal
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from ..model import Frozen, GipfelError, ReportOSError, report_line
from ..scheduler.machine import SLURM_VARIABLES, slurm_presence
from ..scheduler.protocol import JobRequest, LostJobError
from ..scheduler.slurm import SlurmScheduler
from .hub_client import (
    HUB_REQUESTS,
    CancelAsRequest,
    ChoicesRequest,
    ExpectedStartRequest,
    ExtendRequest,
    FindRequest,
    GpuUsageRequest,
    HubRequest,
    MarkedRequest,
    SubmittedAnswer,
)
from .messages import (
    AddressRequest,
    Answer,
    PartitionsRequest,
    QueryRequest,
    SubmitRequest,
    parse_request_line,
)
from .serving import Connection, Server, listen

_Uid = Annotated[int, Field(ge=0, lt=2**32 - 1)]
# The user `nobody`, the kernel's default owner of files without a mapped owner.
_OVERFLOW_UID = 65534
_MAX_REQUESTS = 16  # concurrent requests to the scheduler
#: Time limit of an answer in seconds, longer than the scheduler's own limit for a submission.
ANSWER_S = 90.0
# Variables that are taken from the broker's host: the hub's values may fit only the hub's container.
_HOST_VARIABLES = ("PATH", "LD_LIBRARY_PATH", *SLURM_VARIABLES)


class AllowedUsers(Frozen):
    """The range of uids that the broker may act as, which should contain only people.

    The defaults are UID_MIN and UID_MAX of login.defs. System users have lower uids; users that packages and
    systemd create, such as Debian's ``slurm`` (64030), have higher ones. A directory service may assign
    higher uids to people.
    """

    min_uid: _Uid = 1000
    max_uid: _Uid = 60000

    def check(self, name: str, *, schedulers: AbstractSet[str] = frozenset()) -> str:
        """Return the name of the user to act as; empty for the broker's own.

        Parameters
        ----------
        schedulers
            The users that the scheduler's daemons run as: a job of such a user could read the scheduler's
            keys.

        Raises
        ------
        GipfelError
            The user does not exist, or is root, a system user, or a user of the scheduler's daemons.
        """
        own = os.getuid()
        if not name:
            if own == 0:
                raise GipfelError("The hub's broker never acts as root.", "Name the user to act as.")
            return ""
        try:
            uid = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            raise GipfelError(
                f"There is no unix user {name!r} on the broker's machine.",
                "Ask the cluster's administrators for an account.",
            ) from None
        if uid in {0, _OVERFLOW_UID} or uid in {_uid(each) for each in schedulers}:
            raise GipfelError(f"The hub's broker does not act as {name}, a user of the system.")
        if not self.min_uid <= uid <= self.max_uid and uid != own:
            raise GipfelError(
                f"The hub's broker does not act as {name}, user {uid}.",
                f"It does so for users from {self.min_uid} to {self.max_uid}: `--min-uid` and `--max-uid`.",
            )
        return name


def _uid(name: str) -> int:
    """Return the uid of a user; -1 if the user does not exist on this machine."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return -1


class HubBroker(Server):
    """The server that answers one hub.

    Parameters
    ----------
    path
        Path of the socket.
    peer
        Uid of the hub, the only client that is served.
    environment
        The host's variables, for the scheduler's commands.
    arguments
        The site's arguments for the submit command.
    allowed
        Users that the broker may act as.
    """

    def __init__(
        self,
        path: Path,
        scheduler: SlurmScheduler,
        *,
        peer: int,
        environment: Mapping[str, str],
        arguments: Sequence[str] = (),
        allowed: AllowedUsers = AllowedUsers(),
    ) -> None:
        super().__init__(path, peer=peer)
        self._scheduler = scheduler
        self._host_variables = {name: environment[name] for name in _HOST_VARIABLES if name in environment}
        self._arguments = tuple(arguments)
        self._allowed = allowed
        self._schedulers: frozenset[str] | None = None
        self._semaphore = asyncio.Semaphore(_MAX_REQUESTS)

    async def answer(self, line: bytes, client: Connection) -> None:
        """Answer one request of the hub."""
        request = parse_request_line(line, HUB_REQUESTS)
        client.close_files()
        answer: Frozen
        try:
            async with asyncio.timeout(ANSWER_S), self._semaphore:
                answer = await self._answer(request)
        except TimeoutError:
            if not isinstance(request, SubmitRequest):
                raise
            # The submission was interrupted, but the scheduler may have accepted the job.
            answer = SubmittedAnswer(lost=f"The scheduler did not answer within {ANSWER_S:g} s.")
        await client.send(answer)

    async def _answer(self, request: HubRequest) -> Frozen:
        scheduler = self._scheduler
        match request:
            case SubmitRequest(job=job):
                return await self._submit(await self._checked(job))
            case CancelAsRequest(job_id=job_id, user=user):
                await scheduler.cancel(job_id, user=await self._user(user))
                report_line(f"cancelled job {job_id} of {user or 'the user of the broker'}")
                return Answer(value=None)
            case ExtendRequest(job_id=job_id, minutes=minutes):
                await scheduler.extend(job_id, minutes)
                report_line(f"extended job {job_id} by {minutes} minutes")
                return Answer(value=None)
            case _:
                return await self._answer_query(request)

    async def _answer_query(self, request: HubRequest) -> Frozen:
        """Answer a request that changes nothing."""
        scheduler = self._scheduler
        value: object
        match request:
            case QueryRequest(job_ids=job_ids):
                value = await scheduler.query(job_ids)
            case FindRequest(mark=mark, user=user):
                value = await scheduler.find(mark, user)
            case MarkedRequest(prefix=prefix):
                value = await scheduler.marked(prefix)
            case AddressRequest(node=node):
                value = await scheduler.address(node)
            case PartitionsRequest():
                value = await scheduler.partitions()
            case ChoicesRequest(user=user):
                value = await scheduler.choices(user)
            case GpuUsageRequest(user=user, since=since):
                value = await scheduler.gpu_usage(user, since)
            case ExpectedStartRequest(job=job):
                value = await scheduler.expected_start(await self._checked(job))
            case _:
                raise GipfelError("The hub's broker does not support this request.")
        return Answer(value=value)

    async def _submit(self, job: JobRequest) -> SubmittedAnswer:
        try:
            job_id = await self._scheduler.submit(job)
        except LostJobError as lost:
            return SubmittedAnswer(lost=lost.problem, advice=lost.fix)
        report_line(f"submitted job {job_id} of {job.user or 'the user of the broker'}")
        return SubmittedAnswer(job_id=job_id)

    async def _checked(self, job: JobRequest) -> JobRequest:
        """Return the job to submit: with a checked user, the site's arguments and the host's variables."""
        if job.site_arguments:
            raise GipfelError(
                "The hub's broker accepts no arguments for the command that submits.",
                "Leave req_options and req_gres empty, and start the broker with `--submit-argument`.",
            )
        others = {name: value for name, value in job.environment.items() if name not in _HOST_VARIABLES}
        return job.model_copy(
            update={
                "user": await self._user(job.user),
                "environment": others | self._host_variables,
                "site_arguments": self._arguments,
            }
        )

    async def _user(self, name: str) -> str:
        if self._schedulers is None:
            self._schedulers = await self._scheduler.daemon_users()
        return await asyncio.to_thread(self._allowed.check, name, schedulers=self._schedulers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a hub until SIGTERM or SIGINT."""
    given = _parser().parse_args(arguments)
    path: Path = given.socket.absolute()
    try:
        hub = _hub_uid(given.hub_user)
        _check_commands()
        scheduler = SlurmScheduler(
            environment=os.environ,
            exec_prefix=given.exec_prefix,
            limit=given.answer_limit,
            environment_reader=(given.python, "-I", "-m", "gipfel_cluster.scheduler.env_from_stdin"),
        )
        broker = HubBroker(
            path,
            scheduler,
            peer=hub,
            environment=os.environ,
            arguments=given.submit_argument,
            allowed=_allowed(given),
        )
        listener = _listen(path, hub)
    except GipfelError as error:
        report_line(str(error))
        return 1
    with listener:
        report_line(f"the hub's broker listens on {path} for user {hub}")
        asyncio.run(_serve(broker, listener))
    return 0


def _check_commands() -> None:
    presence = slurm_presence(os.environ)
    if not presence.configured:
        raise GipfelError(
            presence.problem, "Start the broker on a host with Slurm's commands and configuration."
        )


async def _serve(broker: HubBroker, listener: socket.socket) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await broker.serve(listener, ended)


def _listen(path: Path, hub: int) -> socket.socket:
    fix = "Stop the broker that listens there already, or choose another path."
    with ReportOSError(f"The socket {path} can't be created", fix):
        _check_folder(path.parent)
        if path.is_socket() and not _answers(path):
            path.unlink()
        return listen(path, owner=hub)


def _check_folder(folder: Path) -> None:
    """Raise for a directory in which others could create a socket and receive the tokens of all servers."""
    if stat.S_IMODE(folder.stat().st_mode) & 0o022:
        raise GipfelError(
            f"Other users can write to {folder}.", "Choose a directory that only its owner can write to."
        )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _hub_uid(name: str) -> int:
    if not name:
        return os.getuid()
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise GipfelError(
            f"There is no unix user {name!r} on this machine.", "Set --hub-user to the hub's unix user."
        ) from None


def _allowed(arguments: argparse.Namespace) -> AllowedUsers:
    try:
        return AllowedUsers(min_uid=arguments.min_uid, max_uid=arguments.max_uid)
    except ValidationError:
        raise GipfelError("--min-uid and --max-uid must be uids, 0 or higher.") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gipfel_cluster.broker.hub", description=main.__doc__)
    parser.add_argument(
        "--socket", type=Path, required=True, help="path of the socket, as in EDFSpawner.broker_socket"
    )
    parser.add_argument("--hub-user", default="", help="the hub's unix user; by default that of the broker")
    parser.add_argument(
        "--exec-prefix", default="", help="command that acts as a user, as in EDFSpawner.exec_prefix"
    )
    parser.add_argument(
        "--min-uid",
        type=int,
        default=AllowedUsers().min_uid,
        help="the lowest uid that the broker acts as (%(default)s); never root and Slurm's users",
    )
    parser.add_argument(
        "--max-uid",
        type=int,
        default=AllowedUsers().max_uid,
        help="the highest uid that the broker acts as (%(default)s); a directory service may use higher uids",
    )
    parser.add_argument(
        "--python", default=sys.executable, help="a Python with gipfel that every user can execute"
    )
    parser.add_argument(
        "--answer-limit", type=float, default=10.0, help="time limit of a Slurm command in seconds"
    )
    parser.add_argument(
        "--submit-argument",
        action="append",
        default=[],
        help="an argument of the site for sbatch, such as --submit-argument=--exclusive; may be repeated",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
