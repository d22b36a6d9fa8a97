"""Queue of updates for one page."""

import asyncio

import pytest
from pydantic import ValidationError
from simulated_tables import START, simulated

from gipfel_extension.server.analysis import AnalysisResult
from gipfel_extension.server.broadcast import MAX_WAITING, FeedUpdate, Page, Pending
from gipfel_extension.server.views import BUCKETS, HEAT_BUCKETS, JobMeans, LiveView, View, figures_of
from gipfel_extension.telemetry.figures.lines import coarsened
from gipfel_extension.telemetry.sample import Device, Sample
from gipfel_extension.telemetry.store.overview import Overview

GPUS = [Device(f"GPU-{n}", "gpu", "x", n, node=f"n{n}") for n in range(3)]
HOST = Device("host:n0", "host", "n0", None, node="n0")


def event(number: int) -> FeedUpdate:
    return FeedUpdate({"last_ns": number}, (), ())


def gpu(number: int, second: float, value: float | None) -> Sample:
    return Sample(START + int(second * 1e9), 0, GPUS[number].uuid, {"SM_ACTIVE": value})


def test_a_page_that_keeps_up_gets_every_event_in_order():
    page = Page(View())
    for number in range(MAX_WAITING):
        page.put(event(number))
    taken = asyncio.run(page.take())
    assert taken == Pending([event(number) for number in range(MAX_WAITING)])


def test_a_page_that_is_too_slow_is_told_so_once_and_goes_on_from_the_newest():
    page = Page(View())
    for number in range(MAX_WAITING + 2):
        page.put(event(number))
    taken = asyncio.run(page.take())
    assert taken == Pending([event(MAX_WAITING), event(MAX_WAITING + 1)], lost=True)


def test_a_page_waits_for_an_event_a_score_or_another_look():
    async def read():
        page = Page(View())
        loop = asyncio.get_running_loop()
        score = AnalysisResult(600.0, {"score": 1}, ())
        for call, argument, expected in (
            (page.put, event(7), Pending([event(7)])),
            (page.set_analysed, score, Pending(analysed=score)),
            (page.set_view, View(window=60), Pending(view_changed=True)),
        ):
            loop.call_later(0.05, call, argument)
            assert await asyncio.wait_for(page.take(), 5) == expected
            # Taken once, it waits again.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(page.take(), 0.05)
        return page.view.window

    assert asyncio.run(read()) == 60


def test_the_jobs_points_are_means_of_a_beat_that_is_over():
    means = JobMeans()
    assert means.add([gpu(0, 0.1, 0.2), gpu(1, 0.4, 0.6)], GPUS, 1.0) == {}
    # One node is late, one says nothing, and one value is missing.
    assert means.add([gpu(2, 0.9, None)], GPUS, 1.0) == {}
    points = means.add([gpu(0, 1.1, 0.5)], GPUS, 1.0)
    assert points == {"job/SM_ACTIVE": {"x": [START // 10**6], "y": [40.0]}}
    # Later still it belongs into the next whole figure.
    assert means.add([gpu(1, 0.95, 1.0)], GPUS, 1.0) == {}


def test_hosts_have_means_and_sums():
    other = Device("host:n1", "host", "n1", None, node="n1")
    samples = [
        Sample(
            START,
            0,
            each.uuid,
            {"CPU_UTIL": 0.5, "MEMORY_USED": 1.0, "MEMORY_TOTAL": 4.0, "IO_READ_BYTES": 1e6},
        )
        for each in (HOST, other)
    ]
    means = JobMeans()
    means.add(samples, [HOST, other], 1.0)
    points = means.add([Sample(START + 10**9, 0, HOST.uuid, {})], [HOST, other], 1.0)
    assert {uid: each["y"] for uid, each in points.items()} == {
        "job/CPU_UTIL": [50.0],
        "job/MEMORY_USED": [25.0],
        "job/IO_READ_BYTES": [2.0],
    }


def test_a_view_gets_each_point_once_and_only_of_the_gpus_that_it_shows():
    table = simulated(30)
    shown, hidden = table.gpus[0].uuid, table.gpus[1].uuid
    view = View(gpus=(shown, "GPU-that-is-gone"), metric="DRAM_ACTIVE")
    overview = Overview.from_table(table, BUCKETS)
    figures = figures_of(overview, coarsened(overview, HEAT_BUCKETS), view, None)
    assert set(figures) == {"job", "host", "heat", f"gpu/{shown}"}
    live = LiveView(view)
    live.record_drawn(figures, {gpu.uuid: table.last_ns for gpu in table.gpus})
    values = {"SM_ACTIVE": 0.5, "DRAM_ACTIVE": 0.25, "SM_CLOCK": None}
    old = [Sample(table.last_ns, 0, shown, values)]
    new = [Sample(table.last_ns + 10**9, 0, uuid, values) for uuid in (shown, hidden)]
    job = {"job/SM_ACTIVE": {"x": [START // 10**6, table.last_ns // 10**6 + 1000], "y": [1.0, 2.0]}}
    new_points = live.new_points([*old, *new], job, {"metrics/loss": {"x": [1], "y": [1.0]}})
    time = table.last_ns // 10**6 + 1000
    assert new_points["traces"] == {
        "job/SM_ACTIVE": {"x": [time], "y": [2.0]},
        f"{shown}/SM_ACTIVE": {"x": [time], "y": [50.0]},
        f"{shown}/DRAM_ACTIVE": {"x": [time], "y": [25.0]},
        f"{shown}/SM_CLOCK": {"x": [time], "y": [None]},
    }
    assert new_points["cells"]["row"] == [0, 0, 1]
    assert new_points["cells"]["y"] == [25.0, 25.0, 25.0]
    assert "traces" not in live.new_points([], job, {})


@pytest.mark.parametrize(
    "view",
    [
        {"window": float("inf")},
        {"window": 1},
        {"metric": "PIPE"},
        {"gpus": ["a"] * 65},
        {"gpus": ["a\nb"]},
        {"more": 1},
    ],
)
def test_a_view_that_is_none_is_refused(view):
    with pytest.raises(ValidationError):
        View.model_validate(view)
