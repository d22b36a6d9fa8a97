"""Runs over HTTP: table, notes, comparison, removal and the report of a run, from a real server."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def own(server) -> str:
    """Name of the server's run, when it holds simulated GPUs."""
    assert server.call("gipfel/telemetry/source", "POST", {"source": "synthetic:training"})[0] == 201
    server.wait(lambda: server.call("gipfel/saturation/score")[1]["score"] is not None, 60)
    return next(run["run"] for run in server.call("gipfel/runs")[1]["runs"] if run["current"])


def test_notes_are_set_and_the_table_has_them(server, own):
    status, notes = server.call(
        "gipfel/runs/notes", "POST", {"run": own, "display_name": "try", "tags": ["a"], "pinned": True}
    )
    assert (status, notes["tags"]) == (200, ["a"])
    status, answer = server.call("gipfel/runs/table?filter=tags%3Da&sort=score&limit=5")
    assert status == 200
    (row,) = answer["runs"]
    assert (row["name"], row["display_name"], row["pinned"]) == (own, "try", True)
    for wrong in (
        {"run": own, "tags": ["two words"]},
        {"run": "no-such"},
        {"run": own, "colour": 1},
        {"run": "../.."},
    ):
        assert server.call("gipfel/runs/notes", "POST", wrong)[0] == 400
    for wrong in ("sort=no", "limit=0", "limit=100000", "filter=x", "&".join(["filter=score>1"] * 21)):
        assert server.call(f"gipfel/runs/table?{wrong}")[0] == 400


def test_a_run_in_use_is_kept_and_others_are_compared_and_removed(server, own):
    other = Path(server.call("gipfel/run")[1]["run"]).parent / "alps-9"
    (other / "telemetry").mkdir(parents=True)
    (other / "record.json").write_text(json.dumps({"kind": "server", "ended": "2026-01-01T00:00:00Z"}))
    status, answer = server.call(f"gipfel/runs/compare?run={own}&run=alps-9")
    assert status == 200
    assert [run["name"] for run in answer["runs"]] == [own, "alps-9"]
    assert any(row["name"] == "score" and row["values"][1] is None for row in answer["measurements"])
    assert server.call(f"gipfel/runs/compare?run={own}")[0] == 400
    status, answer = server.call("gipfel/runs/remove", "POST", {"runs": [own, "alps-9"]})
    assert (status, answer["removed"]) == (200, ["alps-9"])
    assert [kept["run"] for kept in answer["kept"]] == [own]
    assert not other.exists()


def test_the_report_is_a_page_of_an_origin_of_its_own(server, own):
    request = urllib.request.Request(
        f"{server.url}gipfel/runs/{own}/report", headers={"Authorization": "token a-token-of-the-tests"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
        assert "sandbox allow-scripts" in answer.headers["Content-Security-Policy"]
        assert "allow-same-origin" not in answer.headers["Content-Security-Policy"]
        assert b"<html" in answer.read()[:200]
    assert server.call("gipfel/runs/no-such/report")[0] == 404


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("table", "GET"),
        ("notes", "POST"),
        ("compare?run=a&run=b", "GET"),
        ("remove", "POST"),
    ],
)
def test_each_route_needs_the_token(server, path, method):
    assert server.call(f"gipfel/runs/{path}", method, Authorization="")[0] in {302, 403}


def test_who_opens_the_link_to_a_report_without_a_login_is_asked_for_one(server, own):
    with urllib.request.urlopen(f"{server.url}gipfel/runs/{own}/report", timeout=120) as answer:
        assert "/login?next=" in answer.url
        assert own in answer.url
        assert b"Plain utilization" not in answer.read()
