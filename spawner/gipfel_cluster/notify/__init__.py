"""Notify a user of what happened to a job: in JupyterLab, and by e-mail, Slack or ntfy if that is set up."""

import ipaddress
import os
import re
import time
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator

from ..model import Frozen, GipfelError, OneLine, one_line
from ..regular_files import read_secret

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
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,255}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,500}")
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _check_plain(value: str) -> str:
    if _INVISIBLE.search(value):
        raise ValueError("must not contain a control character")
    return value


#: One line that a terminal, a mail and a page show as it is.
PlainText = Annotated[OneLine, AfterValidator(_check_plain)]


class Event(Frozen):
    """Something that happened to a job or workload.

    ``title`` is the name of the job or workload for people, ``reason`` explains the event in one sentence,
    ``run`` is the name of the run folder, ``workload`` the workload's ID as ``KIND:ID``, ``time_ns`` the time
    in UTC. ``occurrence`` distinguishes events that may happen again within an hour, such as the ends of a
    restarted job. Create events with `Event.of`, which shortens and cleans texts from notebooks, file names
    and errors.
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
        """Return the key by which repeated events are recognized; "ended" and "failed" share one."""
        what = "end" if self.kind in {"ended", "failed"} else self.kind
        return f"{what}:{self.run or self.title}:{self.workload}:{self.occurrence}"


class Message(Frozen):
    """A message for people: a title, a body of a few lines, and a link (empty without a known hub).

    ``urgent`` raises the priority where a service has priorities.
    """

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


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_url(url: str, *, is_secret: bool = True) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("must be a URL such as https://host/path") from None
    if not re.fullmatch(r"[\x21-\x7e]{1,2000}", url) or not _HOST.fullmatch(host):
        raise ValueError("must be a URL such as https://host/path")
    allows_http = not is_secret or is_loopback(host)
    if parts.scheme != "https" and not (parts.scheme == "http" and allows_http):
        raise ValueError("must begin with https://, except for this machine's loopback addresses")
    if parts.username is not None or parts.fragment:
        raise ValueError("must have no user name and no fragment")
    return url


def _secret(check: Callable[[str], object]) -> AfterValidator:
    """Return the validator of a secret whose text `check` validates."""

    def validate(secret: SecretStr) -> SecretStr:
        check(secret.get_secret_value())
        return secret

    return AfterValidator(validate)


def _matches(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"must be {what}")
        return value

    return AfterValidator(check)


def _check_token(value: str) -> None:
    if value and not _TOKEN.fullmatch(value):
        raise ValueError("must have no blanks and only ASCII characters")


def _check_ascii(value: str) -> str:
    if not re.fullmatch(r"[\x20-\x7e]{0,500}", value):
        raise ValueError("must have only ASCII characters, at most 500")
    return value


# Nothing is sent there: messages link to it.
HubUrl = Annotated[str, AfterValidator(partial(_check_url, is_secret=False))]
SecretUrl = Annotated[SecretStr, _secret(_check_url)]
Address = Annotated[str, _matches(_ADDRESS, "an address such as me@example.org")]


class SlackSettings(Frozen):
    """An incoming webhook of Slack, or of a service that accepts the same, such as Mattermost."""

    url: SecretUrl


class NtfySettings(Frozen):
    """A topic of an ntfy server: ``url`` is ``https://SERVER/TOPIC``."""

    url: SecretUrl
    token: Annotated[SecretStr, _secret(_check_token)] = SecretStr("")

    @model_validator(mode="after")
    def _has_topic(self) -> "NtfySettings":
        parts = urlsplit(self.url.get_secret_value())
        if parts.query or not _TOPIC.fullmatch(parts.path.rpartition("/")[2]):
            raise ValueError("url must end with a topic of letters, digits, _ and -")
        return self


class EmailSettings(Frozen):
    """A mail server.

    ``port`` 0 is the usual port of ``security``, which may be ``none`` only for a server on the loopback
    interface.
    """

    host: Annotated[str, _matches(_HOST, "the name or address of a mail server")]
    port: int = Field(0, ge=0, le=65535)
    sender: Address = Field(alias="from")
    to: tuple[Address, ...] = Field(min_length=1, max_length=5)
    user: Annotated[str, AfterValidator(_check_ascii)] = ""
    password: Annotated[SecretStr, _secret(_check_ascii)] = SecretStr("")
    security: Literal["starttls", "tls", "none"] = "starttls"

    @model_validator(mode="after")
    def _is_encrypted(self) -> "EmailSettings":
        if self.security == "none" and not is_loopback(self.host):
            raise ValueError('security "none" is accepted only for a server on this machine')
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("user and password must be given together")
        return self


class NotifySettings(Frozen):
    """The content of ``notify.toml``.

    ``hub`` is the URL of the user's hub for links, ``events`` the kinds of `KINDS` to send, ``per_hour`` the
    highest number of messages in an hour.
    """

    hub: HubUrl = ""
    events: tuple[JobKind, ...] = tuple(KINDS)
    per_hour: int = Field(20, ge=1, le=500)
    slack: SlackSettings | None = None
    ntfy: NtfySettings | None = None
    email: EmailSettings | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the names of the services that are set up."""
        return tuple(name for name in ("email", "slack", "ntfy") if getattr(self, name) is not None)


def settings_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's ``notify.toml``, which need not exist."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "notify.toml"


def read_settings(environment: Mapping[str, str]) -> NotifySettings | None:
    """Return the user's settings; None without a file.

    Raises
    ------
    GipfelError
        The file is not the user's alone or not TOML, or a key or value is not valid.
    """
    path = settings_file(environment)
    if not os.path.lexists(path):
        return None
    try:
        text = read_secret(path).decode()
    except UnicodeDecodeError:
        raise GipfelError(f"{path} is not UTF-8.", "See `gipfel notify --help`.") from None
    try:
        return NotifySettings.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise GipfelError(f"{path} is not valid TOML: {error}.", "See `gipfel notify --help`.") from None
    except ValidationError as error:
        raise _refusal(path, text, error.errors(include_url=False, include_input=False)[0]) from None
    except RecursionError:
        raise GipfelError(f"{path} is nested too deeply.", "See `gipfel notify --help`.") from None


def _refusal(path: Path, text: str, error: Any) -> GipfelError:
    """Return the error about one key, with its line and the keys that are accepted there."""
    from ..edf.document import LineIndex  # noqa: PLC0415 - slow to import, and needed for errors alone

    place = tuple(error["loc"])
    line = LineIndex(text).line(*place)
    where = f"{path}, line {line}" if line else str(path)
    key = one_line(".".join(str(part) for part in place))[:80]
    if error["type"] == "extra_forbidden":
        model = _MODELS.get(str(place[0])) if len(place) > 1 else NotifySettings
        names = [field.alias or name for name, field in (model or NotifySettings).model_fields.items()]
        return GipfelError(f"{where}: there is no key {key}.", f"Use {', '.join(names)}.")
    if error["type"] == "missing":
        return GipfelError(f"{where}: the key {key} is missing.", "See `gipfel notify --help`.")
    problem = one_line(str(error["msg"]).removeprefix("Value error, "))[:200]
    return GipfelError(f"{where}: {key}: {problem}.", "See `gipfel notify --help`.")


_MODELS: dict[str, type[Frozen]] = {"slack": SlackSettings, "ntfy": NtfySettings, "email": EmailSettings}
