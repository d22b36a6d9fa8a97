"""Runs and time ranges of them, displayed, compared and downloaded from a real server."""

import csv
import io
import urllib.request

import pyarrow.parquet
import pytest


@pytest.fixture(scope="module")
def recorded(server):
    """The server, when its own run holds simulated GPUs."""
    assert server.call("gipfel/telemetry/source", "POST", {"source": "synthetic:training"})[0] == 201

    def some() -> bool:
        _, answer = server.call("gipfel/saturation/range")
        heat = answer["figures"]["heat"]["data"]
        return bool(heat) and len(heat[0]["z"][0]) > 8

    server.wait(some, 60)
    return server


def fetch(server, path: str) -> tuple[bytes, str]:
    request = urllib.request.Request(
        server.url + path, headers={"Authorization": "token a-token-of-the-tests"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read(), answer.headers["Content-Disposition"]


def test_a_stretch_has_figures_score_and_nothing_outside(recorded):
    status, whole = recorded.call("gipfel/saturation/range")
    assert status == 200
    assert recorded.call("gipfel/saturation/score")[1]["score"] is not None
    assert recorded.call("gipfel/saturation/score")[1]["means_s"] is None
    assert "Wh of" in recorded.call("gipfel/saturation/score")[1]["energy"]
    # A page reads it again as long as it is recorded.
    assert whole["growing"] is True
    gpu = next(device["uuid"] for device in whole["devices"] if device["kind"] == "gpu")
    times = [x for trace in whole["figures"]["job"]["data"] for x in trace["x"]]
    # Around a sample: a busy machine leaves seconds without one.
    middle = sorted(times)[len(times) // 2]
    since, until = middle - 500, middle + 500
    status, part = recorded.call(
        f"gipfel/saturation/range?since={since}&until={until}&gpu={gpu}&metric=POWER_USAGE"
    )
    assert status == 200
    assert part["growing"] is False
    assert set(part["figures"]) == {"job", "host", "heat", f"gpu/{gpu}"}
    inside = [x for trace in part["figures"]["job"]["data"] for x in trace["x"]]
    assert inside
    assert since - 1000 <= min(inside) <= max(inside) <= until
    assert part["figures"]["heat"]["layout"]["meta"]["metric"] == "POWER_USAGE"


def test_the_last_seconds_end_at_the_newest_sample_and_grow(recorded):
    status, part = recorded.call("gipfel/saturation/range?last=3")
    assert (status, part["growing"]) == (200, True)
    times = [x for trace in part["figures"]["job"]["data"] for x in trace["x"]]
    assert 0 < max(times) - min(times) <= 4000
    assert recorded.call("gipfel/saturation/score?last=3")[0] == 200
    for wrong in ("last=0", "last=x", "last=3&until=5"):
        status, answer = recorded.call(f"gipfel/saturation/range?{wrong}")
        assert (status, "query is not valid" in answer["message"]) == (400, True)


def test_a_stretch_in_which_nothing_was_recorded_is_empty_and_no_error(recorded):
    status, answer = recorded.call("gipfel/saturation/range?since=1000&until=2000")
    assert status == 200
    assert not answer["figures"]["heat"]["data"]
    status, answer = recorded.call("gipfel/saturation/score?since=1000&until=2000")
    assert (status, answer["score"]) == (200, None)


@pytest.mark.parametrize(
    "query",
    ["since=5&until=3", "since=x", "until=-1", "run=../..", "run=.", "run=no-such-run"],
)
def test_a_query_that_names_nothing_is_refused_in_one_line(recorded, query):
    status, answer = recorded.call(f"gipfel/saturation/range?{query}")
    assert status == 400
    assert "\n" not in answer["message"]


def test_runs_are_listed_and_this_one_is_named(recorded):
    status, answer = recorded.call("gipfel/runs")
    assert status == 200
    (own,) = [run for run in answer["runs"] if run["current"]]
    assert own["run"].startswith("local-")
    named = {"run": own["run"], "display_name": "train-7b"}
    assert recorded.call("gipfel/runs/notes", "POST", named)[0] == 200
    (own,) = [run for run in recorded.call("gipfel/runs")[1]["runs"] if run["current"]]
    assert own["display_name"] == "train-7b"


def test_a_run_is_compared_with_itself(recorded):
    status, answer = recorded.call("gipfel/saturation/compare?first=&second=")
    assert status == 200
    rows = {row["name"]: row for row in answer["rows"]}
    assert rows["score"]["change"] == pytest.approx(0, abs=5)
    assert {trace["name"] for trace in answer["figure"]["data"]} == set(answer["runs"])


def test_what_cannot_name_a_run_is_refused(recorded):
    for path in (
        "compare?first=con%0Ax",
        "compare?second=..",
        "range?run=con%0Ax",
        f"range?run={'a' * 5000}",
    ):
        status, answer = recorded.call(f"gipfel/saturation/{path}")
        assert status == 400, path
        assert "\n" not in answer["message"]


def test_samples_and_plots_are_taken_along(recorded):
    content, name = fetch(recorded, "gipfel/saturation/samples.parquet")
    assert name.endswith('.parquet"')
    assert pyarrow.parquet.read_table(io.BytesIO(content)).num_rows > 8
    text, _ = fetch(recorded, "gipfel/saturation/samples.csv")
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    gpus = [row for row in rows if row["kind"] == "gpu"]
    assert 0 < float(gpus[-1]["SM_ACTIVE"]) <= 1
    assert gpus[0]["CPU_UTIL"] == ""
    image, _ = fetch(recorded, "gipfel/saturation/figure.png")
    assert image.startswith(b"\x89PNG")


def test_nothing_is_for_strangers(recorded):
    for path in ("runs", "saturation/range", "saturation/compare", "saturation/samples.csv", "sharing"):
        status, _ = recorded.call(f"gipfel/{path}", Authorization="")
        assert status == 403, path


def test_nothing_is_shared_before_the_user_says_so(recorded):
    assert recorded.call("gipfel/sharing") == (200, {"saturation": False})
    assert recorded.call("gipfel/sharing/saturation") == (200, {"shared": False})
    assert recorded.call("gipfel/sharing", "POST", {"saturation": True})[0] == 200
    status, shared = recorded.call("gipfel/sharing/saturation")
    assert status == 200
    assert shared["shared"] is True
    assert shared["simulated"] is True
    assert 0 <= shared["score"] <= 100
    assert set(shared) == {"shared", "score", "bottleneck", "gpus", "seconds", "simulated", "activity"}
    assert all(each is None or 0 <= each <= 1 for each in shared["activity"])
    assert len(shared["activity"]) <= 60
    assert recorded.call("gipfel/sharing", "POST", {"saturation": False})[0] == 200
    assert recorded.call("gipfel/sharing/saturation") == (200, {"shared": False})
    assert recorded.call("gipfel/sharing", "POST", {"everything": True})[0] == 400
