"""The table of a measurement."""

import json

import numpy as np

from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.sources.simulated import SyntheticSource
from gipfel_widgets import SaturationPlot, SaturationSummary

GPU = Device("GPU-1", "gpu", "NVIDIA <GH200>", 0)


def _table(values, device=GPU):
    samples = [Sample(1_000_000_000 * n, n, device.uuid, each) for n, each in enumerate(values)]
    return SampleTable.from_samples(samples, [device], source="nvml", interval=1.0)


def test_mean_p10_and_maximum_of_what_was_known():
    actives = [0.1, None, 0.5, 0.9]
    summary = SaturationSummary.of(_table([{"SM_ACTIVE": value} for value in actives]), seconds=4)
    (row,) = summary.rows
    assert (row.metric, row.samples, row.unit) == ("SM_ACTIVE", 3, "1")
    assert np.allclose((row.mean, row.p10, row.max), (0.5, 0.18, 0.9))
    assert "SM_ACTIVE" in str(summary)
    assert "90.0" in str(summary)


def test_a_metric_that_was_never_known_has_no_row():
    summary = SaturationSummary.of(_table([{"GPU_UTIL": 0.0, "SM_ACTIVE": None}]), seconds=1)
    assert [row.metric for row in summary.rows] == ["GPU_UTIL"]


def test_bytes_are_scaled_alike_in_a_row():
    summary = SaturationSummary.of(_table([{"FB_USED": 5e8}, {"FB_USED": 4e10}]), seconds=1)
    line = str(summary).splitlines()[-1].split()
    assert line[-4:] == ["20.2", "4.5", "40.0", "GB"]


def test_an_empty_table_says_so_in_both_forms():
    summary = SaturationSummary.of(SampleTable(columns={}), seconds=3)
    assert "nothing was recorded" in str(summary)
    assert "nothing was recorded" in summary._repr_html_()


def test_names_are_text_not_markup():
    odd = Device("<b>GPU</b>", "gpu", "x", None)
    page = SaturationSummary.of(_table([{"GPU_UTIL": 1.0}], odd), seconds=1)._repr_html_()
    assert "<b>" not in page


def test_a_plot_has_its_own_ground_and_every_form():
    plot = SaturationPlot(_table([{"SM_ACTIVE": 0.5}, {"SM_ACTIVE": 0.6}]), window_s=10, dark=True)
    assert plot.figure["layout"]["paper_bgcolor"] == "#212121"
    assert plot.png().startswith(b"\x89PNG")
    assert repr(plot) == "GPU and host activity: 1 GPU, 2 samples."


def test_plotly_accepts_the_figure():
    import plotly.graph_objects as go  # noqa: PLC0415 - slow, and for this alone

    plot = SaturationPlot(_table([{"SM_ACTIVE": 0.5}, {"SM_ACTIVE": 0.6}]), window_s=10)
    assert len(go.Figure(plot.figure).data) == 4


class _SetClock:
    now_ns = 1_700_000_000 * 10**9

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


def test_ten_minutes_of_four_gpus_take_100_kb_of_a_notebook():
    clock = _SetClock()
    source = SyntheticSource("training", clock=clock)
    samples = []
    for second in range(600):
        clock.now_ns += 10**9 + second % 7 * 10**6
        samples += source.read()
    table = SampleTable.from_samples(samples, source.devices, interval=1.0)
    data = SaturationPlot(table, window_s=600)._repr_mimebundle_()
    # As nbformat writes it, each number on a line of its own.
    notebook = {"cells": [{"outputs": [{"data": data}]}]}
    assert len(json.dumps(notebook, indent=1)) < 100_000
