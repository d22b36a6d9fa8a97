"""What a running server says of itself every half minute, and what the hub answers."""

import time
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, StrictBool, StrictInt, field_validator

from gipfel_cluster.model import Frozen, Line

#: Seconds after which a report says nothing any more: a silent server is not an idle one.
FRESH_S = 300.0

_Seconds = Annotated[StrictInt, Field(ge=0, le=10**9)]


class ActivityReport(Frozen):
    """What a server knows of its own use.

    ``idle_s`` is for how long nothing was used, 0 while something is; ``busy_with`` says what; ``warned_s``
    is for how long its user has been told that it will be stopped, None where nobody was; ``ends`` is when
    the job's time was to end as its node learned it, in seconds since 1970.
    """

    idle_s: _Seconds
    busy_with: Annotated[tuple[Annotated[Line, Field(max_length=60)], ...], Field(max_length=6)] = ()
    warned_s: _Seconds | None = None
    ends: Annotated[StrictInt, Field(ge=0, le=10**11)] | None = None


class HubWord(Frozen):
    """What the hub tells a server about its end; times are seconds since 1970, 0 means not at all."""

    ends: int | None = None
    extend_s: int = 0
    idle_limit_s: int = 0
    idle_warning_s: int = 0


class ExtendRequest(Frozen):
    """Nothing but the wish: how much is the site's to say."""

    extend: StrictBool

    @field_validator("extend")
    @classmethod
    def _is_wished(cls, value: bool) -> bool:  # noqa: FBT001
        if not value:
            raise ValueError("true is the only wish")
        return value


@dataclass
class ServerActivity:
    """The last report of one server, and what came of it."""

    report: ActivityReport | None = None
    received: float = field(default=0.0)

    def take(self, report: ActivityReport) -> None:
        """Keep a report."""
        self.report, self.received = report, time.monotonic()

    @property
    def fresh(self) -> ActivityReport | None:
        """The last report, None where it is too old to say anything."""
        return self.report if time.monotonic() - self.received < FRESH_S else None

    def cull_due(self, idle_limit_s: int, idle_warning_s: int) -> bool:
        """Whether the server has been idle, and its user warned, for as long as the site wants."""
        report = self.fresh
        if report is None or idle_limit_s <= 0 or report.warned_s is None:
            return False
        return report.idle_s >= idle_limit_s and report.warned_s >= idle_warning_s
