"""A small S3 service on loopback for tests: it verifies signatures (version 4), and misbehaves on request."""

import contextlib
import hashlib
import hmac
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG"


class S3StandIn:
    """The service: objects of the one bucket ``sets``, and what it does wrong.

    ``is_open`` lets requests without a signature in; ``cut`` sends half of each body; after ``change_after``
    requests for bodies, objects have another ETag.
    """

    def __init__(self, host: str, port: int) -> None:
        self.objects: dict[str, bytes] = {}
        self.cut = False
        self.is_open = False
        self.change_after: int | None = None
        self.bodies = self.refused = 0
        self.sent = 0
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def etag(self, key: str) -> str:
        """Return an object's ETag."""
        changed = self.change_after is not None and self.bodies >= self.change_after
        return f'"{hashlib.md5(self.objects[key] + b"2" * changed, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    service: S3StandIn
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        if problem := self._problem():
            self.service.refused += 1
            self._send(403, f"<Error><Code>{problem}</Code></Error>".encode(), body=body)
            return
        bucket, _, key = unquote(urlsplit(self.path).path)[1:].partition("/")
        if bucket != "sets":
            self._send(404, b"<Error><Code>NoSuchBucket</Code></Error>", body=body)
        elif not key:
            self._send(200, self._listing().encode(), body=body)
        elif key not in self.service.objects:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", body=body)
        else:
            self._object(key, body=body)

    def _object(self, key: str, *, body: bool) -> None:
        content, status, headers = self.service.objects[key], 200, {"ETag": self.service.etag(key)}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[int(first) : int(last) + 1], 206
        self.service.bodies += body
        self.service.sent += body * len(content)
        self._send(status, content, body=body, headers=headers)

    def _send(
        self, status: int, content: bytes, *, body: bool, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Tue, 01 Jan 2030 00:00:00 GMT")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.service.cut and status in {200, 206}:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif body:
            self.wfile.write(content)

    def _listing(self) -> str:
        prefix = dict(parse_qsl(urlsplit(self.path).query)).get("prefix", "")
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
            "<LastModified>2030-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, content in sorted(self.service.objects.items())
            if key.startswith(prefix)
        )
        return (
            f"<ListBucketResult><Name>sets</Name><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        )

    def _problem(self) -> str:
        """Return why the request's signature is refused; empty if it is that of the key."""
        given = self.headers.get("Authorization", "")
        if not given and self.service.is_open:
            return ""
        if not given.startswith("AWS4-HMAC-SHA256 "):
            return "AccessDenied"
        parts = dict(each.strip().split("=", 1) for each in given.split(" ", 1)[1].split(","))
        who, *scope = parts["Credential"].split("/")
        if who != KEY:
            return "InvalidAccessKeyId"
        address = urlsplit(self.path)
        query = "&".join(
            f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
            for name, value in sorted(parse_qsl(address.query, keep_blank_values=True))
        )
        names = parts["SignedHeaders"].split(";")
        headers = "".join(f"{name}:{' '.join(self.headers[name].split())}\n" for name in names)
        payload = self.headers["x-amz-content-sha256"]
        request = "\n".join((self.command, address.path, query, headers, ";".join(names), payload))
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(("AWS4-HMAC-SHA256", self.headers["x-amz-date"], "/".join(scope), digest))
        key = f"AWS4{SECRET}".encode()
        for each in scope:
            key = hmac.digest(key, each.encode(), "sha256")
        valid = hmac.digest(key, text.encode(), "sha256").hex() == parts["Signature"]
        return "" if valid else "SignatureDoesNotMatch"


@contextlib.contextmanager
def s3_stand_in(host: str = "127.0.0.1") -> Iterator[S3StandIn]:
    """Serve until the end of the block."""

    class Bound(_Handler):
        pass

    server = ThreadingHTTPServer((host, 0), Bound)
    service = Bound.service = S3StandIn(host, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
