"""Figures of all ranks of a job: bands, outliers, bins, bytes, and the routes that send them."""

import base64
import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from gipfel_extension.job.rows import MISSING, bands, on_grid, outliers, to_bytes, worst_bins
from gipfel_extension.server.job import JobDocument
from gipfel_extension.server.job_responses import JobFigures, JobVerdicts
from gipfel_extension.telemetry.ranks import RankLocation, ranks_file, ranks_json

VALUES = np.random.default_rng(7)


def test_bands_are_numpys_quantiles_of_what_is_there() -> None:
    values = VALUES.normal(50, 5, (101, 40))
    values[VALUES.random(values.shape) < 0.2] = np.nan
    values[:, 3] = np.nan
    found = bands(values)
    for name, part in (("min", 0), ("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("max", 1)):
        with np.errstate(all="ignore"):
            expected = np.array([np.nan if np.isnan(c).all() else np.nanquantile(c, part) for c in values.T])
        np.testing.assert_allclose(found[name], expected)
    assert bands(np.empty((3, 0)))["median"].shape == (0,)


def test_at_most_eight_outliers_and_none_of_noise() -> None:
    values = VALUES.normal(80, 4, (1024, 120))
    assert outliers(values) == []
    values[[5, 700]] -= np.array([[30], [60]])
    assert outliers(values) == [700, 5]
    values[100:120] = 0
    assert len(outliers(values)) == 8
    assert outliers(values[:3]) == []


def test_one_bad_row_survives_being_put_together() -> None:
    values = np.full((10_000, 12), 90.0)
    values[7_777] = 4.0
    values[11] = np.nan
    binned, parts = worst_bins(values, 512, highest=False)
    assert len(binned) == len(parts) <= 512
    row = next(place for place, part in enumerate(parts) if 7_777 in part)
    assert (binned[row] == 4).all()
    assert (worst_bins(-values, 512, highest=True)[0][row] == -4).all()
    assert sum((binned == 4).any(axis=1)) == 1


def test_bytes_keep_values_to_a_254th_and_gaps() -> None:
    values = np.array([[0.0, 50.0, 100.0, np.nan, 150.0, -1.0]])
    assert to_bytes(values, 0, 100).tolist() == [[0, 127, 254, MISSING, 254, 0]]


def test_series_of_any_interval_come_on_one_grid() -> None:
    series = [(np.array([0, 1, 5, 99]), np.array([1.0, 3.0, np.nan, 9.0])), (np.array([2]), np.array([4.0]))]
    found = on_grid(series, 0, 2, 3)
    np.testing.assert_equal(found, [[2, np.nan, np.nan], [np.nan, 4, np.nan]])


@pytest.fixture(scope="module")
def recorded(server):
    """The server, when its own run holds 16 simulated GPUs with a rank each."""
    assert server.call("gipfel/telemetry/source", "POST", {"source": "synthetic:training:16"})[0] == 201

    def shape() -> list[int]:
        return server.call("gipfel/job/figures")[1]["figures"]["heat"]["layout"]["meta"].get("shape", [0, 0])

    server.wait(lambda: shape()[1] > 3, 60)
    devices = [each for each in server.call("gipfel/run")[1]["devices"] if each["kind"] == "gpu"]
    run = Path(server.call("gipfel/run")[1]["run"])
    places = [
        RankLocation(rank, each["node"], 100 + rank, each["uuid"], "python")
        for rank, each in enumerate(sorted(devices, key=lambda each: each["index"]))
        if rank != 9
    ]
    ranks_file(run / "telemetry", "n0", "job").write_text(ranks_json(places))
    with (run / "metrics.jsonl").open("w") as file:
        time_ns = server.call("gipfel/job/figures")[1]["figures"]["bands"]["layout"]["xaxis"]["range"][0]
        for rank in range(16):
            values = {"loss": rank / 10, "<b>x": 1}
            about = {"time_ns": (time_ns + rank) * 10**6, "monotonic_ns": 0, "node": "n0", "rank": rank}
            file.write(json.dumps({**about, "values": values}) + "\n")
    return server


def test_the_page_of_a_job_names_ranks_and_the_missing_one(recorded) -> None:
    status, job = recorded.call("gipfel/job?layout=pp%3D4,dp%3D4")
    assert status == 200
    assert (job["source"], job["axes"], job["missing"]) == ("typed", {"pp": 4, "dp": 4}, [9])
    assert job["ranks"][5]["role"] == {"pp": 1, "dp": 1}
    assert job["ranks"][9]["state"] == "missing"
    assert "loss" in job["metrics"]


def test_a_role_expression_selects_in_every_figure(recorded) -> None:
    query = f"layout={quote('pp=4,dp=4')}&select={quote('pp=1,2 & dp=0')}&name=loss&name={quote('<b>x')}"
    status, answer = recorded.call(f"gipfel/job/figures?{query}")
    assert status == 200
    assert answer["selected"]["ranks"] == [4, 8]
    heat, lines, metrics = (answer["figures"][name] for name in ("heat", "bands", "metrics"))
    meta = heat["layout"]["meta"]
    cells = np.frombuffer(base64.b64decode(meta["bytes"]), np.uint8).reshape(meta["shape"])
    assert cells.shape[0] == 16
    assert (cells != MISSING).any()
    assert [trace["type"] for trace in heat["data"]] == ["heatmap"]
    # The rows of ranks 4 and 8 are lit, three stretches beside them are dimmed.
    veils = [(each["y0"], each["y1"]) for each in heat["layout"]["shapes"]]
    assert veils == [(-0.5, 3.5), (4.5, 7.5), (8.5, 15.5)]
    assert meta["ranks"][4] == [4]
    names = [trace["name"] for trace in lines["data"]]
    assert sum(name.startswith("rank 4") for name in names) >= 1
    assert {"rank 4", "rank 8", "median"} <= {trace["name"] for trace in metrics["data"]}
    assert "<" not in metrics["layout"]["annotations"][-1]["text"]


def test_the_last_seconds_end_at_the_newest_sample(recorded) -> None:
    def drawn(last: str = "") -> tuple[int, int]:
        status, document = recorded.call(f"gipfel/job/figures?figure=bands{last}")
        axis = document["figures"]["bands"]["layout"].get("xaxis", {}) if status == 200 else {}
        begin, end = axis.get("range", (0, 0))
        return begin, end

    recorded.wait(lambda: drawn()[1] - drawn()[0] > 2000, 20)
    begin, end = drawn()
    # On a busy machine, no sample may have been written in the last second.
    recorded.wait(lambda: drawn("&last=1")[1] > 0, 20)
    late, last = drawn("&last=1")
    assert begin < late < last <= late + 3000
    assert end <= last
    assert recorded.call("gipfel/job/figures?last=0")[0] == 400


@pytest.mark.parametrize("order", ["rank", "role", "node", "switch", "median"])
def test_rows_come_in_any_order_and_each_once(recorded, order) -> None:
    answer = recorded.call(f"gipfel/job/figures?order={order}&metric=POWER_USAGE&rows=16")[1]
    meta = answer["figures"]["heat"]["layout"]["meta"]
    assert len(set(meta["uuids"])) == 16
    if order == "rank":
        assert meta["ranks"][:3] == [[0], [1], [2]]
        assert meta["ranks"][-1] == []


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select=pp%3D1", "no axis 'pp'"),
        ("select=%26%26", "is not a term"),
        ("select=" + "a" * 1001, "at most 1000"),
        ("order=size", "'rank'"),
        ("metric=NOPE", "the metrics of the heat map"),
        ("since=5&until=4", "before"),
        ("rows=100000", "less than or equal to 512"),
        ("run=../../etc", "no such run"),
    ],
)
def test_what_is_not_valid_is_one_line(recorded, query, reason) -> None:
    status, answer = recorded.call(f"gipfel/job/figures?{query}")
    assert status == 400
    assert reason in answer["message"]
    assert "\n" not in answer["message"]


def test_nobody_reads_a_job_without_a_token(recorded) -> None:
    assert recorded.call("gipfel/job", Authorization="")[0] in (401, 403)
    assert recorded.call("gipfel/job/figures", Authorization="")[0] in (401, 403)


def test_an_unchanged_job_is_not_sent_again_and_a_change_on_disk_is(recorded) -> None:
    run = Path(recorded.call("gipfel/run")[1]["run"])
    # Of a fixed time range, which new samples don't change, only what is on disk counts.
    first = recorded.call("gipfel/job/verdicts")[1]
    again = recorded.call(f"gipfel/job/verdicts?have={first['version']}")[1]
    assert again == {"version": first["version"], "unchanged": True}
    assert JobVerdicts.model_validate(first).verdicts == sorted(
        JobVerdicts.model_validate(first).verdicts, key=lambda each: -each.severity
    )
    (run / "roles.json").write_text(json.dumps({str(r): {"pp": r % 2, "dp": r // 2} for r in range(16)}))
    assert recorded.call("gipfel/job")[1]["axes"] == {"pp": 2, "dp": 8}
    (run / "roles.json").write_text(json.dumps({str(r): {"pp": r // 4, "dp": r % 4} for r in range(16)}))
    job = recorded.call("gipfel/job")[1]
    assert job["axes"] == {"pp": 4, "dp": 4}
    JobDocument.model_validate(job)


def test_a_pick_counts_in_place_of_the_roles_which_are_kept(recorded) -> None:
    query = f"layout={quote('pp=4,dp=4')}&select={quote('pp=1')}&pick={quote('rank=3')}&figure=heat"
    answer = recorded.call(f"gipfel/job/figures?{query}")[1]
    assert answer["selected"]["ranks"] == [3]
    assert answer["selected"]["group"] == [4, 5, 6, 7]
    assert list(answer["figures"]) == ["heat"]
    JobFigures.model_validate(answer)
