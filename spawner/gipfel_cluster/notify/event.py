"""What happened to a job or workload, and the message about it; the only place where messages are written."""

import re
import time
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import AfterValidator, Field

from ..model import Frozen, OneLine, one_line

#: Kinds of events that a user may choose from.
JobKind = Literal["started", "ended", "failed", "idle", "checkpoint", "time", "hang"]
Kind = JobKind | Literal["test"]
#: When an event of each kind happens.
KINDS: dict[JobKind, str] = {
    "started": "a job has started after waiting in the queue for a minute or longer",
    "ended": "a job or launch has completed, or was stopped",
    "failed": "a job or launch has failed or reached its time limit",
    "idle": "all GPUs of a node have been idle for 20 minutes",
    "checkpoint": "the next checkpoint won't fit on its file system",
    "time": "a job's time limit ends soon",
    "hang": "the ranks of a launch make no progress",
}
_PHRASES: dict[Kind, str] = {
    "started": "{title} has started",
    "ended": "{title} has ended",
    "failed": "{title} failed",
    "idle": "GPUs are idle: {title}",
    "checkpoint": "The next checkpoint won't fit: {title}",
    "time": "The time limit ends soon: {title}",
    "hang": "No progress: {title}",
    "test": "{title}",
}
_MAX_TITLE, _MAX_REASON, _MAX_NAME = 120, 600, 300
# The C1 controls, which some terminals execute, and marks that change the direction of the text after them.
_INVISIBLE = re.compile("[\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def _check_plain(value: str) -> str:
    if _INVISIBLE.search(value):
        raise ValueError("must not contain a control character")
    return value


#: One line that a terminal, a mail and a page show as it is.
PlainText = Annotated[OneLine, AfterValidator(_check_plain)]


class Event(Frozen):
    """Something that happened to a job or workload.

    ``title`` names it for people, ``reason`` is one sentence, ``run`` the name of its run folder,
    ``workload`` its ID as ``KIND:ID``, ``time_ns`` UTC. ``occurrence`` distinguishes events that may happen
    again within an hour, such as the ends of a restarted job. Create it with `Event.of`, which makes texts
    from notebooks, file names and error messages fit.
    """

    kind: Kind
    title: PlainText = Field(max_length=_MAX_TITLE)
    reason: PlainText = Field("", max_length=_MAX_REASON)
    run: PlainText = Field("", max_length=_MAX_NAME)
    workload: PlainText = Field("", max_length=_MAX_NAME)
    occurrence: PlainText = Field("", max_length=_MAX_NAME)
    time_ns: int = Field(ge=0)

    @classmethod
    def of(
        cls,
        kind: Kind,
        title: str,
        reason: str = "",
        *,
        run: str = "",
        workload: str = "",
        occurrence: str = "",
        time_ns: int = 0,
    ) -> "Event":
        """Return an event with texts of any content and length; it happens now unless `time_ns` is given."""
        return cls(
            kind=kind,
            title=plain_text(title, _MAX_TITLE) or "A job",
            reason=plain_text(reason, _MAX_REASON),
            run=plain_text(run, _MAX_NAME),
            workload=plain_text(workload, _MAX_NAME),
            occurrence=plain_text(occurrence, _MAX_NAME),
            time_ns=time_ns or time.time_ns(),
        )

    @property
    def key(self) -> str:
        """Return the same text for events that say the same: a job ends once, whether it fails or not."""
        what = "end" if self.kind in {"ended", "failed"} else self.kind
        return f"{what}:{self.run or self.title}:{self.workload}:{self.occurrence}"


class Message(Frozen):
    """A message for people: a title, a body of a few lines, and a link (empty without a known hub)."""

    title: OneLine
    body: str
    link: OneLine = ""
    urgent: bool = False


def message_of(event: Event, hub: str = "", held_back: int = 0) -> Message:
    """Return the message about an event.

    Parameters
    ----------
    hub
        URL of the user's hub, to which links lead.
    held_back
        Number of messages that the rate limit held back since the last one.
    """
    lines = [event.reason] if event.reason else []
    link = report_link(hub, event.run)
    if event.workload:
        lines.append(f"Its output: gipfel logs {event.workload.partition(':')[2]}")
    if event.run and not link:
        lines.append(f"Its report: gipfel report {event.run}")
    if held_back:
        lines.append(f"The rate limit held back {held_back} earlier messages. See gipfel notify status.")
    title = _PHRASES[event.kind].format(title=event.title)
    return Message(title=title, body="\n".join(lines), link=link, urgent=event.kind != "ended")


def report_link(hub: str, run: str) -> str:
    """Return the link to a run's report on the server of the user who opens it; empty without hub or run.

    The hub starts the server if it does not run. The link has no token.
    """
    if not hub or not run:
        return ""
    return f"{hub.rstrip('/')}/hub/user-redirect/gipfel/runs/{quote(run, safe='')}/report"


def plain_text(text: str, longest: int) -> str:
    """Return a text of any content as `PlainText` of at most `longest` characters."""
    line = one_line(_INVISIBLE.sub(" ", text[: 8 * longest].encode(errors="replace").decode()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
