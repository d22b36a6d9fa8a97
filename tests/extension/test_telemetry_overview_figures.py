"""Figures of an overview: valid for plotly, their texts, and images without a browser."""

import json

import numpy as np
import plotly.graph_objects
import pytest
from simulated_tables import EMPTY, START, simulated

from gipfel_extension.saturation import advise, document_of, score_table
from gipfel_extension.saturation.report.document import compare_documents
from gipfel_extension.saturation.result import points_over_time
from gipfel_extension.server.views import View, figures_of, metrics_of
from gipfel_extension.telemetry.events import Event
from gipfel_extension.telemetry.figures.heat import HEAT_METRICS, heat_figure
from gipfel_extension.telemetry.figures.image import static_image
from gipfel_extension.telemetry.figures.lines import coarsened, points, with_devices
from gipfel_extension.telemetry.figures.run_figures import (
    compare_figure,
    gpu_figure,
    host_figure,
    job_figure,
    time_series_figure,
)
from gipfel_extension.telemetry.figures.score_figures import score_figure, shares_figure
from gipfel_extension.telemetry.figures.stack import Plot, with_events, with_time_range
from gipfel_extension.telemetry.metric_table import GPU_METRICS
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.store.overview import Overview
from gipfel_extension.telemetry.user_metrics import UserMetric, UserMetrics

TABLE = simulated(180)
OVERVIEW = Overview.from_table(TABLE, 180)
JOB = score_table(TABLE)
DOCUMENT = document_of(JOB, advise(TABLE, JOB))
SHARES = points_over_time(JOB)


def many(count: int, *, nodes: int = 1, seconds: int = 20) -> Overview:
    """The overview of so many GPUs that work alike."""
    gpus = [
        Device(f"GPU-{n}", "gpu", "NVIDIA GH200", n % 4, node=f"nid{n // (count // nodes):04}")
        for n in range(count)
    ]
    values = dict.fromkeys(GPU_METRICS, 0.5)
    samples = [Sample(START + s * 10**9, 0, gpu.uuid, values) for s in range(seconds) for gpu in gpus]
    return Overview.from_table(SampleTable.from_samples(samples, gpus, interval=1.0), seconds)


def figures(overview: Overview, *, dark: bool) -> dict[str, dict]:
    found = {
        "job": job_figure(overview, dark=dark),
        "host": host_figure(overview, dark=dark),
        "series": time_series_figure(overview, dark=dark),
        "compare": compare_figure([("a<b>", overview), ("b", overview)], dark=dark),
        "score": score_figure(DOCUMENT, dark=dark),
        "no score": score_figure({"score": None}, dark=dark),
        "shares": shares_figure(SHARES.time_ns, SHARES.points, dark=dark),
    }
    found |= {metric: heat_figure(overview, metric, dark=dark) for metric in HEAT_METRICS}
    gpus = [device for device in overview.devices if device.kind == "gpu"]
    return found | ({"gpu": gpu_figure(overview, gpus[0], dark=dark)} if gpus else {})


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(
    "overview", [OVERVIEW, Overview.from_table(EMPTY), many(64)], ids=["simulated", "empty", "many"]
)
def test_plotly_and_matplotlib_accept_every_figure(overview, dark):
    for name, figure in figures(overview, dark=dark).items():
        assert json.loads(json.dumps(figure, allow_nan=False)) == figure, name
        assert len(plotly.graph_objects.Figure(figure).data) == len(figure["data"]), name
        assert static_image(figure, width=400).startswith(b"\x89PNG"), name


def test_plotly_can_select_a_hatched_area():
    hatched = [
        trace["uid"]
        for trace in shares_figure(SHARES.time_ns, SHARES.points)["data"]
        if "fillpattern" in trace
    ]
    assert hatched
    # It becomes part of a selector of the page's, and is drawn only if it is a valid one.
    assert all(uid.replace("-", "").replace("_", "").isalnum() for uid in hatched)


def test_the_job_is_the_mean_of_its_gpus():
    lines = {trace["uid"]: trace for trace in job_figure(OVERVIEW)["data"]}
    each = [TABLE[gpu.uuid]["SM_ACTIVE"] for gpu in TABLE.gpus]
    assert lines["job/SM_ACTIVE"]["y"] == pytest.approx(100 * np.mean(each, axis=0), abs=1e-3)
    assert lines["job/SM_ACTIVE"]["x"][0] == START // 10**6


def test_every_figure_labels_simulated_values():
    for name, figure in figures(OVERVIEW, dark=False).items():
        if name not in ("host", "no score", "shares"):
            assert '"text": "simulated"' in json.dumps(figure["layout"]), name
    assert '"text": "simulated"' not in json.dumps(job_figure(many(4)))


def test_a_heat_map_has_a_row_per_gpu_and_holes_where_nothing_is_known():
    figure = heat_figure(OVERVIEW, "SM_ACTIVE")
    (trace,) = figure["data"]
    assert figure["layout"]["meta"]["devices"] == [gpu.uuid for gpu in TABLE.gpus]
    assert np.shape(trace["z"]) == (4, len(OVERVIEW.time_ns))
    assert trace["z"][0][0] == pytest.approx(100 * TABLE[TABLE.gpus[0].uuid]["SM_ACTIVE"][0], abs=0.06)
    later = Overview.from_table(
        SampleTable.from_samples(
            [Sample(START + s * 10**9, 0, "GPU-1", {"SM_ACTIVE": 0.5}) for s in (0, 1, 9)],
            [Device("GPU-1", "gpu", "x", 0)],
            interval=1.0,
        ),
        10,
    )
    assert heat_figure(later)["data"][0]["z"][0].count(None) == 7


def test_a_thousand_gpus_fit_on_the_page():
    overview = many(1024, nodes=256, seconds=5)
    layout = heat_figure(overview)["layout"]
    assert layout["height"] < 600
    assert len(layout["yaxis"]["tickvals"]) <= 16
    assert layout["yaxis"]["ticktext"][0] == "nid0000"
    # A line per GPU would be a black bar: mean, lowest and highest stand for them.
    assert {trace["name"] for trace in time_series_figure(overview)["data"]} == {"mean", "minimum", "maximum"}


def test_the_heat_map_of_several_nodes_has_the_left_margin_of_the_plots_above():
    """One crosshair goes through all plots of the panel, so that their time axes begin at the same pixel."""
    for count, nodes in ((4, 2), (64, 16)):
        overview = many(count, nodes=nodes)
        sides = [
            (each["layout"]["margin"]["l"], each["layout"]["margin"]["r"])
            for each in (heat_figure(overview), job_figure(overview), host_figure(overview))
        ]
        assert len(set(sides)) == 1, sides


def test_long_names_of_nodes_are_shortened_to_what_tells_them_apart():
    def labels(*nodes: str) -> list[str]:
        devices = [Device(f"GPU-{node}", "gpu", "x", 0, node=node) for node in nodes]
        samples = [Sample(START, 0, device.uuid, {"SM_ACTIVE": 0.5}) for device in devices]
        table = SampleTable.from_samples(samples, devices, interval=1.0)
        return heat_figure(Overview.from_table(table, 10))["layout"]["yaxis"]["ticktext"]

    assert labels("nid001240", "nid001241") == ["…1240 0", "…1241 0"]
    assert labels("a0", "a1") == ["a0 0", "a1 0"]
    assert labels("nid1-node0000", "nid2-node0000") == ["…1-node0000 0", "…2-node0000 0"]


def test_the_papers_first_figure_begins_with_plain_utilization():
    titles = [note["text"] for note in time_series_figure(OVERVIEW)["layout"]["annotations"]]
    assert [title.partition(",")[0] for title in titles if title != "simulated"] == [
        "GPU utilization",
        "SM occupancy",
        "Memory bandwidth utilization",
        "SM activity",
        "Tensor activity",
        "NVLink bandwidth",
    ]
    lines = [trace for trace in time_series_figure(OVERVIEW)["data"] if trace["yaxis"] == "y"]
    assert [trace["name"] for trace in lines] == [f"GPU {n}" for n in range(4)]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in lines}) == 4


def test_score_and_losses_add_up_to_100_in_the_figure():
    (bar,) = score_figure(DOCUMENT)["data"]
    assert bar["y"][0] == "score"
    ends = [begin + length for begin, length in zip(bar["base"], bar["x"], strict=True)]
    assert bar["base"][1:] == pytest.approx(ends[:-1], abs=0.02)
    assert ends[-1] == pytest.approx(100, abs=0.3)


def test_the_shares_of_each_bucket_add_up_to_a_hundred():
    total = sum(SHARES.points.values())
    assert total[np.isfinite(total)] == pytest.approx(100, abs=0.1)
    score = sum(SHARES.points[name] for name in ("compute", "memory", "interconnect"))
    assert np.nanmean(score) == pytest.approx(JOB.total.score, abs=1.5)
    names = {trace["name"] for trace in shares_figure(SHARES.time_ns, SHARES.points)["data"]}
    assert {"compute", "unexplained"} <= names


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (["GPU 0", "GPU 1", "GPU 2"], 1),
        (["tensor active"] * 5, 3),
        (["communication"] * 13, 7),
        (["GPU 0 of nid001234, rank 0"] * 3, 3),
        ([], 0),
    ],
)
def test_a_title_is_above_as_many_lines_as_the_legend_takes_in_320_pixels(names: list[str], lines: int):
    plot = Plot("title", tuple({"name": name} for name in names))
    alone = Plot("title", plot.traces, legend=False)
    assert plot.header_pixels - alone.header_pixels == 19 * lines


def test_events_and_evidence_are_marked_where_they_are():
    events = [
        Event(START + 30 * 10**9, "n1", "xid", "GPU-1", "XID 79 <b>%{x}"),
        Event(START - 10**12, "n1", "throttle", "", "long ago"),
    ]
    marked = with_events(job_figure(OVERVIEW), events)
    # One in each plot: activity and temperature.
    assert {line["x0"] for line in marked["layout"]["shapes"]} == {START // 10**6 + 30_000}
    note = marked["layout"]["annotations"][-1]
    assert note["text"] == "✗"
    assert "<b>" not in note["hovertext"]
    plotly.graph_objects.Figure(marked)
    spanned = with_time_range(marked, START, START + 5 * 10**9)
    assert spanned["layout"]["shapes"][-1]["x1"] == START // 10**6 + 5000
    plotly.graph_objects.Figure(spanned)
    assert static_image(spanned) != static_image(marked)


def test_user_metrics_are_drawn_on_the_same_axis():
    times = START + np.arange(0, 180, 10) * 10**9
    rate = UserMetric("tokens_per_s", "n1", 0, times, times - START, np.linspace(1e4, 2e4, 18))
    for figure in (job_figure(OVERVIEW, metrics=UserMetrics((rate,))),):
        (own,) = [trace for trace in figure["data"] if trace["uid"] == "metrics/tokens_per_s/rank-0"]
        assert own["y"][-1] == 2e4
        axis = figure["layout"]["xaxis" + own["xaxis"][1:]]
        assert axis["matches"] == "x"
        assert axis["range"] == figure["layout"]["xaxis"]["range"]


def test_two_launches_at_a_time_are_two_lines_with_names():
    times = START + np.arange(0, 180, 10) * 10**9
    one, two = (
        UserMetric("loss", "n1", 0, times + n, times - START, np.full(18, float(n)), f"run/{n}")
        for n in (1, 2)
    )
    figure = job_figure(OVERVIEW, metrics=UserMetrics((one, two)))
    plotly.graph_objects.Figure(figure)
    own = [trace for trace in figure["data"] if trace["uid"].startswith("metrics/")]
    assert [(each["uid"], each["name"], set(each["y"]), each["showlegend"]) for each in own] == [
        ("metrics/loss/run/1/rank-0", "launch 1", {1.0}, True),
        ("metrics/loss/run/2/rank-0", "launch 2", {2.0}, True),
    ]
    assert own[0]["yaxis"] == own[1]["yaxis"]
    assert own[0]["line"]["color"] != own[1]["line"]["color"]
    assert own[0]["legend"] in figure["layout"]
    assert static_image(figure)


def test_runs_are_compared_from_their_own_beginnings():
    figure = compare_figure([("one", OVERVIEW), ("two", OVERVIEW)])
    midnight = 946_684_800_000
    assert {trace["x"][0] for trace in figure["data"]} == {midnight}
    assert {trace["x"][-1] - midnight for trace in figure["data"]} == {179_000}
    worse = {**DOCUMENT, "score": DOCUMENT["score"] - 10}
    rows = {row.name: row for row in compare_documents(DOCUMENT, worse, {"loss": (2.0, None)})}
    assert rows["score"].change == pytest.approx(-10)
    assert rows["score"].better is False
    assert rows["loss"].change is None
    assert all(row.better is None for name, row in rows.items() if name.endswith("binding"))


def test_a_pause_is_a_gap_and_a_late_sample_is_not():
    values = np.full(len(OVERVIEW.time_ns), 1.0)
    values[5] = np.nan
    values[20:40] = np.nan
    x, y = points(OVERVIEW, values)
    assert y.count(None) == 1
    assert len(x) == len(y) == len(values) - 21 + 1


def test_coarser_buckets_are_means_and_devices_can_be_selected():
    coarse = coarsened(OVERVIEW, 60)
    assert len(coarse.time_ns) <= 60
    fine = OVERVIEW.mean["SM_ACTIVE"][0]
    size = coarse.bucket_ns // OVERVIEW.bucket_ns
    assert coarse.mean["SM_ACTIVE"][0][0] == pytest.approx(np.nanmean(fine[:size]))
    (gpu,) = with_devices(OVERVIEW, {TABLE.gpus[2].uuid}).devices
    assert gpu == TABLE.gpus[2]


@pytest.mark.parametrize("gpus", [(), (TABLE.gpus[0].uuid,)], ids=["none", "one"])
@pytest.mark.parametrize("metric", ["SM_ACTIVE", "GPU_TEMP"])
def test_a_view_names_all_metrics_that_its_figures_show(gpus, metric):
    view = View(gpus=gpus, metric=metric, gauges=("FB_USED", "POWER_USAGE"))
    part = Overview.from_table(TABLE, 60, metrics=metrics_of(view))
    whole = Overview.from_table(TABLE, 60)
    assert set(part.mean) < set(whole.mean)
    drawn = figures_of(part, coarsened(part, 20), view, None)
    assert drawn == figures_of(whole, coarsened(whole, 20), view, None)
    assert len(drawn) == 5 + len(gpus)
