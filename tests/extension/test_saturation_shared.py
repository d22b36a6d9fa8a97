"""The mean SM activity that a server shares with its hub."""

from typing import Any

import numpy as np
import pytest

from gipfel_extension.server.analysis import mean_activity
from gipfel_extension.telemetry.sample import Device, SampleTable

_S = 10**9


def table(times_s: list[float], *values: list[float]) -> SampleTable:
    devices = tuple(
        Device(uuid=f"GPU-{n}", kind="gpu", name="GPU", node="n", index=n) for n in range(len(values))
    )
    columns: dict[str, Any] = {
        device.uuid: {
            "time_ns": np.array([int(each * _S) for each in times_s], np.int64),
            "SM_ACTIVE": np.array(each_values),
        }
        for device, each_values in zip(devices, values, strict=True)
    }
    return SampleTable(devices=devices, columns=columns)


def test_each_part_is_the_mean_of_all_gpus() -> None:
    shared = mean_activity(table([2, 4, 8, 10], [0.0, 0.2, 1.0, 1.0], [0.4, 0.2, 0.5, 0.5]), 10, 2)
    assert shared == [pytest.approx(0.2), pytest.approx(0.75)]


def test_a_part_without_a_sample_is_a_gap_and_no_zero() -> None:
    assert mean_activity(table([1, 10], [0.5, float("nan")]), 10, 2) == [0.5, None]


def test_nothing_is_shared_without_samples() -> None:
    assert mean_activity(SampleTable(), 10, 2) == []
    assert mean_activity(table([5], [float("nan")]), 10, 2) == []


def test_samples_before_the_period_do_not_count() -> None:
    assert mean_activity(table([0, 100], [1.0, 0.25]), 10, 1) == [0.25]
