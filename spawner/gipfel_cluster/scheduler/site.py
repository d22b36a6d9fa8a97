"""What a scheduler may know beyond partitions: what a user may choose, and when a job would start."""

from typing import Protocol, runtime_checkable

from ..model import Frozen
from .protocol import JobRequest


class Association(Frozen):
    """An account that a user may charge, with what it allows; an empty partition means all of them."""

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""


class Reservation(Frozen):
    """Nodes kept for some; ``start`` and ``end`` are ISO times."""

    name: str
    partition: str = ""
    start: str = ""
    end: str = ""
    active: bool = False
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class Choices(Frozen):
    """What one user may choose; None where the scheduler keeps no such list, which leaves no choice."""

    associations: tuple[Association, ...] | None = None
    default_account: str = ""
    reservations: tuple[Reservation, ...] | None = None

    @property
    def accounts(self) -> tuple[str, ...]:
        """The names of the accounts, each once, the default one first."""
        names = sorted({each.account for each in self.associations or ()})
        return tuple(sorted(names, key=lambda name: name != self.default_account))

    def qos(self, account: str = "", partition: str = "") -> tuple[str, ...]:
        """The QoS of an account and a partition; of any where one is empty."""
        found = {
            qos
            for each in self.associations or ()
            for qos in each.qos
            if account in {"", each.account} and (not partition or each.partition in {"", partition})
        }
        return tuple(sorted(found))


@runtime_checkable
class SiteFacts(Protocol):
    """A scheduler that can say more than every scheduler can."""

    async def choices(self, user: str) -> Choices:
        """What a user may choose.

        Raises
        ------
        GipfelError
            The scheduler did not answer in time.
        """

    async def expected_start(self, request: JobRequest) -> str:
        """When a job would start if it were submitted now, as an ISO time; empty for at once.

        Raises
        ------
        GipfelError
            The scheduler would refuse the job, in its own words, or did not answer in time.
        """
