"""Runs over HTTP: table, notes, comparison, removal and the report of a run, from a real server."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from mlflow_stand_in import MlflowStandIn

from gipfel_extension.cli.report import job_link, report_link, server_url
from gipfel_extension.server.run_tracking import RunTrackings
from gipfel_extension.server.runs import RunReports


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


def _ended_run(folder: Path) -> Path:
    folder.mkdir()
    times = {"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T01:00:00Z"}
    (folder / "record.json").write_text(json.dumps({"kind": "recording", "exit_status": 0, **times}))
    return folder


def test_a_run_is_sent_to_an_mlflow_server_and_problems_are_one_line(server, own):
    run = _ended_run(Path(server.call("gipfel/run")[1]["run"]).parent / "alps-11")
    path = f"gipfel/runs/track?run={run.name}"
    assert server.call(path) == (200, {"to": "", "url": "", "sending_s": None, "problem": ""})
    stand_in = MlflowStandIn()
    with stand_in.listening() as address:
        status, answer = server.call("gipfel/runs/track", "POST", {"run": run.name, "to": f"{address}/"})
        assert (status, answer["sending_s"]) == (200, 0)
        server.wait(lambda: server.call(path)[1]["sending_s"] is None, 60)
        found = server.call(path)[1]
        assert (found["problem"], found["url"]) == ("", f"{address}/#/experiments/1/runs/run0")
    assert [(each["status"], each["tags"]["gipfel.run"]) for each in stand_in.runs.values()] == [
        ("FINISHED", run.name)
    ]
    # Nothing listens there any more.
    assert server.call("gipfel/runs/track", "POST", {"run": run.name, "to": address})[0] == 200
    server.wait(lambda: server.call(path)[1]["sending_s"] is None, 60)
    problem = server.call(path)[1]["problem"]
    assert f"The MLflow server {address} can't be reached" in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "to",
    ["", "  ", "127.0.0.1:5000", "file:///etc/passwd", "javascript:alert(1)", "http://", "http://me:pw@h/",
     "http://h/?a=b", "http://[", "--json", "http://h\n/", "x" * 3000, "$(touch /tmp/x)"],
)  # fmt: skip
def test_an_address_of_something_else_is_refused_and_nothing_is_sent(server, own, to):
    assert server.call("gipfel/runs/track", "POST", {"run": own, "to": to})[0] == 400
    assert server.call(f"gipfel/runs/track?run={own}")[1]["sending_s"] is None


@pytest.mark.parametrize("run", ["", "no-such", "../..", "a" * 300])
def test_a_run_that_is_none_is_not_sent(server, run):
    assert server.call("gipfel/runs/track", "POST", {"run": run, "to": "http://127.0.0.1:1"})[0] == 400


def test_the_configured_servers_token_reaches_no_other_server(tmp_path):
    run = _ended_run(tmp_path / "alps-12")

    async def send(configured: str, to: str) -> str:
        trackings = RunTrackings(
            {**os.environ, "MLFLOW_TRACKING_URI": configured, "MLFLOW_TRACKING_TOKEN": "secret"}
        )
        trackings.start(run, to)
        while trackings.state(run).sending_s is not None:
            await asyncio.sleep(0.05)
        return trackings.state(run).problem

    with (
        MlflowStandIn(token="secret").listening() as ours,
        MlflowStandIn(token="secret").listening() as other,
    ):
        assert asyncio.run(send(ours, "")) == ""
        assert "refuses access" in asyncio.run(send(ours, other))


def test_a_page_that_a_browser_must_not_open_is_no_link(tmp_path):
    run = _ended_run(tmp_path / "alps-13")
    (run / "tracking.json").write_text(
        json.dumps({"uri": "javascript:alert(1)//", "experiment": "x", "run_id": "1"})
    )
    assert RunTrackings({}).state(run).url == ""


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("table", "GET"),
        ("notes", "POST"),
        ("compare?run=a&run=b", "GET"),
        ("remove", "POST"),
        ("track?run=a", "GET"),
        ("track", "POST"),
    ],
)
def test_each_route_needs_the_token(server, path, method):
    assert server.call(f"gipfel/runs/{path}", method, Authorization="")[0] in {302, 403}


def test_who_opens_the_link_to_a_report_without_a_login_is_asked_for_one(server, own):
    with urllib.request.urlopen(f"{server.url}gipfel/runs/{own}/report", timeout=120) as answer:
        assert "/login?next=" in answer.url
        assert own in answer.url
        assert b"Plain utilization" not in answer.read()


def test_reports_that_wait_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[bytes | BaseException]:
        released = asyncio.Event()

        async def make(arguments: tuple[str, ...], *_: object) -> None:
            await released.wait()
            Path(arguments[-1]).write_bytes(b"page")

        monkeypatch.setattr("gipfel_extension.server.runs.run_gipfel", make)
        reports = RunReports()
        requests = [asyncio.ensure_future(reports.page(tmp_path)) for _ in range(6)]
        await asyncio.sleep(0)
        released.set()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert await reports.page(tmp_path) == b"page"
        return answers

    answers = asyncio.run(run())
    assert answers[:4] == [b"page"] * 4
    assert ["Too many reports" in str(each) for each in answers[4:]] == [True, True]


def test_a_link_names_the_server_and_no_token() -> None:
    hub = {
        "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/",
        "JUPYTERHUB_PUBLIC_URL": "https://hub.example/user/ada/",
    }
    assert (
        report_link(server_url(hub, []), "alps-1") == "https://hub.example/user/ada/gipfel/runs/alps-1/report"
    )
    link = job_link(server_url(hub, []), "alps-1")
    place = parse_qs(urlsplit(link).query)["gipfel-job"][0]
    assert (link.partition("?")[0], parse_qs(place)) == (
        "https://hub.example/user/ada/lab",
        {"tab": ["overview"], "run": ["alps-1"]},
    )
    plain = {"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/", "JUPYTERHUB_PUBLIC_URL": ""}
    assert server_url(plain, []) == "/user/ada/"
    seen = {**plain, "GIPFEL_BROWSER_ORIGIN": "https://hub.example"}
    assert server_url(seen, []) == "https://hub.example/user/ada/"
    servers = [{"url": "http://127.0.0.1:1/", "token": "t"}, {"url": "http://127.0.0.1:2/", "token": "t"}]
    assert server_url({}, servers) == "http://127.0.0.1:2/"
    assert server_url({}, [{"url": "file:///x"}]) == ""
