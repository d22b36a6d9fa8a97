"""The scheduler of this process's job, asked through the job's broker: no Slurm is needed here."""

from collections.abc import Sequence
from pathlib import Path

from ..broker.client import Answer, ask
from ..broker.messages import (
    AddressAnswer,
    AddressRequest,
    CancelRequest,
    Done,
    PartitionsAnswer,
    PartitionsRequest,
    QueryAnswer,
    QueryRequest,
    Request,
    SubmitAnswer,
    SubmitRequest,
)
from ..model import GipfelError
from .protocol import JobRequest, JobStatus, Partition

_MOST_AT_ONCE = 1000


class BrokerScheduler:
    """A scheduler behind the broker's socket; it acts as its own user only."""

    name = "broker"

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def submit(self, request: JobRequest) -> str:
        """Submit through the broker, which checks the request again."""
        return (await self._ask(SubmitRequest(job=request), SubmitAnswer)).job_id

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Ask the broker once for a thousand jobs."""
        asked, found = list(dict.fromkeys(job_ids)), dict[str, JobStatus]()
        for start in range(0, len(asked), _MOST_AT_ONCE):
            some = tuple(asked[start : start + _MOST_AT_ONCE])
            try:
                found |= (await self._ask(QueryRequest(job_ids=some), QueryAnswer)).jobs
            except (GipfelError, ValueError) as error:
                why = error.problem if isinstance(error, GipfelError) else "A job's number can't be one."
                found |= dict.fromkeys(some, JobStatus(answer="unknown", reason=why))
        return {each: found.get(each, JobStatus(answer="unknown")) for each in asked}

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """Cancel through the broker, as its user."""
        await self._ask(CancelRequest(job_id=job_id), Done)

    async def address(self, node: str) -> str:
        """Where the job's node reaches another one."""
        return (await self._ask(AddressRequest(node=node), AddressAnswer)).address

    async def partitions(self) -> tuple[Partition, ...]:
        """Every partition."""
        return (await self._ask(PartitionsRequest(), PartitionsAnswer)).partitions

    async def _ask(self, request: Request, answer: type[Answer]) -> Answer:
        return await ask(self._socket, request, answer)
