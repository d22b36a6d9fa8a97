"""Diagnosis of stragglers: verdicts in their order, and none without a group of equal role."""

import importlib

import numpy as np
import pytest
from diagnosis_steps import START_NS, roles, table, work
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import wilson

from gipfel_extension.diagnosis import Roles, diagnose
from gipfel_extension.diagnosis.robust import median_of_others, noise_of, skewed, tail, trimmed_mean
from gipfel_extension.diagnosis.roles import roles_of
from gipfel_extension.diagnosis.slow_periods import shared_units


def kinds(seconds, known=None):
    return [(each.kind, each.ranks, each.unit) for each in diagnose(table(seconds), known).verdicts]


def test_a_healthy_job_accuses_nobody_and_says_what_it_could_not_have_shown():
    found = diagnose(table(work()), roles())
    assert found.verdicts == ()
    assert 0.05 <= found.resolution["slow_rank"] < 0.10


def test_a_slow_rank_is_named_with_its_gpu_and_dated():
    seconds = work()
    seconds[5, 30:] *= 1.15
    (found,) = (each for each in diagnose(table(seconds), roles()).verdicts if each.kind == "slow_rank")
    assert (found.ranks, found.unit, found.stage) == ((5,), "gpu GPU-5", None)
    step = int(np.searchsorted(table(seconds).time_ns, found.since))
    assert 27 <= step <= 33
    assert "15%" in found.evidence or "14%" in found.evidence or "16%" in found.evidence


def test_slow_ranks_of_a_node_or_a_switch_are_named_once_as_what_they_share():
    seconds = work(32)
    seconds[4:8] *= 1.2
    assert kinds(seconds, roles(32)) == [("slow_rank", (4, 5, 6, 7), "node n1")]
    seconds = work(64, 100)
    # A switch holds one rank of each group of peers.
    spread = Roles(
        {rank: {"dp": rank // 8, "pp": rank % 8} for rank in range(64)},
        {rank: {"node": f"n{rank // 4}", "switch": f"s{rank // 8}"} for rank in range(64)},
    )
    seconds[8:16] *= 1.2
    assert ("slow_rank", tuple(range(8, 16)), "switch s1") in kinds(seconds, spread)


def test_a_nic_of_two_slow_ranks_is_named_and_not_their_node():
    seconds = work(16)
    known = roles(16, dp=16)
    places = {rank: {**own, "nic": f"cxi{rank % 4 // 2}@n{rank // 4}"} for rank, own in known.places.items()}
    seconds[6:8] *= 1.2
    named = kinds(seconds, Roles(known.coordinates, places))
    assert named == [("slow_rank", (6, 7), "nic cxi1@n1")]


def test_half_of_all_ranks_on_one_slow_node_do_not_hide_it():
    seconds = work(8)
    seconds[4:] *= 1.3
    assert kinds(seconds, roles(8)) == [("slow_rank", (4, 5, 6, 7), "node n1")]


def test_a_unit_is_not_named_for_one_of_its_ranks():
    known = roles(16)
    assert [(each.ranks, each.unit) for each in shared_units([2], range(16), known)] == [((2,), "gpu GPU-2")]
    # One node of a switch is the node; a switch with one node of the job is not told from it.
    assert [each.unit for each in shared_units([0, 1, 2, 3], range(16), known)] == ["node n0"]


def test_an_uneven_stage_is_named_and_none_of_its_ranks():
    seconds = work(32)
    seconds[8:16] *= 1.15
    (found,) = diagnose(table(seconds), roles(32)).verdicts
    assert (found.kind, found.ranks, found.stage) == ("uneven_stage", (), 1)


def test_a_stage_that_is_one_node_is_not_told_from_a_slow_node():
    seconds = work(16)
    seconds[4:8] *= 1.2
    known = roles(16, dp=4)
    (found,) = diagnose(table(seconds), known).verdicts
    assert found.kind == "uneven_stage"
    assert found.confidence <= 0.5
    assert "n1" in found.evidence


def test_a_stage_that_becomes_slow_later_is_no_partition():
    seconds = work(32, 100)
    seconds[8:16, 60:] *= 1.2
    assert [each[0] for each in kinds(seconds, roles(32)) if each[0] != "change"] == ["unknown"]


def test_uneven_samples_are_told_and_no_rank():
    rng = np.random.default_rng(3)
    seconds = work(16, 80) * rng.gamma(16, 1 / 16, (16, 80))
    found = diagnose(table(seconds), roles()).verdicts
    assert [(each.kind, each.ranks) for each in found] == [("uneven_samples", ())]
    assert diagnose(table(seconds)).verdicts[-1].kind == "uneven_samples"


def test_without_roles_only_a_rank_that_became_slower_alone_is_accused():
    always, later, together = work(16, 100), work(16, 100), work(16, 100)
    always[5] *= 1.3
    assert [each[0] for each in kinds(always) if each[0] != "change"] == ["unknown"]
    later[5, 60:] *= 1.3
    assert ("slow_rank", (5,), None) in kinds(later)
    together[4:8, 60:] *= 1.3
    assert kinds(together)[0][0] == "unknown"
    assert not any(each[1] for each in kinds(together))


def test_all_ranks_may_be_accused_one_after_the_other():
    seconds = work(4, 500, 0.02)
    for rank in range(4):
        seconds[rank, 60 + 100 * rank : 140 + 100 * rank] *= 1.4
    found = kinds(seconds)
    assert {each[1] for each in found if each[0] == "slow_rank"} == {(0,), (1,), (2,), (3,)}


def test_unknown_roles_are_asked_for_where_they_are_read():
    always = work(16, 100)
    always[5] *= 1.3
    evidence = " ".join(each.evidence for each in diagnose(table(always)).verdicts)
    assert "--roles FILE, or as roles.json in the run folder" in evidence
    assert "log them" not in evidence


@pytest.mark.parametrize(
    ("ranks", "steps", "known", "reason"),
    [
        (1, 60, None, "single rank"),
        (8, 9, roles(8), "too few"),
        (4, 60, roles(4, dp=2), "a group of 4 is needed"),
        (3, 60, None, "3 ranks are too few"),
    ],
)
def test_what_cannot_be_told_says_why(ranks, steps, known, reason):
    (found,) = diagnose(table(work(ranks, steps)), known).verdicts
    assert found.kind == "unknown"
    assert reason in found.evidence


def test_a_slow_rank_among_three_is_a_warning_only():
    seconds = work(6)
    seconds[1] *= 1.4
    found = diagnose(table(seconds), roles(6, dp=3)).verdicts
    assert {each.kind for each in found} == {"unknown"}
    assert any("rank 1 works" in each.evidence for each in found)


def test_whole_steps_alone_accuse_nobody():
    seconds = work()
    seconds[3] *= 2
    whole = table(seconds)
    blind = type(whole)(whole.ranks, whole.steps, whole.time_ns, whole.step_s, np.full_like(seconds, np.nan))
    (found,) = diagnose(blind, roles()).verdicts
    assert found.kind == "unknown"
    assert "work_s" in found.evidence


def test_steps_that_some_ranks_did_not_report_are_left_out_rank_by_rank():
    seconds = work(16, 80)
    seconds[5] *= 1.2
    seconds[np.random.default_rng(2).random(seconds.shape) < 0.1] = np.nan
    assert ("slow_rank", (5,), "gpu GPU-5") in kinds(seconds, roles())
    absent = roles(18, dp=9).missing(range(16))
    assert absent == (16, 17)


def test_pauses_checkpoints_and_evaluations_accuse_nobody():
    seconds = work(16, 120)
    seconds[:, 30::30] *= 4
    seconds[0, 20::20] *= 3
    seconds[7, 50:55] *= 2
    assert diagnose(table(seconds), roles()).verdicts == ()


def test_roles_that_contradict_themselves_say_so():
    for content, reason in (
        ([], "no rank"),
        ({"0": {"dp": 0}, "1": {"pp": 0}}, "not all ranks have the same"),
        ({"x": {"dp": 0}}, "not a rank"),
        ({"0": {"dp": -1}}, "'dp'"),
        ({"0": {"gpu": "GPU-a"}, "1": {"gpu": "GPU-a"}}, "claim one GPU"),
    ):
        with pytest.raises(ValueError, match=reason):
            roles_of(content)
    assert roles_of({"0": {"dp": 1, "tp": 2, "node": "n1"}}).places == {0: {"node": "n1"}}


def test_small_groups_are_joined_over_tensor_parallel_ranks():
    known = Roles({rank: {"dp": rank // 4, "tp": rank % 4, "pp": 0} for rank in range(8)})
    assert known.groups(range(8)) == [list(range(8))]
    large = Roles({rank: {"dp": rank // 2, "tp": rank % 2, "pp": 0} for rank in range(8)})
    assert large.groups(range(8)) == [[0, 2, 4, 6], [1, 3, 5, 7]]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_median_of_others_is_that_of_the_other_rows(data):
    rows = data.draw(st.integers(3, 8))
    values = np.array(
        data.draw(st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.5, np.nan]), min_size=2, max_size=2),
                           min_size=rows, max_size=rows))
    )  # fmt: skip
    found = median_of_others(values)
    for row, column in np.ndindex(values.shape):
        others = np.delete(values[:, column], row)
        others = others[~np.isnan(others)]
        if np.isnan(values[row, column]) or len(others) < 2:
            assert np.isnan(found[row, column])
        else:
            assert found[row, column] == np.median(others)


def test_the_standard_error_covers_noise_that_remembers():
    rng = np.random.default_rng(4)
    white = rng.normal(0, 1, (64, 200))
    lasting = np.repeat(rng.normal(0, 1, (64, 50)), 4, axis=1)
    for values, memory in ((white, 1.0), (lasting, 2.0)):
        error = float(np.median(noise_of(values).error(20)))
        true = float(np.std(trimmed_mean(values.reshape(-1, 20))))
        assert 0.85 * true < error < 1.4 * true
        assert noise_of(values).memory == pytest.approx(memory, rel=0.3)


def test_skewed_noise_without_memory_has_none():
    """A median of few steps is off their mean: autocorrelations around it are all too large."""
    rng = np.random.default_rng(5)
    for steps in (20, 70):
        values = rng.chisquare(3, (900, steps))
        assert noise_of(values).memory == pytest.approx(1.0, abs=0.02)


def test_the_threshold_of_skewed_noise_is_exceeded_as_often_as_that_of_normal_noise():
    rng = np.random.default_rng(6)
    z = 3.0
    means = (rng.chisquare(6, (300_000, 20)).mean(axis=1) - 6) / np.sqrt(12 / 20)
    skew = np.sqrt(8 / 6)
    usual, adjusted = (float((means > each).mean()) / tail(z) for each in (z, skewed(z, skew, 20)))
    assert usual > 2
    assert 0.6 < adjusted < 1.4
    # Steps are cut at 3 standard deviations, beyond which a part of the skew is.
    assert 0.5 * skew < noise_of(rng.chisquare(6, (300, 100))).skew < skew
    assert noise_of(-rng.chisquare(6, (300, 100))).skew < 0
    assert skewed(z, -skew, 20) == z


def test_since_is_on_the_clock_of_the_steps():
    seconds = work(8)
    seconds[2] *= 1.5
    (found,) = (each for each in diagnose(table(seconds), roles(8)).verdicts if each.kind == "slow_rank")
    assert START_NS < found.since < START_NS + 60 * 10**9


def test_a_sample_of_the_campaign_holds_its_bounds():
    campaign = importlib.import_module("stragglers")
    cells = campaign.cells(seed=20, draws=12)
    names = ("healthy.64.noise-5.roles", "slow-10.64.noise-5.roles", "became-10.64.noise-2.roles",
             "stage-10.64.noise-2.roles", "stage-20.64.noise-2.no-roles")  # fmt: skip
    documents = {name: cells[name]() for name in names}
    assert documents["slow-10.64.noise-5.roles"] == cells["slow-10.64.noise-5.roles"]()
    assert documents["stage-20.64.noise-2.no-roles"]["unknown"] == 12
    rows = {row["name"].removeprefix("stragglers: "): row for row in campaign.summary(documents)}
    bounded = [row for row in rows.values() if row["bound"]]
    # So few draws don't show a rate of 1 in 1 000: here no interval may exclude its bound.
    assert all(
        row["interval"][1] >= row["bound"] if row["at least"] else row["interval"][0] <= row["bound"]
        for row in bounded
    )
    assert [row["at least"] for row in bounded].count(True) == 3
    # Enough that the one-line rule is excluded.
    false = rows["false accusations, 64 ranks, roles known"]
    assert wilson(round(false["peer"] * false["of"]), false["of"])[0] > false["bound"]
    assert all(row["interval"][0] - 1e-9 <= row["ours"] <= row["interval"][1] + 1e-9 for row in rows.values())
