"""Attribution of faults: statistics, rounds of disjoint pairs, verdicts on simulated allocations."""

import itertools
import random
from collections import Counter

import pytest
from vetting_simulator import HEALTHY, Allocation, Node, measured

from gipfel_extension.vetting.attribution.conclude import conclude
from gipfel_extension.vetting.attribution.measurements import PairMeasurement, PairSettings, PairState
from gipfel_extension.vetting.attribution.rounds import next_round
from gipfel_extension.vetting.model import CheckResult, Verdict
from gipfel_extension.vetting.statistics import percentile, relative_spread, student_t_tail, two_modes


def allocation(size: int, *, seed: int = 1, quiet: bool = True, **bad: Node) -> Allocation:
    """Healthy nodes but for those that are given by their number, such as n3."""
    made = Allocation(seed, size, 0.0, degraded_share=0.0, busy_chance=0.0 if quiet else 0.05)
    for name, node in bad.items():
        node.name = f"nid{int(name[1:]):06d}"
        made.nodes[node.name] = node
    return made


def slow(factor: float = 0.7) -> Node:
    return Node("", "slow", factor)


def verdicts(made: Allocation, **settings: float) -> dict[str, Verdict]:
    results = made.vet(PairSettings(**settings))
    return {result.subject: result.verdict for result in results}


def failed(made: Allocation, **settings: float) -> set[str]:
    return {subject for subject, verdict in verdicts(made, **settings).items() if verdict is Verdict.FAIL}


def test_statistics_of_a_few_samples():
    noisy = random.Random(3)
    one_mode = [noisy.gauss(100, 2.5) for _ in range(9)]
    lower, upper = two_modes(sorted(one_mode))
    assert lower == upper
    assert 0.005 < relative_spread(one_mode) < 0.06
    samples = sorted([100, 101, 99, 100, 62, 63, 61])
    assert two_modes(samples) == (62, 100)
    assert percentile(samples, 0.1) < 63
    assert two_modes(sorted([100, 101, 99, 100, 62])) == (100, 100), "one sample is an outlier"
    assert relative_spread([5.0]) == 0.0


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 33, 128])
def test_nobody_meets_anybody_twice_and_with_an_odd_count_each_sits_out_in_turn(size):
    # Those that are neighbours on the job's ring all meet, in rounds of their own where need be.
    nodes = tuple(f"n{index:03d}" for index in range(size))
    state = PairState(check="c", type="collective", nodes=nodes)
    met, out = set(), []
    while (planned := next_round(state)) is not None:
        (role,) = {pair.role for pair in planned.pairs}
        names = [name for pair in planned.pairs for name in (pair.first, pair.second)]
        assert len(names) == len(set(names))
        if role == "survey":
            assert len(names) == size - size % 2
            out += set(nodes) - set(names)
        else:
            assert (role, size > 16) == ("ring", True)
        for pair in planned.pairs:
            assert frozenset((pair.first, pair.second)) not in met
            met.add(frozenset((pair.first, pair.second)))
        state = state.with_round(
            tuple(
                PairMeasurement(
                    round=planned.number, first=pair.first, second=pair.second, samples=(100.0,) * 5,
                    role=pair.role,
                )
                for pair in planned.pairs
            )
        )  # fmt: skip
    assert len(out) == len(set(out))
    assert {frozenset(pair) for pair in zip(nodes, (*nodes[1:], nodes[0]), strict=True)} <= met
    assert len({each.round for each in state.measurements}) >= min(5, size - 1)
    if size > 2:
        assert {each.verdict for each in conclude(state)} == {Verdict.PASS}


@pytest.mark.parametrize(("size", "every_pair_up_to"), [(8, 16), (16, 0), (33, 16), (64, 16)])
def test_behind_each_switch_a_pair_is_measured_before_anything_is_slow(size, every_pair_up_to):
    made = Allocation(1, size, 0.0, per_switch=8, degraded_share=0.0, busy_chance=0.0)
    made.vet(PairSettings(every_pair_up_to=every_pair_up_to))
    inside = {
        made.switches[each.first]
        for each in made.state.measurements
        if each.role == "survey" and made.switches[each.first] == made.switches[each.second]
    }
    counts = Counter(made.switches.values())
    assert inside == {switch for switch, count in counts.items() if count > 1}


def test_partners_are_behind_other_switches():
    nodes = tuple(f"n{index:02d}" for index in range(32))
    state = PairState(check="c", type="collective", nodes=nodes, switches={node: node[:2] for node in nodes})
    planned = next_round(state)
    assert planned is not None
    same = [pair for pair in planned.pairs if state.switches[pair.first] == state.switches[pair.second]]
    assert len(same) <= 1


@pytest.mark.parametrize("size", [3, 4, 5, 8, 9, 17, 64])
def test_one_slow_node_is_named_and_nobody_else(size):
    made = allocation(size, n1=slow())
    results = made.vet()
    bad = [result for result in results if result.verdict is not Verdict.PASS]
    assert [each.node for each in bad] == ["nid000001"]
    assert bad[0].verdict is Verdict.FAIL
    assert 0.27 < bad[0].evidence["below"] < 0.33
    assert bad[0].evidence["confidence"] > 0.7
    assert len(bad[0].evidence["slow_with"]) >= 2
    assert "good partner" in bad[0].reason


def test_several_bad_nodes_and_a_quarter_of_all():
    assert failed(allocation(16, n0=slow(), n1=slow(0.6), n15=slow(0.8))) == {
        "nid000000", "nid000001", "nid000015",
    }  # fmt: skip
    many = {f"n{index * 4}": slow(0.6 + index * 0.02) for index in range(8)}
    assert failed(allocation(32, **many)) == {f"nid{index * 4:06d}" for index in range(8)}


def test_two_modes_are_found_although_the_median_is_good():
    nodes = [Node("", "bimodal", 0.6, rng=random.Random(seed), share=0.3, dwell=2.0) for seed in (1, 2)]
    results = allocation(32, n3=nodes[0], n20=nodes[1]).vet()
    bad = {result.node: result for result in results if result.verdict is Verdict.FAIL}
    assert set(bad) == {"nid000003", "nid000020"}
    assert all(each.evidence["bimodal"] for each in bad.values())


def test_a_node_that_is_a_little_slow_is_degraded():
    assert verdicts(allocation(32, n7=slow(0.945)))["nid000007"] is Verdict.DEGRADED
    assert verdicts(allocation(32, n7=slow(0.99)))["nid000007"] is Verdict.PASS


def test_a_node_that_does_not_answer_is_named_and_its_partners_are_not():
    made = allocation(9, n4=Node("", "dead"))
    assert failed(made) == {"nid000004"}


def test_a_slow_link_accuses_the_link_and_not_its_nodes():
    made = allocation(8)
    pair = frozenset(("nid000002", "nid000005"))
    # The survey need not meet this pair: it is made sure here.
    made.slow_links = frozenset({pair})
    results = made.vet(PairSettings(survey_rounds=7))
    bad = [result for result in results if result.verdict is not Verdict.PASS]
    assert [(each.subject, each.node, each.verdict) for each in bad] == [
        ("nid000002|nid000005", "", Verdict.FAIL)
    ]
    assert "cable" in bad[0].fix


def test_a_slow_switch_is_told_from_its_nodes():
    made = allocation(64)
    made.slow_switch = "s001"
    results = {result.node: result for result in made.vet()}
    behind = [results[name] for name, switch in made.switches.items() if switch == "s001"]
    others = [results[name] for name, switch in made.switches.items() if switch != "s001"]
    assert {each.verdict for each in others} == {Verdict.PASS}
    assert {each.verdict for each in behind} == {Verdict.INCONCLUSIVE}
    assert all("switch s001 is slow, not the node" in each.reason for each in behind)


def test_a_busy_moment_accuses_nobody():
    made = allocation(64)
    measure = made.measure
    made.measure = lambda number, *pair, busy: measure(number, *pair, busy=number == 1)
    assert failed(made) == set()


def test_a_slow_control_pair_makes_the_round_say_nothing():
    nodes = tuple(f"n{index}" for index in range(6))
    good, bad = (100.0,) * 5, (60.0,) * 5
    measured = [
        PairMeasurement(round=0, first="n0", second="n1", samples=bad),
        PairMeasurement(round=0, first="n2", second="n3", samples=good),
        PairMeasurement(round=0, first="n4", second="n5", samples=good),
    ]
    measured += [
        PairMeasurement(round=number, first=first, second=second, samples=good)
        for number, pairs in enumerate((("n0", "n2"), ("n1", "n4"), ("n3", "n5")), 1)
        for first, second in [pairs]
    ]
    state = PairState(check="c", type="collective", nodes=nodes, measurements=tuple(measured))
    busy = (
        PairMeasurement(round=9, first="n0", second="n3", samples=bad, role="suspect"),
        PairMeasurement(round=9, first="n1", second="n2", samples=bad, role="suspect"),
        PairMeasurement(round=9, first="n4", second="n5", samples=bad, role="control"),
    )
    after = {each.node: each for each in conclude(state.with_round(busy))}
    assert Verdict.FAIL not in {each.verdict for each in after.values()}
    assert after["n0"].verdict is Verdict.INCONCLUSIVE
    assert after["n0"].evidence["busy_rounds"] == [9]


def test_what_cannot_be_compared_does_not_pass():
    assert set(verdicts(allocation(2)).values()) == {Verdict.INCONCLUSIVE}
    assert set(verdicts(allocation(2), floor=HEALTHY * 0.8).values()) == {Verdict.PASS}
    assert set(verdicts(allocation(2), floor=HEALTHY * 1.5).values()) == {Verdict.FAIL}
    assert set(verdicts(allocation(8), baseline=HEALTHY * 1.5).values()) == {Verdict.INCONCLUSIVE}
    alone = PairState(check="c", type="collective", nodes=("n0",))
    assert next_round(alone) is None
    assert [each.verdict for each in conclude(alone)] == [Verdict.NOT_RUN]
    broken = PairState(check="c", type="collective", nodes=("n0", "n1")).with_round(
        (PairMeasurement(round=0, first="n0", second="n1", error="the image lacks torch."),)
    )
    assert {(each.verdict, "lacks torch" in each.reason) for each in conclude(broken)} == {
        (Verdict.INCONCLUSIVE, True)
    }


def of_five(slow: dict[tuple[int, str], float], *, spread: float = 0.01) -> dict[str, CheckResult]:
    """Verdicts on five nodes, where the pairs of some rounds are slow by a share; the round counts from 0."""
    rng = random.Random(5)
    nodes = tuple(f"n{index}" for index in range(5))
    state = PairState(check="c", type="collective", nodes=nodes)
    while (planned := next_round(state)) is not None:
        measured = []
        for pair in planned.pairs:
            below = max(slow.get((planned.number, each), 0.0) for each in (pair.first, pair.second))
            samples = tuple(100.0 * (1.0 - below) * rng.gauss(1.0, spread) for _ in range(9))
            measured.append(
                PairMeasurement(
                    round=planned.number, first=pair.first, second=pair.second, role=pair.role,
                    samples=samples,
                )
            )  # fmt: skip
        state = state.with_round(tuple(measured))
    return {each.node: each for each in conclude(state) if each.node}


def test_of_a_few_nodes_moments_of_pairs_accuse_nobody_and_the_pairs_are_named():
    # Slow with most partners at first, and good with each of them when they are asked again.
    found = of_five({(number, "n0"): 0.25 for number in (0, 1, 2)})
    assert Verdict.FAIL not in {each.verdict for each in found.values()}
    # Slow every second time: not by chance, and not with most partners.
    own = itertools.cycle([True, False])
    result = measured(5, lambda _, *pair: "n0000" in pair and next(own))["n0000"]
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.evidence["slow_with"]
    # The same node in an episode, without a good round in between, is to blame.
    found = of_five({(number, "n0"): 0.25 for number in range(20)})
    assert {node for node, each in found.items() if each.verdict is Verdict.FAIL} == {"n0"}


def test_a_node_that_moves_nothing_fails_and_nobody_else():
    found = of_five({(number, "n3"): 1.0 for number in range(100)})
    assert {node for node, each in found.items() if each.verdict is Verdict.FAIL} == {"n3"}
    assert {each.verdict for node, each in found.items() if node != "n3"} == {Verdict.PASS}


def test_where_samples_of_every_pair_vary_much_nobody_is_said_to_have_two_modes():
    accused = good = 0
    for seed in range(60):
        made = Allocation(seed, 8, 0.0, bad_exactly=0, degraded_share=0.0, busy_chance=0.0)
        gauss = made.rng.gauss
        made.rng.gauss = lambda mean, spread, gauss=gauss: gauss(mean, max(spread, 0.08))
        results = made.vet()
        accused += sum(each.verdict is Verdict.FAIL for each in results)
        good += len(results)
    assert accused <= 0.04 * good


def test_what_a_node_was_before_is_said():
    made = allocation(8, n1=slow())
    made.vet()
    state = made.state.model_copy(update={"history": {"nid000001": (True, False, False)}})
    result = next(each for each in conclude(state) if each.node == "nid000001")
    assert result.evidence["history"] == "passed 1 of its last 3 conclusive runs"


def test_many_allocations_with_episodes_two_modes_and_busy_moments():
    found = bad = accused = good = 0
    for seed in range(50, 58):
        made = Allocation(seed, 128, 0.04)
        for result in made.vet():
            if result.node and made.truth(result.node) == "bad":
                bad += 1
                found += result.verdict is Verdict.FAIL
            elif result.node and made.truth(result.node) == "good":
                good += 1
                accused += result.verdict is Verdict.FAIL
        assert made.rounds <= 21
    assert bad > 20
    assert found >= 0.95 * bad
    assert accused <= 0.002 * good


@pytest.mark.parametrize("slow", ["n2", ""])
def test_where_samples_vary_seventeenfold_the_slow_link_is_named_and_nobody_is_cleared(slow):
    rng = random.Random(11)
    nodes = ("n1", "n2", "n3", "n4")
    state = PairState(check="c", type="collective", nodes=nodes, settings=PairSettings(bad_below=0.25))
    while (planned := next_round(state)) is not None:
        state = state.with_round(
            tuple(
                PairMeasurement(
                    round=planned.number, first=pair.first, second=pair.second, role=pair.role,
                    samples=tuple(
                        8.7e6 * rng.gauss(1, 0.02)
                        if slow in {pair.first, pair.second}
                        else 49e6 * 17 ** rng.random()
                        for _ in range(9)
                    ),
                )
                for pair in planned.pairs
            )
        )  # fmt: skip
    verdicts = {each.node: each.verdict for each in conclude(state)}
    assert {node for node, verdict in verdicts.items() if verdict is Verdict.FAIL} == {slow} - {""}
    assert Verdict.PASS not in verdicts.values()
    assert Verdict.DEGRADED not in verdicts.values()


# Upper 5 % and 0.05 % points of Student's t, from any statistical table.
@pytest.mark.parametrize(
    ("freedom", "value", "probability"),
    [(1, 6.314, 0.05), (2, 2.920, 0.05), (4, 2.132, 0.05), (10, 1.812, 0.05), (30, 3.646, 0.0005)],
)
def test_student_t_tail_gives_the_values_of_tables(freedom: int, value: float, probability: float) -> None:
    assert student_t_tail(value, freedom) == pytest.approx(probability, rel=5e-3)
    assert student_t_tail(-value, freedom) == pytest.approx(1 - probability, rel=5e-3)
    with pytest.raises(ValueError, match="degree of freedom"):
        student_t_tail(value, 0)


def _vet_with_paths(below: dict[tuple[int, int], float], size: int) -> dict[str, Verdict]:
    """Vet nodes whose pairs are always slower than 100 by these shares, with 1 % of noise."""
    noise = random.Random(4)
    nodes = tuple(f"n{number}" for number in range(size))
    pairs = itertools.combinations(range(size), 2)
    measurements = [
        PairMeasurement(
            round=number, first=nodes[first], second=nodes[second], role="survey",
            samples=tuple(
                100 * (1 - below.get((first, second), 0.0)) * noise.gauss(1, 0.01) for _ in range(8)
            ),
        )
        for number, (first, second) in enumerate(3 * list(pairs))
    ]  # fmt: skip
    state = PairState(check="pairs", type="pairs", unit="GB/s", nodes=nodes, measurements=tuple(measurements))
    return {result.node: result.verdict for result in conclude(state)}


def test_a_node_on_a_fabric_with_uneven_paths_is_inconclusive_rather_than_failed() -> None:
    # Drawn from a normal distribution with a standard deviation of 5 %.
    uneven = {(0, 1): -0.03, (0, 2): -0.09, (0, 3): 0.07, (1, 2): -0.02, (1, 3): 0.04, (2, 3): 0.13}
    assert _vet_with_paths(uneven, 4)["n3"] is Verdict.INCONCLUSIVE


def test_a_node_whose_paths_are_all_equally_slow_fails() -> None:
    even = {(0, 1): 0.14, (0, 2): 0.16, (0, 3): 0.15, (1, 2): -0.01, (1, 3): 0.01}
    verdicts_by_node = _vet_with_paths(even, 4)
    assert verdicts_by_node.pop("n0") is Verdict.FAIL
    assert set(verdicts_by_node.values()) == {Verdict.PASS}
