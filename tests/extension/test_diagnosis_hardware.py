"""Why a rank is slow, from samples of its GPU beside its peers': on made samples, no claim about a GPU."""

import numpy as np
import pytest
from diagnosis_steps import START_NS, roles, table, work
from saturation_tables import gpu
from saturation_tables import table as samples_table

from gipfel_extension.diagnosis import Roles, diagnose

PEERS = {
    "SM_CLOCK": 1900.0,
    "PIPE_TENSOR_ACTIVE": 0.50,
    "GR_ENGINE_ACTIVE": 1.0,
    "SM_ACTIVE": 0.9,
    "CLOCKS_EVENT_REASONS": 0.0,
}
GPUS = {rank: [gpu(rank).uuid] for rank in range(8)}
CASES = {
    "clock": {"SM_CLOCK": 1500.0, "PIPE_TENSOR_ACTIVE": 0.63, "CLOCKS_EVENT_REASONS": 0x40},
    "more_work": {"PIPE_TENSOR_ACTIVE": 0.62, "SM_ACTIVE": 0.95},
    "host": {"GR_ENGINE_ACTIVE": 0.7, "SM_ACTIVE": 0.65, "PIPE_TENSOR_ACTIVE": 0.50},
    "slow_rank": {},
}


def samples(odd: dict[str, float], rank: int = 3, length: int = 120):
    rng = np.random.default_rng(1)
    series = {}
    for each in range(8):
        values = {**PEERS, **(odd if each == rank else {})}
        series[gpu(each)] = {
            name: value if name == "CLOCKS_EVENT_REASONS" else value * np.exp(rng.normal(0, 0.01, length))
            for name, value in values.items()
        }
    return samples_table(series, length=length)


def slow_steps():
    """Steps of eight ranks, the fourth of which is slow, on the clock of the samples."""
    seconds = work(8, 100)
    seconds[3] *= 1.25
    steps = table(seconds)
    offset = START_NS - int(samples({})[gpu(0).uuid]["time_ns"][0])
    return type(steps)(steps.ranks, steps.steps, steps.time_ns - offset, steps.step_s, steps.work_s)


@pytest.mark.parametrize("kind", CASES)
def test_samples_explain_a_slow_rank(kind):
    found = diagnose(slow_steps(), roles(8), samples=lambda: samples(CASES[kind]), gpus=GPUS)
    (verdict,) = found.verdicts
    assert (verdict.kind, verdict.ranks) == (kind, (3,))
    if kind == "clock":
        assert "heat or power" in verdict.evidence
    if kind == "slow_rank":
        assert "no cause" in verdict.evidence


def test_samples_are_only_read_where_a_verdict_may_gain_from_them():
    def never():
        raise AssertionError("nothing was slow")

    assert diagnose(table(work(8)), roles(8), samples=never, gpus=GPUS).verdicts == ()


@pytest.mark.parametrize("kind", ["clock", "more_work", "host"])
def test_without_steps_samples_alone_say_it(kind):
    found = diagnose(None, roles(8), samples=lambda: samples(CASES[kind], length=150), gpus=GPUS)
    (verdict,) = found.verdicts
    assert (verdict.kind, verdict.ranks) == (kind, (3,))


def test_samples_that_are_alike_or_lack_roles_accuse_nobody():
    for known, reason in ((roles(8), "no rank whose GPU differs"), (Roles(), "roles are unknown")):
        (verdict,) = diagnose(None, known, samples=lambda: samples({}), gpus=GPUS).verdicts
        assert (verdict.kind, verdict.ranks) == ("unknown", ())
        assert reason in verdict.evidence
    (verdict,) = diagnose(None, roles(8), samples=lambda: samples({}, length=30), gpus=GPUS).verdicts
    assert "too few" in verdict.evidence
    (verdict,) = diagnose(None, roles(8), samples=lambda: None).verdicts
    assert verdict.kind == "unknown"
