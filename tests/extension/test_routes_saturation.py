import json
import time

import pytest
import websocket
from pydantic import TypeAdapter

from gipfel_extension.server.responses import ChangeMessage


def messages(stream, seconds):
    """Every message within some seconds."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        stream.settimeout(left)
        try:
            yield json.loads(stream.recv())
        except websocket.WebSocketTimeoutException:
            return


def first(stream, accept, seconds=15):
    return next(message for message in messages(stream, seconds) if accept(message))


def test_the_figure_shows_the_host_and_says_that_there_is_no_gpu(server):
    first(server.stream(), lambda message: message["type"] == "samples")
    status, answer = server.call("gipfel/saturation?window=60")
    assert status == 200
    assert answer["status"]["state"] == "live"
    assert answer["status"]["simulated"] is False
    uids = [trace["uid"] for trace in answer["figures"]["host"]["data"]]
    assert "job/CPU_UTIL" in uids
    assert not answer["figures"]["heat"]["data"]


@pytest.mark.parametrize(
    "query", ["window=5", "window=1e9", "window=nan", "window=x", "dark=perhaps", "metric=NO_SUCH"]
)
def test_a_query_out_of_range_is_refused_in_one_line(server, query):
    status, answer = server.call(f"gipfel/saturation?{query}")
    assert status == 400
    assert "query is not valid" in answer["message"]
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        server.stream(query)
    assert refused.value.status_code == 400


def test_changes_are_pushed_without_counting_as_use(server):
    before = server.call("api/status")[1]["last_activity"]
    changes = server.socket("gipfel/changes")
    topics = {"activity", "batch", "launches", "lifetime", "other", "services", "vetting"}
    found = {}
    while found.keys() != topics:
        message = first(changes, lambda _: True)
        TypeAdapter(ChangeMessage).validate_python(message)
        found[message["topic"]] = message
    assert found["activity"]["activity"]["gpus"] == 0
    # Another page soon gets the value that is known, too.
    again = server.socket("gipfel/changes")
    assert first(again, lambda message: message["topic"] == "activity") == found["activity"]
    assert server.call("api/status")[1]["last_activity"] == before
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        server.socket("gipfel/changes", header=[])
    assert refused.value.status_code == 403


def test_the_stream_sends_figures_and_then_only_newer_points(server):
    stream = server.stream()
    sent = list(messages(stream, 5))
    assert sent[0]["type"] == "figures"
    assert sent[0]["complete"] is True
    known = {
        trace["uid"]: list(trace["x"]) for figure in sent[0]["figures"].values() for trace in figure["data"]
    }
    samples = [message for message in sent if message["type"] == "samples"]
    assert len(samples) >= 2
    for message in samples:
        assert message["status"]["state"] == "live"
        for uid, points in message["traces"].items():
            assert len(points["x"]) == len(points["y"]) > 0
            assert uid in known
            known[uid] += points["x"]
    assert all(times == sorted(set(times)) for times in known.values())


def test_two_pages_see_the_same_points(server):
    streams = [server.stream(), server.stream()]
    seen = []
    for stream in streams:
        found = [m for m in messages(stream, 4) if m["type"] == "samples"]
        seen.append({(uid, x) for m in found for uid, p in m["traces"].items() for x in p["x"]})
    # The second was read later, from the same start: it holds what the first had.
    assert seen[0]
    assert len(seen[0] & seen[1]) >= len(seen[0]) / 2


def test_a_page_looks_at_gpus_and_gets_their_figures_points_and_the_score(start_server):
    server = start_server(GIPFEL_TEST="1")
    assert server.call("gipfel/telemetry/source", "POST", {"source": "synthetic:training"})[0] == 201
    stream = server.stream()
    figures = first(stream, lambda m: m["type"] == "figures" and m["gpus"])
    assert [gpu["index"] for gpu in figures["gpus"]] == [0, 1, 2, 3]
    assert len(figures["figures"]["heat"]["data"][0]["z"]) == 4
    second = figures["gpus"][1]["uuid"]
    view = {"type": "view", "window": 60, "dark": True, "metric": "DRAM_ACTIVE", "gpus": [second]}
    stream.send(json.dumps(view))
    own = first(stream, lambda m: m["type"] == "figures" and f"gpu/{second}" in m["figures"])
    assert own["figures"]["heat"]["layout"]["meta"]["metric"] == "DRAM_ACTIVE"
    news = first(stream, lambda m: m["type"] == "samples" and f"{second}/SM_CLOCK" in m.get("traces", {}))
    assert {uid.rpartition("/")[0] for uid in news["traces"]} <= {"job", "metrics", second}
    cells = first(stream, lambda m: m["type"] == "samples" and "cells" in m)["cells"]
    assert set(cells["row"]) <= {0, 1, 2, 3}
    assert len(cells["row"]) == len(cells["x"]) == len(cells["y"])
    score = first(stream, lambda m: m["type"] == "score" and m["document"]["score"] is not None, 40)
    total = score["document"]["score"] + sum(score["document"]["losses"].values())
    assert total == pytest.approx(100, abs=0.1)
    assert score["document"]["simulated"] is True
    # Only what is missing is sent when one more GPU is looked at.
    stream.send(json.dumps({**view, "gpus": [second, figures["gpus"][2]["uuid"]]}))
    more = first(stream, lambda m: m["type"] == "figures" and not m["complete"])
    assert list(more["figures"]) == [f"gpu/{figures['gpus'][2]['uuid']}"]
    stream.send(json.dumps({"type": "view", "window": "wide"}))
    stream.settimeout(20)
    while stream.recv():
        pass


def test_the_stream_refuses_strangers_and_other_origins(server):
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        server.stream(header=[])
    assert refused.value.status_code == 403
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        server.stream(header=[], cookie=server.cookie(), origin="http://elsewhere.example")
    assert refused.value.status_code == 403
    own = server.stream(header=[], cookie=server.cookie(), origin=server.url.rstrip("/"))
    assert json.loads(own.recv())["type"] == "figures"


def test_a_recorder_that_is_killed_is_named_and_the_server_goes_on(start_server):
    server = start_server()
    stream = server.stream()
    first(stream, lambda message: message["type"] == "samples")
    (recorder,) = server.recorders()
    recorder.kill()
    stale = first(stream, lambda message: message.get("status", {}).get("state") == "stale")
    assert "recorder" in stale["status"]["message"]
    status, answer = server.call("gipfel/saturation?window=60")
    assert status == 200
    assert any(trace["x"] for trace in answer["figures"]["host"]["data"])
