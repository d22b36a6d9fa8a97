"""Roofline of a run: a rate at the peak lies on the roof, and without the metrics the figure says why."""

import numpy as np
import pytest

from gipfel_extension.job.roofline import roof_of, roofline_figure
from gipfel_extension.job.rows import DeviceRow
from gipfel_extension.telemetry.figures.image import static_image
from gipfel_extension.telemetry.figures.saved import saved_figure
from gipfel_extension.telemetry.sample import Device
from gipfel_extension.telemetry.store.overview import Overview

_NAME = "NVIDIA H100 80GB HBM3"


def _overview(name: str = _NAME, **metrics: list[list[float]]) -> Overview:
    devices = tuple(Device(f"GPU-{i}", "gpu", name, i, "nid001") for i in range(2))
    values = {metric: np.array(rows) for metric, rows in metrics.items()}
    counts = {metric: np.ones(rows.shape, np.int64) for metric, rows in values.items()}
    return Overview(devices, np.array([0, 60 * 10**9]), 60 * 10**9, values, counts)


_ROWS = [DeviceRow(i, f"GPU-{i}", f"rank {i} · GPU {i}", "nid001", rank=i) for i in range(2)]


def test_rates_are_shares_of_the_data_sheet_at_the_recorded_clock() -> None:
    roof = roof_of(_NAME)
    assert roof is not None
    assert (roof.tensor, roof.memory) == (989e12, 3350e9)
    figure = roofline_figure(
        _overview(
            PIPE_TENSOR_ACTIVE=[[1.0, 1.0], [0.5, 0.5]],
            DRAM_ACTIVE=[[0.5, 0.5], [1.0, float("nan")]],
            SM_CLOCK=[[990.0] * 2, [1980.0] * 2],
            MAX_SM_CLOCK=[[1980.0] * 2] * 2,
        ),
        _ROWS,
        ["GPU-1"],
    )
    by_uid = {trace["uid"]: trace for trace in figure["data"]}
    # Both compute at half of the peak: one at half of the clock, one half of the time.
    assert by_uid["roof/gpus"]["y"] == [pytest.approx(np.log10(989e12 / 2), abs=1e-3)]
    assert by_uid["roof/gpus"]["x"] == [pytest.approx(np.log10(989e12 / 3350e9), abs=1e-3)]
    assert by_uid["roof/chosen"]["x"] == [pytest.approx(np.log10(989e12 / 2 / 3350e9), abs=1e-3)]
    assert len(by_uid["roof/time"]["x"]) == 2
    sheet = by_uid[f"roof/{_NAME}/data sheet"]
    assert (sheet["x"][1], sheet["y"][1]) == pytest.approx((np.log10(989e12 / 3350e9), 14.995), abs=1e-3)
    (sources,) = figure["layout"]["meta"]["sources"]
    assert "NVIDIA H100 data sheet" in sources
    assert "MAMF" in sources
    assert saved_figure(figure)["data"] == figure["data"]
    assert static_image(figure).startswith(b"\x89PNG")


def test_what_nvml_alone_records_does_not_allow_it_and_the_figure_says_why() -> None:
    figure = roofline_figure(_overview(GPU_UTIL=[[1.0, 1.0]] * 2), _ROWS)
    (note,) = figure["layout"]["annotations"]
    assert "PIPE_TENSOR_ACTIVE and DRAM_ACTIVE were not recorded" in note["text"]
    assert "GPM" in note["text"]
    unknown = _overview("Acme <b>X</b>", PIPE_TENSOR_ACTIVE=[[1.0, 1.0]] * 2, DRAM_ACTIVE=[[1.0, 1.0]] * 2)
    (note,) = roofline_figure(unknown, _ROWS)["layout"]["annotations"]
    assert "peak rates of Acme _b>X" in note["text"]
