"""Stand-ins for a webhook and a mail server on free loopback ports, with fixtures, for tests of messages."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from gipfel_cluster.notify import NotifySettings


class Webhook(ThreadingHTTPServer):
    """A web server that keeps what it is sent, and responds with a chosen status, slowly if asked to."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _WebhookHandler)
        self.received: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        self.next_status = 0
        self.location = ""
        self.drip_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _WebhookHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = cast("Webhook", self.server)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        server.received.append((self.path, dict(self.headers.items()), json.loads(content)))
        self.send_response(server.status)
        server.status = server.next_status or server.status
        if server.location:
            self.send_header("Location", server.location)
        self.end_headers()
        deadline = time.monotonic() + server.drip_s
        try:
            while time.monotonic() < deadline:
                self.wfile.write(b".")
                time.sleep(0.05)
        except OSError:
            return

    def do_GET(self) -> None:
        """Keep a request that followed a redirect, too."""
        cast("Webhook", self.server).received.append((self.path, dict(self.headers.items()), None))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class MailServer(socketserver.ThreadingTCPServer):
    """A mail server without encryption that keeps the messages."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _MailHandler)
        self.recipients: list[str] = []
        self.mails: list[bytes] = []
        self.refuse = False
        #: Replies to the next mails, and the recipient that is refused.
        self.refusals: list[bytes] = []
        self.unknown = b""
        #: Reply to QUIT; empty for a closed connection, None for silence.
        self.farewell: bytes | None = b"221 bye"

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _MailHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"220 stand-in\r\n")
        for line in self.rfile:
            reply = self._reply(line, line[:4].upper())
            if reply is None:
                time.sleep(20)
            elif reply:
                self.wfile.write(reply + b"\r\n")
            if line[:4].upper() == b"QUIT":
                return

    def _reply(self, line: bytes, word: bytes) -> bytes | None:
        server = cast("MailServer", self.server)
        if word == b"QUIT":
            return server.farewell
        if word == b"MAIL" and server.refusals:
            return server.refusals.pop(0)
        if word == b"RCPT":
            server.recipients.append(line.decode().strip())
            if server.unknown and server.unknown in line:
                return b"550 unknown"
        if word == b"DATA":
            self.wfile.write(b"354 go on\r\n")
            server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))
        return b"550 no" if server.refuse and word == b"MAIL" else b"250 ok"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    server = Webhook()
    with running(server):
        yield server


@pytest.fixture
def mail() -> Iterator[MailServer]:
    server = MailServer()
    with running(server):
        yield server


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def slack_settings(url: str) -> NotifySettings:
    """Return settings with a webhook alone."""
    return NotifySettings.model_validate({"slack": {"url": url}})


def write_settings(home: Path, text: str, mode: int = 0o600) -> Path:
    """Write a user's file, and return its path."""
    path = home / ".gipfel" / "notify.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path
