"""The Python half of the live view, on real recordings."""

import base64
import threading
import time

import pytest

from gipfel_widgets import Saturation, log

WIDGET = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"


def _followers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gipfel-widget"]


@pytest.fixture
def watch():
    """Makes views that note what they send to the page, and closes them."""
    views = []

    class Noting(Saturation):
        def __init__(self, *given, **named):
            self.sent = []
            super().__init__(*given, **named)
            views.append(self)

        def send(self, content, buffers=None):
            self.sent.append((content, buffers))

    yield Noting
    for view in views:
        view.close()
    assert _followers() == []


def test_points_arrive_once_and_in_order(recording, watch, wait_for):
    work = recording("synthetic:training")
    view = watch(60, work.run)
    wait_for(lambda: len(view.sent) >= 3)
    work.stop()
    view.stop()
    drawn = {trace["uid"]: list(trace["x"]) for trace in view.figure["data"]}
    got = {uid: [] for uid in drawn}
    for content, _ in view.sent:
        assert content["type"] == "samples"
        for uid, points in content["traces"].items():
            got[uid] += points["x"]
    assert len(drawn) == 16
    for uid, times in got.items():
        assert times == sorted(set(times))
        assert set(times) <= set(drawn[uid])
        assert len(times) >= 5


def test_status_says_live_and_simulated(recording, watch, wait_for):
    view = watch(60, recording("synthetic:training").run)
    wait_for(lambda: view.status["state"] == "live")
    assert view.status["simulated"] is True
    assert view.status["gpus"] == 4
    assert set(view.dark_colours) >= {"SM_ACTIVE", "CPU_UTIL"}


def test_a_new_device_brings_a_new_figure(recording, watch, wait_for):
    host = recording("host")
    view = watch(60, host.run)
    wait_for(lambda: view.status["state"] == "live")
    assert len(view.figure["data"]) == 4
    other = recording("synthetic:training")
    other.stop()
    for path in other.run.telemetry.iterdir():
        (host.run.telemetry / path.name).write_bytes(path.read_bytes())
    # Its recorder ended, so that it is shown only once nothing else runs.
    host.stop()
    wait_for(lambda: len(view.figure["data"]) == 20, 15)


def test_the_environment_names_the_run(recording, watch, wait_for, monkeypatch):
    run = recording("host").run
    monkeypatch.setenv("GIPFEL_RUN", str(run.path))
    monkeypatch.setenv("GIPFEL_SOCKETS", str(run.sockets))
    for view in (watch(), watch(run=str(run.path))):
        wait_for(lambda view=view: view.status["state"] == "live" and view.sent)


def test_the_output_holds_widget_figure_and_image(recording, watch):
    view = watch(60, recording("synthetic:training").run)
    bundle, _ = view._repr_mimebundle_()
    assert bundle[WIDGET]["model_id"] == view.model_id
    assert bundle[PLOTLY]["data"]
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert "simulated" in bundle["text/plain"]


def test_a_stopped_view_leaves_the_picture_alone(recording, watch):
    work = recording("synthetic:training")
    view = watch(60, work.run)
    time.sleep(0.5)
    view.stop()
    view.stop()
    assert _followers() == []
    bundle, _ = view._repr_mimebundle_()
    assert set(bundle) == {PLOTLY, "image/png", "text/plain"}
    assert bundle[PLOTLY]["data"][0]["y"]
    assert view.status["state"] == "stale"


def test_a_page_without_plotly_is_sent_an_image(recording, watch, wait_for):
    view = watch(60, recording("host").run)
    view._handle_custom_msg({"type": "image"}, [])
    content, buffers = next((c, b) for c, b in view.sent if c["type"] == "image")
    assert content == {"type": "image"}
    assert buffers[0].startswith(b"\x89PNG")


def test_a_page_that_opens_later_gets_the_figure_as_it_is(recording, watch, wait_for):
    view = watch(60, recording("host").run)
    wait_for(lambda: len(view.sent) >= 2)
    points = len(view.figure["data"][0]["x"])
    view._handle_custom_msg({"type": "figure"}, [])
    wait_for(lambda: len(view.figure["data"][0]["x"]) > points)


def test_a_run_of_the_past_is_shown(recording, watch):
    work = recording("synthetic:training")
    time.sleep(0.4)
    work.stop()
    view = watch(60, work.run.path)
    assert view.status["state"] == "stale"
    assert "ended" in view.status["message"]
    assert view.figure["data"][0]["x"]


@pytest.mark.parametrize("run", [None, "/nowhere/at-all"])
def test_no_run_is_a_sentence(watch, run):
    view = watch(run=run)
    assert view.status["state"] == "absent"
    assert view.status["message"].endswith(".")
    assert "nothing was recorded" in repr(view)
    assert view._repr_mimebundle_()[0][PLOTLY]["layout"]["annotations"]
    assert _followers() == []


def test_the_browser_half_is_small():
    assert len(str(Saturation._esm).encode()) < 55_000
    assert len(str(Saturation._css).encode()) < 10_000


def test_what_is_logged_is_drawn_beside_and_comes_once(recording, watch, wait_for, monkeypatch):
    work = recording("synthetic:training")
    monkeypatch.setenv("GIPFEL_RUN", str(work.run.path))
    log(step=0, loss=3.0)
    view = watch(60, work.run)
    (drawn,) = [trace for trace in view.figure["data"] if trace["uid"] == "metrics/loss"]
    assert drawn["y"] == [3.0]
    got: list[float] = []
    for step in range(1, 4):
        log(step=step, loss=3.0 - step)
        wait_for(
            lambda step=step: any(
                3.0 - step in c["traces"].get("metrics/loss", {"y": []})["y"] for c, _ in view.sent
            )
        )
    for content, _ in view.sent:
        got += content["traces"].get("metrics/loss", {"y": []})["y"]
    assert got == [2.0, 1.0, 0.0]
    log(speed=9.0)
    wait_for(lambda: any(trace["uid"] == "metrics/speed" for trace in view.figure["data"]))
    view.stop()
    still = view._repr_mimebundle_()[0][PLOTLY]
    assert {"metrics/loss", "metrics/speed"} <= {trace["uid"] for trace in still["data"]}
    work.stop()
    assert work.metrics().find("loss").values.tolist() == [3.0, 2.0, 1.0, 0.0]
    assert "metrics/loss" in {trace["uid"] for trace in work.figure().figure["data"]}
