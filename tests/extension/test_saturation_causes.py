"""Causes on shapes with a known cause: a reduced sample of the campaign, and its assumptions."""

import causes
import numpy as np
import pytest
from intervals import wilson
from run import run
from workloads import SHAPES

#: Those written last are for the campaign alone: a test of them would be met by changing rules.
SEEN = [name for name, shape in SHAPES.items() if causes.held_out(shape) != "later"]


@pytest.mark.parametrize("name", SEEN)
def test_no_shape_gets_a_wrong_cause_or_advice(name):
    found = causes.measure(SHAPES[name], seed=20, draws=1)
    assert found["wrong"] == 0, found["seen"]
    assert found["in range"] == 1


def test_a_third_of_the_shapes_is_held_out():
    assert len(SEEN) >= 60
    assert 0.3 <= np.mean([bool(causes.held_out(shape)) for shape in SHAPES.values()]) <= 0.5


def test_shapes_are_drawn_alike_from_the_same_seed_only():
    shape = SHAPES["matmul-bf16"]
    assert causes.measure(shape, 1, 2) == causes.measure(shape, 1, 2)
    first, second = (shape.draw(np.random.default_rng(seed)).seconds for seed in (1, 2))
    assert first != second


def test_a_campaign_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("run.BUILD", tmp_path)
    said: list[str] = []
    first, _ = run("causes", 3, 1, only="matmul-bf16", workers=1, report=said.append)
    second, rows = run("causes", 3, 1, only="matmul-", workers=1, report=said.append)
    assert first["matmul-bf16"] == second["matmul-bf16"]
    assert sum("matmul-bf16:" in each for each in said) == 1
    assert {row["name"].split(":")[0] for row in rows} == {"causes"}


def test_an_interval_of_a_share():
    low, high = wilson(0, 1000)
    assert low == 0.0
    assert high == pytest.approx(0.0038, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
