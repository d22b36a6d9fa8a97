"""Slow pairs without a faulty node: congestion, links, paths between switches; a sample of the campaign."""

import math
import random

import pytest
import vetting as campaign
from vetting_simulator import measured

from gipfel_extension.vetting.attribution.suspicion import slow_probability
from gipfel_extension.vetting.model import Verdict


def test_a_node_that_is_slow_with_two_partners_and_good_with_five_does_not_fail():
    rng, own = random.Random(3), iter([True, True, False, False, False, True])

    def slow(number: int, first: str, second: str) -> bool:
        return next(own, False) if "n0039" in {first, second} else rng.random() < 0.03

    found = measured(64, slow)
    assert Verdict.FAIL not in {each.verdict for each in found.values()}
    assert found["n0039"].evidence["confidence"] < 0.999
    assert len(found["n0039"].evidence["good_with"]) >= 2
    assert sum(each.verdict is Verdict.PASS for each in found.values()) >= 60


@pytest.mark.parametrize("size", [4, 16, 64])
def test_pairs_that_are_congested_by_themselves_accuse_no_node(size):
    rng = random.Random(7)
    for _ in range(4):
        found = measured(size, lambda *_: rng.random() < 0.1)
        assert Verdict.FAIL not in {each.verdict for each in found.values() if each.node}
        assert sum(each.verdict is Verdict.INCONCLUSIVE for each in found.values()) <= 0.25 * size


def test_a_slow_node_is_found_among_congested_pairs_by_a_test_over_all_readings():
    rng = random.Random(8)
    found = measured(16, lambda _, *pair: "n0003" in pair or rng.random() < 0.05)
    assert {node for node, each in found.items() if each.verdict is Verdict.FAIL} == {"n0003"}
    assert found["n0003"].evidence["confidence"] == pytest.approx(0.999)
    slow, of = found["n0003"].evidence["slow_readings"]
    assert slow == of >= 10


@pytest.mark.parametrize("size", [4, 5, 16])
def test_a_slow_link_is_named_wherever_it_is_and_its_nodes_pass(size):
    found = measured(size, lambda _, *pair: {*pair} == {"n0001", "n0003"})
    assert {each for each, result in found.items() if result.verdict is not Verdict.PASS} == {"n0001|n0003"}


def test_of_three_nodes_a_slow_pair_is_named_and_neither_node_fails():
    found = measured(3, lambda _, *pair: {*pair} == {"n0001", "n0002"})
    verdicts = {node: each.verdict for node, each in found.items()}
    assert verdicts == {
        "n0000": Verdict.PASS, "n0001": Verdict.INCONCLUSIVE, "n0002": Verdict.INCONCLUSIVE,
    }  # fmt: skip
    assert "n0002" in found["n0001"].reason
    assert "n0001" in found["n0002"].reason
    assert "n0001" in measured(2, lambda *_: True)["n0000"].reason


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_of_two_switches_a_slow_path_between_them_is_told_and_no_node_fails(size, known):
    switches = {f"n{index:04d}": f"s{2 * index // size}" for index in range(size)}
    found = measured(
        size, lambda _, first, second: switches[first] != switches[second], switches=switches if known else {}
    )
    assert {each.verdict for each in found.values() if each.node} == {Verdict.INCONCLUSIVE}
    assert all("path between their switches" in each.reason for each in found.values() if each.node)


def test_of_four_switches_that_nobody_knows_the_slow_one_costs_its_own_nodes_alone():
    nodes = {f"n{index:04d}": index // 16 for index in range(64)}
    found = measured(64, lambda _, *pair: {nodes[each] for each in pair} > {2})
    behind = {node for node, switch in nodes.items() if switch == 2}
    assert {each for each, result in found.items() if result.verdict is not Verdict.PASS} == behind
    assert all("a switch that they share is slow" in found[node].reason for node in behind)


def test_chance_of_slow_readings_is_that_of_the_hypergeometric_distribution():
    # All three of three, of three slow ones of six: one of twenty ways.
    assert slow_probability(3, 3, 3, 6) == pytest.approx(1 / 20)
    assert slow_probability(2, 3, 3, 6) == pytest.approx(10 / 20)
    assert slow_probability(0, 3, 3, 6) == slow_probability(0, 0, 0, 0) == 1.0
    assert slow_probability(5, 5, 5, 640) == pytest.approx(1 / math.comb(640, 5))


def test_a_node_that_only_sends_slowly_is_found():
    found = measured(16, lambda _, first, second: first == "n0003")
    assert {node for node, each in found.items() if each.verdict is Verdict.FAIL} == {"n0003"}


def test_two_bad_nodes_of_four_do_not_hide_each_other():
    found = measured(4, lambda _, *pair: bool({*pair} & {"n0000", "n0002"}))
    assert {node for node, each in found.items() if each.verdict is Verdict.FAIL} == {"n0000", "n0002"}


def test_a_sample_of_the_campaign_fails_no_good_node_and_finds_slow_ones():
    names = (
        "none.congested-10.8",
        "none.heavy-8.4",
        "slow-15.quiet.4",
        "slow-15.congested-5.16",
        "link.quiet.5",
    )
    cells = campaign.cells(seed=20, draws=2)
    documents = {name: cells[name]() for name in names}
    assert sum(each.get("good fail", 0) for each in documents.values()) == 0
    assert documents["slow-15.quiet.4"]["bad fail"] == documents["slow-15.quiet.4"]["bad"]
    assert documents["link.quiet.5"]["links right"] == documents["link.quiet.5"]["allocations"]
    assert documents["none.heavy-8.4"] == cells["none.heavy-8.4"]()
    rows = campaign.summary(documents)
    assert all(row["interval"][0] <= row["ours"] <= row["interval"][1] for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)


def test_a_part_of_the_campaign_is_held_out_and_cells_cover_what_is_promised():
    names = list(campaign.cells(1, 1))
    assert 0.15 <= sum(campaign.held_out(name) for name in names) / len(names) <= 0.35
    for size in (4, 8, 16, 64, 256):
        assert {f"none.congested-10.{size}", f"none.heavy-8.{size}", f"slow-15.quiet.{size}"} <= {*names}


def test_moments_of_other_pairs_do_not_make_a_node_of_a_slow_link():
    ends = {"n0000", "n0001"}
    found = measured(4, lambda number, *pair: {*pair} == ends or (number < 3 and "n0001" in pair))
    assert Verdict.FAIL not in {each.verdict for each in found.values() if each.node}
