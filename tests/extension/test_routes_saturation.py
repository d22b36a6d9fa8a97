import json
import time

import pytest
import websocket


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
    uids = [trace["uid"] for trace in answer["figure"]["data"]]
    assert any(uid.endswith("/CPU_UTIL") for uid in uids)


@pytest.mark.parametrize("query", ["window=5", "window=1e9", "window=nan", "window=x", "dark=perhaps"])
def test_a_query_out_of_range_is_refused_in_one_line(server, query):
    status, answer = server.call(f"gipfel/saturation?{query}")
    assert status == 400
    assert "query is not valid" in answer["message"]
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        server.stream(query)
    assert refused.value.status_code == 400


def test_the_stream_sends_a_figure_and_then_only_newer_points(server):
    stream = server.stream()
    sent = list(messages(stream, 4))
    assert sent[0]["type"] == "figure"
    known = {trace["uid"]: list(trace["x"]) for trace in sent[0]["figure"]["data"]}
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
        found = [m for m in messages(stream, 3) if m["type"] == "samples"]
        seen.append({(uid, x) for m in found for uid, p in m["traces"].items() for x in p["x"]})
    # The second was read later, from the same start: it holds what the first had.
    assert seen[0]
    assert len(seen[0] & seen[1]) >= len(seen[0]) / 2


def test_the_stream_refuses_strangers_and_other_origins(server):
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        server.stream(header=[])
    assert refused.value.status_code == 403
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        server.stream(header=[], cookie=server.cookie(), origin="http://elsewhere.example")
    assert refused.value.status_code == 403
    own = server.stream(header=[], cookie=server.cookie(), origin=server.url.rstrip("/"))
    assert json.loads(own.recv())["type"] == "figure"


def test_a_recorder_that_is_killed_is_named_and_the_server_goes_on(start_server):
    server = start_server()
    stream = server.stream()
    first(stream, lambda message: message["type"] == "samples")
    (recorder,) = server.recorders()
    recorder.kill()
    stale = first(stream, lambda message: message["status"]["state"] == "stale")
    assert "recorder" in stale["status"]["message"]
    status, answer = server.call("gipfel/saturation?window=60")
    assert status == 200
    assert any(trace["x"] for trace in answer["figure"]["data"])
