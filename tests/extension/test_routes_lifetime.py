"""What a real server answers about its end, with a hub that stands beside it."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gipfel_cluster.runs import RunFolder


class Hub(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.word: dict[str, Any] = {"ends": None, "extend_s": 0, "idle_limit_s": 0, "idle_warning_s": 0}
        self.status = 200
        self.heard: list[tuple[str, str | None, dict[str, Any]]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{self.server_port}/hub/api",
            "JUPYTERHUB_API_TOKEN": "t0",
        }


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.server.status)
        self.end_headers()
        message = {"status": self.server.status, "message": "This server's time can't be extended."}
        self.wfile.write(json.dumps(self.server.word if self.server.status == 200 else message).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    yield server
    server.shutdown()
    server.server_close()


def test_a_server_without_a_job_has_no_end(server):
    status, leaving = server.call("gipfel/lifetime")
    assert (status, leaving["ends_ms"], leaving["extend_s"], leaving["idle"]) == (200, None, 0, None)
    assert leaving["notices_s"] == [1800, 600, 120]
    assert abs(leaving["now_ms"] - time.time() * 1000) < 60_000
    status, answer = server.call("gipfel/lifetime/extend", "POST", {})
    assert (status, answer["message"]) == (
        400,
        "The time of this server can't be extended, because no hub started it.",
    )


def test_the_hub_hears_the_jobs_end_and_has_the_last_word_on_it(start_server, tmp_path, hub):
    folder = RunFolder.create(tmp_path / "runs", "alps", "48812")
    folder.write_record({"edf": None, "time_limit_ends": "2030-01-02T03:04:05+00:00"})
    hub.word |= {"ends": 1893557045, "extend_s": 3600}
    server = start_server(GIPFEL_RUN=str(folder.path), **hub.environment)
    server.wait(lambda: hub.heard)
    path, token, report = hub.heard[0]
    assert (path, token) == ("/hub/api/gipfel/server/activity", "token t0")
    assert set(report) == {"idle_s", "busy_with", "warned_s", "ends"}
    assert report["ends"] == 1893553445
    server.wait(lambda: server.call("gipfel/lifetime")[1]["ends_ms"] == 1893557045_000)
    assert server.call("gipfel/run")[1]["ends_ns"] == 1893557045 * 10**9
    hub.word |= {"ends": 1893560645}
    status, leaving = server.call("gipfel/lifetime/extend", "POST", {})
    assert (status, leaving["ends_ms"]) == (200, 1893560645_000)
    assert hub.heard[-1][0] == "/hub/api/gipfel/server/extend"
    hub.status = 409
    status, answer = server.call("gipfel/lifetime/extend", "POST", {})
    assert (status, answer["message"]) == (400, "This server's time can't be extended.")


def test_every_route_refuses_who_is_not_logged_in(server):
    for method, path in (("GET", ""), ("POST", "/extend"), ("POST", "/stay")):
        for authorization in ("", "token wrong"):
            body = {} if method == "POST" else None
            assert server.call(f"gipfel/lifetime{path}", method, body, Authorization=authorization)[0] == 403
