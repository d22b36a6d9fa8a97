import json
import time

import pytest


@pytest.fixture
def source(server):
    """The route of the simulated source, with nothing running before and after."""
    yield lambda method, body=None: server.call("gipfel/telemetry/source", method, body)
    server.call("gipfel/telemetry/source", "DELETE")


def until(stream, accept, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        message = json.loads(stream.recv())
        if accept(message):
            return message
    raise AssertionError(f"nothing within {seconds} s")


def test_a_simulated_source_appears_marked_and_goes_again(server, source):
    stream = server.stream()
    until(stream, lambda m: m["type"] == "figures")
    status, answer = source("POST", {"source": "synthetic:training"})
    assert (status, answer["simulated"], answer["gpus"]) == (201, True, 4)
    shown = until(stream, lambda m: m["type"] == "figures" and m["status"]["simulated"])
    assert "simulated" in json.dumps(shown["figures"]["job"]["layout"]).lower()
    assert [gpu["simulated"] for gpu in shown["gpus"]] == [True] * 4
    moving = until(
        stream, lambda m: m["type"] == "samples" and any("SM_ACTIVE" in uid for uid in m.get("traces", {}))
    )
    assert moving["status"]["simulated"] is True
    assert [d["simulated"] for d in server.call("gipfel/run")[1]["devices"]].count(True) >= 4

    assert source("DELETE")[0] == 200
    shown = until(stream, lambda m: m["type"] == "figures" and not m["status"]["simulated"])
    assert shown["gpus"] == []
    assert len(server.recorders()) == 1


def test_a_second_start_replaces_the_first(server, source):
    assert source("POST", {"source": "synthetic:training"})[0] == 201
    assert source("POST", {"source": "synthetic:idle"})[0] == 201
    assert len(server.recorders()) == 2


def test_a_recorded_segment_is_replayed_from_the_users_folders_only(server, source, tmp_path):
    assert source("POST", {"source": "synthetic:training"})[0] == 201
    source("DELETE")
    segment = next((server.home / ".gipfel").rglob("simulated*.closed.arrows"))
    status, answer = source("POST", {"source": f"replay:{segment}"})
    assert (status, answer["simulated"]) == (201, True)

    outside = tmp_path / segment.name
    outside.write_bytes(segment.read_bytes())
    link = server.root / "link.arrows"
    link.symlink_to(outside)
    for path in (outside, "link.arrows", "../../etc/passwd"):
        status, answer = source("POST", {"source": f"replay:{path}"})
        assert status == 400
        assert "outside your directories" in answer["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"source": "nvml"}, "not a simulated source"),
        ({"source": "synthetic:"}, "not a simulated source"),
        ({"source": "synthetic:nonsense"}, "nonsense"),
        ({"source": "replay:missing.arrows"}, "no file"),
        ({"source": "replay:~nobody-of-that-name/x"}, "is not a valid path"),
        ({"source": "replay:" + "a" * 5000}, "is not a valid path"),
        ({"source": "synthetic:idle\n"}, "not valid"),
        ({"source": "synthetic:idle", "more": 1}, "not valid"),
        ({}, "not valid"),
        (b"{", "not valid"),
    ],
)
def test_anything_else_is_refused_in_one_line(server, source, body, words):
    status, answer = source("POST", body)
    assert status == 400
    assert words in answer["message"]
    assert "\n" not in answer["message"]
    assert len(server.recorders()) == 1


def test_a_page_of_another_site_cannot_start_it_with_the_users_cookie(server):
    login = {"Authorization": "", "Cookie": server.cookie()}
    body = {"source": "synthetic:training"}
    assert server.call("gipfel/run", **login)[0] == 200
    assert server.call("gipfel/telemetry/source", "POST", body, **login)[0] == 403
    elsewhere = {**login, "Origin": "http://elsewhere.example"}
    assert server.call("gipfel/telemetry/source", "POST", body, **elsewhere)[0] in (403, 404)
    assert len(server.recorders()) == 1
