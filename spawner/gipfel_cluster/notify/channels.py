"""Send one message to one service: an incoming webhook of Slack, a topic of ntfy, or a mail server.

Each function blocks for a few seconds at most and raises `ChannelError`, whose text has no secret. Text from
notebooks and error messages is escaped for the service: it can't mention a channel, make a link or a header.
"""

import http
import http.client
import json
import smtplib
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any
from urllib.parse import urlsplit

from .event import Message
from .settings import EmailSettings, NotifySettings, NtfySettings, SlackSettings, is_loopback

#: Seconds for one network operation, and for a whole response.
OPERATION_S, RESPONSE_S = 4.0, 6.0
_QUIT_S = 1.0
_MAX_RESPONSE_BYTES = 4096
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
#: Without a word boundary after it, an "@" mentions nobody, also in services that imitate Slack.
_NO_MENTION = "@\u200b"
_TRY_LATER = frozenset((http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE))


class ChannelError(Exception):
    """A message was not accepted; the text is one line without secrets.

    ``temporary`` is True if the service certainly has not got the message and may accept it later: after a
    time-out it may have got it, and would show it twice.
    """

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        self.temporary = temporary
        super().__init__(text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send a secret to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that the redirect is an error."""


def send_message(channel: str, settings: NotifySettings, message: Message) -> None:
    """Send a message to a service by its name.

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
        # The server has the message now: what it says to the rest is of no interest.
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
