"""Send messages to the services that a user set up: a webhook of Slack, a topic of ntfy, a mail server.

Each function blocks for a few seconds at most and raises `ChannelError`, whose text has no secret. Text
from notebooks and error messages is escaped for the service: it can't mention a channel, make a link or a
header.

`deliver` sends one event to all services, if the user's settings and the rate limit allow it, and records the
outcomes. A supervisor starts ``python -I -m gipfel_cluster.notify``, which calls it, as a separate process,
so that it does not depend on services.
"""

import http
import http.client
import json
import smtplib
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any
from urllib.parse import urlsplit

from ..model import GipfelError
from . import (
    EmailSettings,
    Event,
    Message,
    NotifySettings,
    NtfySettings,
    SlackSettings,
    is_loopback,
    message_of,
    plain_text,
    read_settings,
)
from .journal import Outcome, admit, locked_state

#: Seconds for one network operation, and for a whole response.
OPERATION_S, RESPONSE_S = 4.0, 6.0
_QUIT_S = 1.0
_MAX_RESPONSE_BYTES = 4096
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
#: Without a word boundary after it, an "@" mentions no user, also in services that imitate Slack.
_NO_MENTION = "@\u200b"
_TRY_LATER = frozenset((http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE))


class ChannelError(Exception):
    """A message was not accepted; the text is one line without secrets.

    ``temporary`` is True if the service certainly did not receive the message and may accept it later. It is
    False after a time-out, when the service may have received it, and would show it twice after a retry.
    """

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        self.temporary = temporary
        super().__init__(text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send a secret to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that the redirect is an error."""


def send_message(channel: str, settings: NotifySettings, message: Message) -> None:
    """Send a message to the service ``slack``, ``ntfy`` or ``email``; do nothing if it is not set up.

    Raises
    ------
    ChannelError
        The service did not accept it.
    """
    if channel == "slack" and settings.slack:
        send_slack(settings.slack, message)
    elif channel == "ntfy" and settings.ntfy:
        send_ntfy(settings.ntfy, message)
    elif channel == "email" and settings.email:
        send_email(settings.email, message)


def slack_text(text: str) -> str:
    """Return text that Slack shows as it is: no mention, no link, no markup.

    Source: https://docs.slack.dev/messaging/formatting-message-text (escape ``&``, ``<`` and ``>``).
    """
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", _NO_MENTION)


def send_slack(settings: SlackSettings, message: Message) -> None:
    """Post a message to an incoming webhook. Raises `ChannelError`."""
    lines = [slack_text(message.title), slack_text(message.body), message.link]
    document = {
        "text": "\n".join(line for line in lines if line),
        "mrkdwn": False,
        "link_names": False,
        "unfurl_links": False,
    }
    _post(settings.url.get_secret_value(), document, {})


def send_ntfy(settings: NtfySettings, message: Message) -> None:
    """Publish a message as JSON, in which no text becomes a header. Raises `ChannelError`.

    Source: https://docs.ntfy.sh/publish/#publish-as-json
    """
    server, _, topic = settings.url.get_secret_value().rpartition("/")
    document: dict[str, Any] = {"topic": topic, "title": message.title, "message": message.body or "–"}  # noqa: RUF001
    document["priority"] = 4 if message.urgent else 3
    if message.link:
        document["click"] = message.link
    token = settings.token.get_secret_value()
    _post(f"{server}/", document, {"Authorization": f"Bearer {token}"} if token else {})


def _post(url: str, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    host = urlsplit(url).hostname or ""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if is_loopback(host):
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(  # noqa: S310 - the settings accept https, and http on loopback
        url,
        data=json.dumps(document).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "gipfel", **headers},
        method="POST",
    )
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=OPERATION_S) as response:
            _discard(response)
    except urllib.error.HTTPError as error:
        with error:
            temporary = error.code in _TRY_LATER
            raise ChannelError(_status_problem(host, error.code), temporary=temporary) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _network_error(host, error) from None


def _discard(response: Any) -> None:
    """Read the beginning of a response for a few seconds; it is not needed, and may be of any length."""
    deadline, left = time.monotonic() + RESPONSE_S, _MAX_RESPONSE_BYTES
    while left > 0 and time.monotonic() < deadline:
        piece = response.read1(left)
        if not piece:
            return
        left -= len(piece)


def send_email(settings: EmailSettings, message: Message) -> None:
    """Send a message as plain text. Raises `ChannelError`."""
    host = settings.host
    try:
        refused = _send_mail(settings, _mail(settings, message))
    except smtplib.SMTPAuthenticationError:
        raise ChannelError(f"{host} refused the user name or password.") from None
    except smtplib.SMTPNotSupportedError:
        raise ChannelError(f"{host} does not support what is set in security or user.") from None
    except smtplib.SMTPResponseException as error:
        text = f"{host} refused the message (SMTP status {error.smtp_code})."
        # A reply 4yz is a transient refusal (RFC 5321, 4.2.1).
        raise ChannelError(text, temporary=400 <= error.smtp_code < 500) from None
    except smtplib.SMTPRecipientsRefused:
        raise ChannelError(f"{host} refused every recipient.") from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise _network_error(host, error) from None
    if refused:
        raise ChannelError(f"{host} refused {refused} of {len(settings.to)} recipients.")


def _mail(settings: EmailSettings, message: Message) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = f"[gipfel] {message.title}"
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    mail["Date"] = formatdate(localtime=True)
    mail["Message-ID"] = make_msgid(domain=settings.sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join(line for line in (message.title, message.body, message.link) if line) + "\n")
    return mail


def _send_mail(settings: EmailSettings, mail: EmailMessage) -> int:
    """Send a mail; return the number of refused recipients, fewer than all."""
    port = settings.port or _PORTS[settings.security]
    context = ssl.create_default_context()
    # Without a name, smtplib looks this machine up in the DNS, which may take minutes.
    options: dict[str, Any] = {"timeout": OPERATION_S, "local_hostname": "localhost"}
    if settings.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(settings.host, port, context=context, **options)
    else:
        server = smtplib.SMTP(settings.host, port, **options)
    try:
        if settings.security == "starttls":
            server.starttls(context=context)
        if settings.user:
            server.login(settings.user, settings.password.get_secret_value())
        refused = len(server.send_message(mail))
        # The server has accepted the message: an error while the connection is closed does not matter.
        with suppress(OSError, smtplib.SMTPException):
            if server.sock is not None:
                server.sock.settimeout(_QUIT_S)
            server.quit()
        return refused
    finally:
        server.close()


def _status_problem(host: str, status: int) -> str:
    if status in {301, 302, 303, 307, 308}:
        return f"{host} redirects (HTTP status {status}), which is not followed. Correct the URL."
    if status == http.HTTPStatus.TOO_MANY_REQUESTS:
        return f"{host} accepts no more messages for now (HTTP status 429)."
    return f"{host} did not accept the message (HTTP status {status})."


def _network_error(host: str, error: Exception) -> ChannelError:
    # The reason of an error of TLS is a text.
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ChannelError(f"The certificate of {host} is not valid: {cause.verify_message}.")
    if isinstance(cause, TimeoutError):
        return ChannelError(f"{host} did not respond in {OPERATION_S:g} s.")
    if isinstance(cause, socket.gaierror):
        temporary = cause.errno == socket.EAI_AGAIN
        return ChannelError(f"The name {host} is unknown on this machine.", temporary=temporary)
    detail = getattr(cause, "strerror", None) or type(cause).__name__
    temporary = isinstance(cause, ConnectionRefusedError)
    return ChannelError(f"{host} can't be reached: {detail}.", temporary=temporary)


#: Seconds after which a service that has not responded counts as failed; all services are called in parallel.
SEND_S = 9.0
#: Pause in seconds before the only retry, after an error that is temporary.
RETRY_S = 2.0


def deliver(event: Event, environment: Mapping[str, str]) -> dict[str, Outcome]:
    """Send an event to each service, unless the settings or the limits exclude it; return the outcomes.

    Raises
    ------
    OSError
        The state can't be written, so that nothing is sent: without it there is no rate limit.
    """
    try:
        settings = read_settings(environment)
    except GipfelError as error:
        with locked_state(environment) as (state, write):
            write(state.model_copy(update={"problem": plain_text(str(error), 600)}))
        return {}
    if settings is None or not settings.channels or event.kind not in settings.events:
        return {}
    with locked_state(environment) as (state, write):
        new, admitted = admit(state, event.key, now_ns=time.time_ns(), per_hour=settings.per_hour)
        # Before it is sent: a crash must not send it again and again.
        write(new.model_copy(update={"problem": ""}))
    if not admitted:
        return {}
    return send_to_all(settings, message_of(event, settings.hub, state.held_back), environment)


def send_to_all(
    settings: NotifySettings, message: Message, environment: Mapping[str, str], *, limit_s: float = SEND_S
) -> dict[str, Outcome]:
    """Send a message to all services in parallel; record the outcomes, and return them by service name.

    A service that does not respond within `limit_s` seconds has failed.
    """
    outcomes = _send(settings, message, settings.channels, limit_s)
    with suppress(OSError), locked_state(environment) as (state, write):
        write(state.model_copy(update={"outcomes": {**state.outcomes, **outcomes}}))
    return outcomes


def _send(
    settings: NotifySettings, message: Message, channels: Sequence[str], limit_s: float
) -> dict[str, Outcome]:
    problems: dict[str, str] = {}
    deadline = time.monotonic() + limit_s

    def send(channel: str) -> None:
        problem, temporary = _try(channel, settings, message)
        if temporary and time.monotonic() + RETRY_S < deadline:
            time.sleep(RETRY_S)
            problem, _ = _try(channel, settings, message)
        problems[channel] = problem

    # Daemons: a server that sends a byte from time to time would otherwise keep this process alive.
    threads = [threading.Thread(target=send, args=(each,), daemon=True) for each in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"It did not respond in {limit_s:g} s."
    found = dict(problems)
    return {each: Outcome(time_ns=time.time_ns(), problem=found.get(each, late)) for each in channels}


def _try(channel: str, settings: NotifySettings, message: Message) -> tuple[str, bool]:
    """Send to one service; return the problem, empty if it accepted the message, and whether to retry."""
    try:
        send_message(channel, settings, message)
    except ChannelError as error:
        return plain_text(str(error), 600), error.temporary
    except Exception as error:  # noqa: BLE001 - one service must not keep the others from their message
        # The error's text is left out, since it may contain a secret.
        return f"The message could not be sent ({type(error).__name__}).", False
    return "", False
