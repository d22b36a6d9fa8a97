"""Responses of a real server about its end, with a fake hub."""

import time
from collections.abc import Iterator

import pytest
from fake_hub import FakeHub

from gipfel_cluster.runs import RunFolder


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        server.answer = {"ends": None, "extend_s": 0, "idle_limit_s": 0, "idle_warning_s": 0}
        server.error = {"message": "This server's time can't be extended."}
        yield server


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
    hub.answer |= {"ends": 1893557045, "extend_s": 3600}
    server = start_server(GIPFEL_RUN=str(folder.path), **hub.environment)
    server.wait(lambda: hub.requests)
    path, token, report = hub.requests[0]
    assert (path, token) == ("/hub/api/gipfel/server/activity", "token t0")
    assert set(report) == {"idle_s", "busy_with", "warned_s", "ends"}
    assert report["ends"] == 1893553445
    server.wait(lambda: server.call("gipfel/lifetime")[1]["ends_ms"] == 1893557045_000)
    assert server.call("gipfel/run")[1]["ends_ns"] == 1893557045 * 10**9
    hub.answer |= {"ends": 1893560645}
    status, leaving = server.call("gipfel/lifetime/extend", "POST", {})
    assert (status, leaving["ends_ms"]) == (200, 1893560645_000)
    assert hub.requests[-1][0] == "/hub/api/gipfel/server/extend"
    hub.statuses = [409] * 9
    status, answer = server.call("gipfel/lifetime/extend", "POST", {})
    assert (status, answer["message"]) == (400, "This server's time can't be extended.")


def test_every_route_refuses_who_is_not_logged_in(server):
    for method, path in (("GET", ""), ("POST", "/extend"), ("POST", "/keep-alive")):
        for authorization in ("", "token wrong"):
            body = {} if method == "POST" else None
            assert server.call(f"gipfel/lifetime{path}", method, body, Authorization=authorization)[0] == 403
