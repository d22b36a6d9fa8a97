"""GPUs that keep a group waiting: every rank has made the call, and one has not finished or begun it.

Groups with point-to-point calls are left out, since their counters count those as well.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .dump import Call, GroupId, GroupLog
from .wait_for import Job


@dataclass(frozen=True, slots=True)
class Lag:
    """A call that a rank's GPU has not finished (``is_begun``) or not begun, and `others` have."""

    call: Call
    others: int
    is_begun: bool


def device_culprits(job: Job, left_out: Collection[GroupId]) -> tuple[dict[int, Lag], dict[int, Lag]]:
    """Return the ranks whose GPU is behind in most of their groups, and those behind in any group."""
    behind: dict[int, list[Lag]] = {}
    groups: Counter[int] = Counter()
    for group, logs in job.logs.items():
        if group in left_out or any(each.has_p2p for each in logs.values()) or len(logs) < 2:
            continue
        groups.update(rank for rank, log in logs.items() if log.enqueued)
        for rank, lag in _lags(job, group, logs).items():
            behind.setdefault(rank, []).append(lag)
    most = {rank: lags[0] for rank, lags in behind.items() if 2 * len(lags) > groups[rank]}
    return most, {rank: lags[0] for rank, lags in behind.items()}


def _lags(job: Job, group: GroupId, logs: Mapping[int, GroupLog]) -> dict[int, Lag]:
    """Return the ranks of one group that are behind; none if they are more than half of it."""
    if any(rank in job.dumps and rank not in logs for rank in job.members[group]):
        return {}
    called = min(each.enqueued for each in logs.values())
    finished = max(each.completed for each in logs.values())
    found: dict[int, Lag] = {}
    for rank, log in logs.items():
        late = next((each for each in log.unfinished if each.sequence <= min(called, finished)), None)
        if late is not None:
            others = sum(1 for each in logs.values() if each.completed >= late.sequence)
            found[rank] = Lag(late, others, is_begun=True)
    if not found:
        found = _not_begun(job, logs, called)
    return found if 2 * len(found) <= len(logs) else {}


def _not_begun(job: Job, logs: Mapping[int, GroupLog], called: int) -> dict[int, Lag]:
    """Return the ranks whose GPU has not begun the oldest open call, while others have.

    torch knows beginnings only with TORCH_NCCL_ENABLE_TIMING=1; else nobody has begun.
    """
    number = min((call.sequence for log in logs.values() for call in log.unfinished), default=called + 1)
    calls = {rank: log.calls[number] for rank, log in logs.items() if number in log.calls}
    begun = sum(1 for each in calls.values() if each.started)
    if number > called or not begun:
        return {}
    return {
        rank: Lag(call, begun, is_begun=False)
        for rank, call in calls.items()
        # An earlier open call of the same rank may be what its GPU waits for.
        if not call.started and not call.finished and call.order == _first_open(job, rank)
    }


def _first_open(job: Job, rank: int) -> int:
    logs = job.dumps[rank].logs.values()
    return min(call.order for log in logs for call in (*log.calls.values(), *log.p2p) if not call.finished)
