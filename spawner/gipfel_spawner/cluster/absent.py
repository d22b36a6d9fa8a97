"""A cluster that the hub's configuration no longer has, while servers of it still run."""

from collections.abc import Sequence

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobRequest, JobStatus, Partition


class AbsentScheduler:
    """Knows nothing, and so ends nothing: its servers are kept until the cluster is configured again."""

    name = "absent"

    def __init__(self, cluster: str) -> None:
        self._error = GipfelError(
            f"This hub has no cluster {cluster} any more.", "Tell the hub's administrators."
        )

    async def submit(self, request: JobRequest) -> str:  # noqa: ARG002 - the Protocol's
        """Refuse."""
        raise self._error

    async def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Every job is unknown."""
        return dict.fromkeys(job_ids, JobStatus(answer="unknown", reason=self._error.problem))

    async def cancel(self, job_id: str, *, user: str = "") -> None:  # noqa: ARG002 - the Protocol's
        """Refuse."""
        raise self._error

    async def address(self, node: str) -> str:  # noqa: ARG002 - the Protocol's
        """Refuse."""
        raise self._error

    async def partitions(self) -> tuple[Partition, ...]:
        """Refuse."""
        raise self._error
