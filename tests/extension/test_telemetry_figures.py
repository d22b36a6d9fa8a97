"""Figures: valid for plotly, extended by a live view, and drawn as images without a browser."""

import io
import json
from pathlib import Path

import matplotlib.image
import numpy as np
import plotly.graph_objects
import pytest

from gipfel_extension.telemetry.figures.activity import (
    MetricsFeed,
    figure_delta,
    metric_rows,
    saturation_figure,
)
from gipfel_extension.telemetry.figures.image import static_image
from gipfel_extension.telemetry.figures.saved import saved_figure
from gipfel_extension.telemetry.metric_table import HOST_METRICS
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.sources.simulated import SyntheticSource
from gipfel_extension.telemetry.user_metrics import UserMetric, UserMetrics

START = 1_700_000_000 * 10**9
HOST = Device("host:n1", "host", "n1", None, node="n1", scope="job cgroup")
GPU = Device("GPU-1", "gpu", "NVIDIA H100 80GB", 3, node="n1")


class SetClock:
    now_ns = START

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


def host_sample(second: float) -> Sample:
    values = dict.fromkeys(HOST_METRICS)
    values.update(CPU_UTIL=0.25, MEMORY_USED=3e9, MEMORY_TOTAL=12e9, IO_READ_BYTES=5e6, IO_WRITE_BYTES=2e6)
    return Sample(START + int(second * 1e9), 0, HOST.uuid, values)


def gpu_sample(second: float, **values: float | None) -> Sample:
    return Sample(START + int(second * 1e9), 0, GPU.uuid, values)


def simulated(seconds: int = 60) -> SampleTable:
    clock = SetClock()
    source = SyntheticSource("training", clock=clock)
    samples = []
    for second in range(seconds):
        clock.now_ns = START + second * 10**9
        samples += [*source.read(), host_sample(second)]
    return SampleTable.from_samples(samples, (*source.devices, HOST), interval=1.0)


REAL = SampleTable.from_samples([gpu_sample(0, SM_ACTIVE=0.5), host_sample(0)], (HOST, GPU), interval=1.0)
EMPTY = SampleTable(columns={})
DEVICES_ONLY = SampleTable.from_samples([], (HOST, GPU))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(
    "table", [simulated(), REAL, EMPTY, DEVICES_ONLY], ids=["simulated", "real", "empty", "devices"]
)
def test_plotly_accepts_the_figure_and_json_holds_it(table, dark):
    figure = saturation_figure(table, window_s=60.0, dark=dark)
    again = json.loads(json.dumps(figure, allow_nan=False))
    assert again == figure
    plotted = plotly.graph_objects.Figure(figure)
    assert len(plotted.data) == len(figure["data"])


def test_a_row_for_each_gpu_then_the_hosts_two():
    figure = saturation_figure(simulated(), window_s=60.0)
    axes = [key for key in figure["layout"] if key.startswith("yaxis")]
    assert len(axes) == 6
    titles = [note["text"] for note in figure["layout"]["annotations"] if note["yref"].endswith("domain")]
    assert titles == [*(f"GPU {i} · simulated GPU" for i in range(4)), "Host n1", "I/O n1, MB/s"]
    assert [trace["uid"] for trace in figure["data"][:4]] == [
        f"GPU-simulated-training-0/{metric}"
        for metric in ("GPU_UTIL", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE")
    ]
    assert len({trace["uid"] for trace in figure["data"]}) == len(figure["data"]) == 20


def test_no_two_lines_of_a_row_share_a_colour_or_a_dash():
    for dark in (False, True):
        data = saturation_figure(simulated(), window_s=60.0, dark=dark)["data"]
        for axis in {trace["yaxis"] for trace in data}:
            lines = [trace["line"] for trace in data if trace["yaxis"] == axis]
            assert (
                len({line["dash"] for line in lines}) == len({line["color"] for line in lines}) == len(lines)
            )


def test_simulated_values_are_labeled_in_title_and_annotation():
    layout = saturation_figure(simulated(), window_s=60.0)["layout"]
    assert "simulated" in layout["title"]["text"]
    assert "simulated" in [note["text"] for note in layout["annotations"]]
    assert layout["meta"] == {"window_s": 60.0, "simulated": True}
    assert "simulated" not in json.dumps(saturation_figure(REAL, window_s=60.0)).replace(
        '"simulated": false', ""
    )


def test_values_are_in_per_cent_and_megabytes():
    traces = {trace["uid"]: trace for trace in saturation_figure(REAL, window_s=60.0)["data"]}
    assert traces["GPU-1/SM_ACTIVE"]["y"] == [50.0]
    assert traces["GPU-1/SM_ACTIVE"]["x"] == [START // 10**6]
    assert traces["GPU-1/DRAM_ACTIVE"]["y"] == [None]
    assert traces["host:n1/MEMORY_USED"]["y"] == [25.0]
    assert traces["host:n1/IO_READ_BYTES"]["y"] == [5.0]
    assert traces["host:n1/CPU_UTIL"]["hovertemplate"] == "CPU of the job cgroup %{y:.0f} %<extra></extra>"


def test_the_delta_continues_the_figure():
    later = [host_sample(2), gpu_sample(2, SM_ACTIVE=None), gpu_sample(1, SM_ACTIVE=0.25)]
    delta = figure_delta(later)
    assert delta["GPU-1/SM_ACTIVE"] == {
        "x": [START // 10**6 + 1000, START // 10**6 + 2000],
        "y": [25.0, None],
    }
    assert delta["host:n1/MEMORY_USED"]["y"] == [25.0]
    table = SampleTable.union((REAL, SampleTable.from_samples(later, (HOST, GPU))))
    whole = {trace["uid"]: trace for trace in saturation_figure(table, window_s=60.0)["data"]}
    assert set(delta) <= set(whole)
    for uid, trace in delta.items():
        assert whole[uid]["x"][1:] == trace["x"]
        assert whole[uid]["y"][1:] == trace["y"]


def test_a_pause_is_a_gap_and_not_a_line():
    samples = [gpu_sample(s, SM_ACTIVE=0.5) for s in (0, 1, 2, 30, 31)]
    table = SampleTable.from_samples(samples, [GPU], interval=1.0)
    trace = next(t for t in saturation_figure(table, window_s=60.0)["data"] if t["uid"] == "GPU-1/SM_ACTIVE")
    assert trace["y"] == [50.0, 50.0, 50.0, None, 50.0, 50.0]
    assert trace["connectgaps"] is False


def test_a_long_run_is_averaged_and_missing_stays_missing():
    samples = [gpu_sample(s, SM_ACTIVE=(s % 2) if s < 5000 else None) for s in range(10_000)]
    table = SampleTable.from_samples(samples, [GPU], interval=1.0)
    trace = next(t for t in saturation_figure(table, window_s=1e6)["data"] if t["uid"] == "GPU-1/SM_ACTIVE")
    assert len(trace["x"]) <= 1200
    known = [value for value in trace["y"] if value is not None]
    assert np.mean(known) == pytest.approx(50, abs=2)
    assert 0.4 < len(known) / len(trace["y"]) < 0.6


def test_the_window_ends_at_the_newest_sample():
    figure = saturation_figure(simulated(), window_s=20.0)
    last = START // 10**6 + 59_000
    assert figure["layout"]["xaxis"]["range"] == [last - 20_000, last]
    assert min(trace["x"][0] for trace in figure["data"]) >= last - 20_000


@pytest.mark.parametrize("width", [320, 900])
@pytest.mark.parametrize("dark", [False, True])
def test_the_image_is_drawn_without_a_browser(width, dark):
    figure = saturation_figure(simulated(), window_s=60.0, dark=dark)
    data = static_image(figure, width=width)
    assert data.startswith(b"\x89PNG")
    pixels = matplotlib.image.imread(io.BytesIO(data))
    assert pixels.shape[1] == pytest.approx(width * 1.5, abs=2)
    # Each line's colour is on the page, and most of the page is ground.
    for trace in figure["data"]:
        colour = [int(trace["line"]["color"][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (np.abs(pixels[..., :3] - colour).max(axis=2) < 0.06).any(), trace["uid"]
    ground = pixels[0, 0, :3]
    assert 0.6 < (np.abs(pixels[..., :3] - ground).max(axis=2) < 0.05).mean() < 0.99


@pytest.mark.parametrize("table", [EMPTY, DEVICES_ONLY, REAL], ids=["empty", "devices", "real"])
def test_the_image_of_little_is_not_blank(table):
    pixels = matplotlib.image.imread(
        io.BytesIO(static_image(saturation_figure(table, window_s=60.0), width=320))
    )
    assert np.ptp(pixels[..., :3]) > 0.5


def logged(
    name: str, values: list[float], *, rank: int | None = None, start: int = 0, launch: str = ""
) -> UserMetric:
    times = START + (start + np.arange(len(values))) * 10**9
    return UserMetric(name, "n1", rank, times, times - START, np.array(values), launch)


def test_every_launch_has_a_line_of_its_own_named_by_its_number():
    metrics = UserMetrics(
        (
            logged("loss", [1.0] * 50, rank=0, launch="run/1"),
            logged("loss", [7.0] * 50, rank=1, launch="run/1"),
            logged("loss", [2.0] * 50, rank=0, start=5, launch="run/2"),
            logged("loss", [3.0] * 50, start=8),
            logged("speed", [4.0] * 50, rank=0, start=5, launch="run/2"),
        )
    )
    figure = saturation_figure(simulated(60), window_s=60.0, metrics=metrics)
    plotly.graph_objects.Figure(figure)
    own = {trace["uid"]: trace for trace in figure["data"] if trace["uid"].startswith("metrics/")}
    assert [(uid, trace["name"], set(trace["y"])) for uid, trace in own.items()] == [
        ("metrics/loss/run/1/rank-0", "launch 1", {1.0}),
        ("metrics/loss/run/2/rank-0", "launch 2", {2.0}),
        ("metrics/loss", "outside of launches", {3.0}),
        ("metrics/speed/run/2/rank-0", "speed", {4.0}),
    ]
    # In one plot, with a legend, and apart for those who see no colours.
    (axis,) = {trace["yaxis"] for uid, trace in own.items() if "loss" in uid}
    lines = [trace["line"] for uid, trace in own.items() if "loss" in uid]
    assert len({line["color"] for line in lines}) == 3
    assert [trace["showlegend"] for trace in own.values()] == [True, True, True, False]
    assert own["metrics/loss"]["legend"] in figure["layout"]
    assert own["metrics/speed/run/2/rank-0"]["yaxis"] != axis
    titles = [note["text"] for note in figure["layout"]["annotations"]]
    assert "speed · launch 2" in titles
    assert any(title.startswith("loss") for title in titles)
    assert static_image(figure)


def test_lines_of_several_launches_and_ranks_are_named_alike():
    logs = [
        logged("loss", [1.0] * 9, rank=rank, start=launch, launch=f"run/{launch}")
        for launch in (1, 2)
        for rank in (0, 1)
    ]
    (row,) = metric_rows(UserMetrics(tuple(logs)))
    labels = [each.line.label for each in row.lines]
    assert labels == ["launch 1 · rank 0", "launch 2 · rank 0", "launch 2 · rank 1"]
    alone = logged("loss", [1.0] * 9, start=0)
    (row,) = metric_rows(UserMetrics((alone, *logs)))
    assert [each.line.label for each in row.lines] == ["outside of launches · no rank", *labels]


def test_newest_launches_are_drawn_and_labeled_with_their_run():
    many = UserMetrics(
        tuple(logged("loss", [1.0] * 9, start=n, launch=f"{'ab'[n % 2]}<b>/{n}") for n in range(20))
    )
    (row,) = metric_rows(many)
    assert [each.metric.launch[-2:] for each in row.lines] == ["14", "15", "16", "17", "18", "19"]
    assert row.row.title == "loss · the newest 6 of 20 launches"
    assert row.lines[0].line.label == "launch a_b>/14"
    assert len({(each.line.light, each.line.dash) for each in row.lines}) == 6


def test_user_metrics_are_rows_on_the_same_axis():
    table = simulated(60)
    metrics = UserMetrics(
        (
            logged("step", list(range(60))),
            logged("loss", [1.0] * 30 + [float("nan")] + [2.0] * 29, rank=1),
            logged("loss", [5.0] * 60, rank=0),
            logged("tokens/<b>s", [2e5] * 60),
            logged("old", [1.0], start=-600),
        )
    )
    plain = saturation_figure(table, window_s=60.0)
    figure = saturation_figure(table, window_s=60.0, metrics=metrics)
    plotly.graph_objects.Figure(figure)
    json.dumps(figure, allow_nan=False)
    own = [trace for trace in figure["data"] if trace["uid"].startswith("metrics/")]
    assert [(trace["uid"], trace["name"]) for trace in own] == [
        ("metrics/loss/rank-0", "rank 0"),
        ("metrics/loss/rank-1", "rank 1"),
        ("metrics/tokens/<b>s", "tokens/_b>s"),
    ]
    assert [set(own[0]["y"]), set(own[1]["y"])] == [{5.0}, {1.0, None, 2.0}]
    assert own[0]["yaxis"] == own[1]["yaxis"]
    assert own[0]["x"][0] == START // 10**6
    assert len(figure["data"]) == len(plain["data"]) + 3
    rows = sum(key.startswith("yaxis") for key in figure["layout"])
    assert rows == sum(key.startswith("yaxis") for key in plain["layout"]) + 2
    titles = [note["text"] for note in figure["layout"]["annotations"]]
    assert "loss" in titles
    assert figure["layout"]["height"] > plain["layout"]["height"]
    missing = saturation_figure(table, window_s=60.0, metrics=UserMetrics((metrics.series[1],)))["data"][-1]
    assert missing["y"].count(None) == 1
    image = matplotlib.image.imread(io.BytesIO(static_image(figure)))
    assert image.shape[0] == round(figure["layout"]["height"] * 1.5)


def test_seldom_logged_values_are_joined_and_few_metrics_are_drawn():
    metrics = UserMetrics(tuple(logged(name, [1.0, -2.0]) for name in "abcdef"))
    assert [each.row.title for each in metric_rows(metrics)] == ["a", "b", "c"]
    seldom = UserMetric("loss", "n1", None, np.array([START, START + 50 * 10**9]), np.zeros(2), np.ones(2))
    (trace,) = [
        each
        for each in saturation_figure(simulated(60), window_s=60, metrics=UserMetrics((seldom,)))["data"]
        if each["uid"] == "metrics/loss"
    ]
    assert trace["y"] == [1.0, 1.0]


def write(path: Path, second: int, rank: int | None = None, launch: str = "", **values: float | None) -> None:
    """Append a line, as `log` does."""
    line = {"time_ns": START + second * 10**9, "monotonic_ns": second, "node": "n", "rank": rank}
    with path.open("a") as file:
        file.write(json.dumps({**line, "launch": launch, "values": values}) + "\n")


def test_a_live_view_gets_each_point_once_and_a_figure_for_a_new_metric(tmp_path):
    path = tmp_path / "metrics.jsonl"
    feed = MetricsFeed(path)
    assert feed.all_metrics().series == ()
    assert feed.new_points() == {}
    write(path, 0, loss=1.0)
    assert feed.new_points() is None
    assert feed.all_metrics().names == ("loss",)
    write(path, 1, loss=None)
    write(path, 2, loss=3.0)
    assert feed.new_points() == {
        "metrics/loss": {"x": [START // 10**6 + 1000, START // 10**6 + 2000], "y": [None, 3.0]}
    }
    assert feed.new_points() == {}
    write(path, 3, speed=1.0)
    assert feed.new_points() is None


def test_second_launch_in_a_live_view_needs_a_new_figure(tmp_path):
    path = tmp_path / "metrics.jsonl"
    feed = MetricsFeed(path)
    write(path, 0, 0, "run/1", loss=1.0)
    feed.all_metrics()
    write(path, 1, 0, "run/2", loss=5.0)
    assert feed.new_points() is None
    feed.all_metrics()
    write(path, 2, 0, "run/1", loss=2.0)
    write(path, 3, 0, "run/2", loss=6.0)
    new = feed.new_points()
    assert new is not None
    assert {uid: points["y"] for uid, points in new.items()} == {
        "metrics/loss/run/1/rank-0": [2.0], "metrics/loss/run/2/rank-0": [6.0]
    }  # fmt: skip


def test_ranks_that_log_one_after_the_other_are_a_line_each_live_and_after_a_reload(tmp_path):
    """The second rank begins when the first is drawn: its points must not extend the first one's line."""
    path = tmp_path / "metrics.jsonl"
    feed = MetricsFeed(path)
    write(path, 0, 1, "run/4", loss=9.0, step=0, total_steps=60)
    feed.all_metrics()
    write(path, 1, 0, "run/4", loss=5.0, step=1, total_steps=60)
    assert feed.new_points() is None
    (row,) = metric_rows(feed.all_metrics())
    assert row.row.title == "loss · launch 4"
    assert [(each.line.label, each.metric.values.tolist()) for each in row.lines] == [
        ("rank 0", [5.0]),
        ("rank 1", [9.0]),
    ]
    write(path, 2, 1, "run/4", loss=8.0, step=2, total_steps=60)
    write(path, 3, 0, "run/4", loss=4.0, step=3, total_steps=60)
    new = feed.new_points()
    assert new is not None
    assert {uid: points["y"] for uid, points in new.items()} == {
        "metrics/loss/run/4/rank-0": [4.0],
        "metrics/loss/run/4/rank-1": [8.0],
    }
    assert [each.uid for each in metric_rows(MetricsFeed(path).all_metrics())[0].lines] == sorted(new)


def test_first_ranks_of_many_are_drawn_and_named_in_the_title():
    many = UserMetrics(tuple(logged("loss", [1.0] * 9, rank=rank, launch="a/1") for rank in range(64)))
    (row,) = metric_rows(many)
    assert [each.metric.rank for each in row.lines] == list(range(8))
    assert row.row.title == "loss · launch 1 · the first 8 of 64 ranks"
    assert len({(each.line.light, each.line.dash) for each in row.lines}) == 8


def test_saved_figure_is_coarser_and_keeps_gaps():
    seconds = [second for second in range(600) if not 200 <= second < 260]
    samples = [gpu_sample(second + second % 3 / 100, SM_ACTIVE=second / 600) for second in seconds]
    table = SampleTable.from_samples(samples, (GPU,), interval=1.0)
    fine = saturation_figure(table, window_s=600)
    saved = saved_figure(fine)
    (line,) = (trace for trace in saved["data"] if trace["uid"].endswith("/SM_ACTIVE"))
    assert "x" not in line
    assert len(line["y"]) <= 81
    for place, value in enumerate(line["y"]):
        second = (line["x0"] + place * line["dx"] - START / 1e6) / 1000
        paused = 204 < second < 256
        assert value is None if paused else value is None or abs(value - second / 6) < 1.5
    assert sum(value is None for value in line["y"]) <= 10
    assert static_image(saved)[:4] == b"\x89PNG"
    assert plotly.graph_objects.Figure(saved["data"], saved["layout"])


def test_saved_figure_keeps_times_of_irregular_metrics():
    x = [0, 10, 5000, 5010, 60_000, 60_010, 200_000]
    trace = {"type": "scatter", "uid": "metrics/loss", "x": x, "y": [3.14159, 3, 2, None, 1, 1, 0.5]}
    ((saved),) = saved_figure({"data": [trace], "layout": {}})["data"]
    assert saved["x"] == x
    assert saved["y"] == [3.14, 3, 2, None, 1, 1, 0.5]
