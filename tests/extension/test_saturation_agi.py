"""The public AGI formula, against the reference's check values."""

import numpy as np
import pytest
from saturation_tables import busy, gpu, table

from gipfel_extension.saturation import score_table
from gipfel_extension.saturation.score import agi

CHECKED = [
    ((1.0, 1.0, 0.0), 0.772103),
    ((1.0, 0.0, 1.0), 0.913251),
    ((1.0, 0.0, 0.0), 0.0),
    ((0.0, 1.0, 1.0), 0.0),
    ((1.0, 0.5, 0.5), 0.649863),
    ((0.8, 0.3, 0.3), 0.441390),
    ((0.5, 0.25, 0.2), 0.323303),
    ((1.0, 0.1, 0.6), 0.729739),
]


@pytest.mark.parametrize(("sample", "expected"), CHECKED)
def test_check_values(sample, expected):
    active, occupancy, flops = (np.array([value]) for value in sample)
    assert float(agi(active, flops, occupancy)[0]) == pytest.approx(expected, abs=5e-7)


def test_it_stands_beside_the_score_and_is_absent_where_a_metric_is():
    whole = table({gpu(): busy(tensor=0.3, active=0.8, SM_OCCUPANCY=0.3)}, length=4)
    assert score_table(whole).gpus[0].agi == pytest.approx(0.441390, abs=5e-7)
    assert score_table(table({gpu(): busy()}, length=4)).gpus[0].agi is None
