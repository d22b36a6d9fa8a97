"""Advice: each rule finds its own pattern, shows it, and is silent without it."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from saturation_tables import START_NS, busy, gpu, host, table
from simulated_tables import simulated

from gipfel_extension.saturation import Workload, advise, score_table
from gipfel_extension.saturation.advice import RULES, Advice
from gipfel_extension.saturation.advice.checkpoint import daly, write_bursts_of, young
from gipfel_extension.saturation.settings import Thresholds
from gipfel_extension.telemetry.sample import Device, SampleTable

LENGTH = 40
HALF = [1.0] * 20 + [0.0] * 20


def found(
    series: Mapping[Device, Mapping[str, object]], length: int = LENGTH, workload: Workload | None = None
) -> dict[str, Advice]:
    """Return what is advised on a table, by rule."""
    given: SampleTable = table(series, length=length)
    return {advice.rule: advice for advice in advise(given, score_table(given), workload=workload)}


def half(value: float, other: float = 0.0) -> list[float]:
    """One value for the first half of the time, another for the second."""
    return [value] * 20 + [other] * 20


def waiting(**more: object) -> dict[str, object]:
    """Work for half of the time, then nothing on the GPU."""
    return busy(tensor=half(0.9), dram=half(0.3), active=HALF, engine=HALF, **more)


WELL = busy(tensor=0.95, dram=0.5, active=1.0, FB_USED=50e9, FB_TOTAL=80e9)

#: A host that reads input with a part of its cores.
READS = {"CPU_CORES_USED": 7.0, "CPU_UTIL": 0.4}
FEW_WARPS = {"tensor": 0.1, "dram": 0.1, "active": 0.9, "SM_OCCUPANCY": 0.05, "POWER_USAGE": 200.0}

#: Rule to the series on which it speaks.
SPEAKS: dict[str, Mapping[Device, Mapping[str, object]]] = {
    "unused-gpu": {gpu(0): WELL, gpu(1): busy(tensor=0.0, dram=0.0, active=0.0, engine=0.0)},
    "loader-workers": {gpu(): waiting(), host(): READS},
    "pinned-memory": {gpu(): waiting(PCIE_RX_BYTES=half(0.0, 6e9)), host(): READS},
    "compile": {gpu(): busy(tensor=0.3, dram=0.1, active=0.5)},
    "cuda-graphs": {gpu(): busy(tensor=0.05, dram=0.05, active=0.1)},
    "batch-size": {gpu(): busy(**FEW_WARPS, FB_USED=10e9, FB_TOTAL=80e9)},
    "activation-checkpointing": {gpu(): busy(**FEW_WARPS, FB_USED=79e9, FB_TOTAL=80e9)},
    "video-decoder": {gpu(): busy(tensor=0.1, dram=0.1, active=0.2, engine=0.4, NVDEC0_ACTIVE=0.95)},
    "half-precision": {gpu(): busy(tensor=0.0, PIPE_FP32_ACTIVE=0.7)},
    "quarter-precision": {gpu(): WELL},
    "fused-optimizer": {gpu(): busy(tensor=[0.8, 0.8, 0.0] * 14, dram=[0.3, 0.3, 0.85] * 14, active=1.0)},
    "slow-rank": {
        gpu(0): busy(tensor=0.8, active=0.9, NVLINK_TX_BYTES=1e9),
        **{gpu(i): busy(tensor=0.05, dram=0.05, active=0.1) for i in (1, 2, 3)},
    },
    "placement": {gpu(i): busy(tensor=0.1, dram=0.1, active=0.2, PCIE_TX_BYTES=40e9) for i in (0, 1)},
    "bucket-size": {
        gpu(i): busy(tensor=half(0.6), dram=0.1, active=half(0.9, 0.1), NVLINK_TX_BYTES=half(0.0, 90e9))
        for i in (0, 1)
    },
    "checkpoint-interval": {
        gpu(): busy(tensor=0.9, dram=0.3, active=[1.0] * 8 + [0.0] * 2, engine=[1.0] * 8 + [0.0] * 2),
        host(): {"IO_WRITE_BYTES": [0.0] * 8 + [2e9] * 2},
    },
    "asynchronous-checkpoint": {gpu(): waiting(), host(): {"IO_WRITE_BYTES": [0.0] * 25 + [2e9] * 15}},
    "capping": {
        gpu(): busy(tensor=0.9, active=1.0, CLOCKS_EVENT_REASONS=64.0, GPU_TEMP=91.0, SM_CLOCK=990.0)
    },
}


def stretched(series: Mapping[Device, Mapping[str, object]]) -> tuple[dict[Device, dict[str, object]], int]:
    """Series whose lists are as long as the longest; shorter ones are repeated."""
    lengths = [len(v) for metrics in series.values() for v in metrics.values() if isinstance(v, Sequence)]
    length = max([LENGTH, *lengths])
    return {
        device: {
            name: np.resize(np.asarray(values, float), length).tolist()
            if isinstance(values, list)
            else values
            for name, values in metrics.items()
        }
        for device, metrics in series.items()
    }, length


def test_every_rule_has_a_pattern_here():
    assert {rule.name for rule in RULES} == set(SPEAKS)


def test_gpus_that_lost_alike_are_named_together():
    own = found({gpu(0): WELL, gpu(2): waiting(), gpu(3): waiting(), host(): {"CPU_CORES_USED": 9.0}})
    assert own["loader-workers"].sentence.startswith("GPUs 2 and 3 waited for input 50 % of the time")
    own = found({gpu(i): waiting() for i in range(4)} | {host(): {"CPU_CORES_USED": 9.0}})
    assert own["loader-workers"].sentence.startswith("All GPUs waited for input")


def test_a_loss_without_a_remedy_is_told_as_it_is():
    own = found({gpu(): busy(tensor=0.3, dram=0.3, active=0.9)})["unaddressed-unexplained"]
    assert own.sentence == "No recorded metric shows why GPU 0 lost 57 % of the time."
    assert own.gain == 0.0


def test_twice_the_workers_bound_the_gain_from_below():
    half_idle = found({gpu(): waiting(), host(): READS})["loader-workers"]
    # With half of the time to wait, twice the workers keep up.
    assert (half_idle.gain_least, half_idle.gain) == pytest.approx((50.0, 50.0))
    rare = busy(
        tensor=[0.9] * 4 + [0.0] * 16, dram=0.0, active=[1.0] * 4 + [0.0] * 16, engine=[1.0] * 4 + [0.0] * 16
    )
    own = found({gpu(): rare, host(): READS}, length=20)["loader-workers"]
    # A fifth of the time computes: then batches come in half of the time, 60 % of it waiting.
    assert (own.gain_least, own.gain) == pytest.approx((20.0, 80.0))


def test_a_clock_a_little_below_its_maximum_at_the_power_limit_is_no_advice():
    usual = busy(tensor=0.5, active=1.0, CLOCKS_EVENT_REASONS=4.0, SM_CLOCK=1780.0)
    assert "capping" not in found({gpu(): usual})
    cut = busy(tensor=0.9, active=1.0, CLOCKS_EVENT_REASONS=4.0, SM_CLOCK=990.0)
    assert found({gpu(): cut})["capping"].sentence.startswith(
        "The power limit kept the clock of GPU 0 at 50 %"
    )


@pytest.mark.parametrize("pipe", ["PIPE_TENSOR_IMMA_ACTIVE", "PIPE_TENSOR_DFMA_ACTIVE"])
def test_integers_and_doubles_get_no_advice_on_fp8(pipe):
    assert "quarter-precision" not in found({gpu(): busy(tensor=0.95, dram=0.5, active=1.0, **{pipe: 0.9})})


TRAINS = {"kind": "training", "ranks": 8}

#: Rule to the work that it must be silent about, and one that it is for.
FITS: dict[str, tuple[list[dict[str, object]], dict[str, object]]] = {
    "bucket-size": (
        [
            {**TRAINS, "parallelism": frozenset({"tensor"})},
            {**TRAINS, "parallelism": frozenset({"sharded"})},
            {"kind": "inference", "parallelism": frozenset({"data"})},
            {"kind": "training", "ranks": 1},
        ],
        {**TRAINS, "parallelism": frozenset({"data"})},
    ),
    "activation-checkpointing": ([{"kind": "inference"}, {"uses": {"activation-checkpointing"}}], TRAINS),
    "asynchronous-checkpoint": ([{"kind": "inference"}], TRAINS),
    "checkpoint-interval": ([{"kind": "inference"}], TRAINS),
    "fused-optimizer": ([{"kind": "inference"}, {"uses": {"fused-optimizer"}}], TRAINS),
    "quarter-precision": (
        [{"precision": precision} for precision in ("fp64", "fp32", "tf32", "fp8", "int8")],
        {"precision": "bf16"},
    ),
    "half-precision": ([{"precision": "fp64"}, {"precision": "bf16"}], {"precision": "fp32"}),
    "compile": ([{"uses": {"compile"}}], {}),
    "cuda-graphs": ([{"uses": {"cuda-graphs"}}], {}),
    "pinned-memory": ([{"uses": {"pinned-memory"}}], {}),
}


@pytest.mark.parametrize("rule", FITS)
def test_a_rule_is_silent_about_work_that_it_is_not_for(rule):
    series, length = stretched(SPEAKS[rule])
    others, own = FITS[rule]
    for facts in others:
        assert rule not in found(series, length, Workload(**facts)), facts
    assert found(series, length, Workload(**own))[rule].certain


@pytest.mark.parametrize("rule", FITS)
def test_where_the_work_is_unknown_the_advice_says_whom_it_is_for(rule):
    series, length = stretched(SPEAKS[rule])
    own = found(series, length)[rule]
    assert own.certain == (not own.applies_to)
    assert own.action.startswith("If this is" if own.applies_to else own.action[0])
    assert own.applies_to in own.action


def test_what_no_rule_may_speak_about_is_told_as_a_loss():
    full, length = stretched(SPEAKS["activation-checkpointing"])
    own = found(full, length, Workload(kind="inference"))
    assert "GPU 0 lost" in own["unaddressed-occupancy"].sentence
    assert own["unaddressed-occupancy"].action.startswith("No safe remedy known")


def test_the_gain_is_a_computed_range_of_speed_too():
    workers = found({gpu(): waiting(), host(): READS})["loader-workers"]
    # Half of the time is waited for, and twice the workers give all of it back.
    assert workers.speedup == pytest.approx((2.0, 2.0))
    assert workers.loss == "input"
    assert "`gipfel data try DATA --run RUN` measures how many samples per second suffice" in workers.action
    assert workers.to_json()["speedup"] == [2.0, 2.0]
    eighth = found({gpu(): WELL})["quarter-precision"]
    # Near its ceiling all the time: FP8 takes half of it at best.
    assert eighth.speedup == pytest.approx((1.0, 2.0))
    assert "(\u2264 2.00\u00d7 faster)" in eighth.gain_text
    profile = found({gpu(): busy(tensor=0.3, dram=0.3, active=0.9)})["unaddressed-unexplained"]
    assert (profile.speedup, profile.loss) == (None, "unexplained")


@pytest.mark.parametrize("rule", SPEAKS)
def test_a_rule_speaks_on_its_pattern_with_evidence(rule):
    series, length = stretched(SPEAKS[rule])
    given = table(series, length=length)
    job = score_table(given)
    advice = {each.rule: each for each in advise(given, job)}
    assert rule in advice, sorted(advice)
    own = advice[rule]
    for shown in own.evidence:
        assert shown.start_ns < shown.end_ns
        assert shown.start_ns >= START_NS - 10**9
        assert shown.end_ns <= START_NS + length * 10**9
    assert own.action.endswith(".")


@pytest.mark.parametrize("rule", SPEAKS)
def test_a_rule_is_silent_on_a_gpu_that_is_well_used(rule):
    silent = found({gpu(0): WELL, gpu(1): WELL, host(): {"CPU_CORES_USED": 2.0, "CPU_UTIL": 0.1}})
    # Tensor pipes at their ceiling are what the one for FP8 is about.
    assert rule not in set(silent) - {"quarter-precision"}


def test_evidence_is_the_stretch_in_which_it_is_seen():
    own = found({gpu(): waiting(), host(): READS})["loader-workers"]
    first, second = own.evidence
    assert (first.device, second.device) == (gpu().uuid, host().uuid)
    assert (first.start_ns - START_NS, first.end_ns - START_NS) == (19 * 10**9, 39 * 10**9)
    assert "CPU_CORES_USED" in second.metrics
    assert own.sentence == "GPU 0 waited for input 50 % of the time while its host used 7.0 CPU cores."
    assert "num_workers" in own.action


def test_where_all_cores_are_taken_more_workers_are_no_advice():
    own = found({gpu(): waiting(), host(): {"CPU_CORES_USED": 8.0, "CPU_UTIL": 1.0}})["loader-workers"]
    assert "num_workers" not in own.action


def test_a_slow_node_is_named_with_all_of_its_gpus_where_most_wait_for_it():
    works, waits = busy(tensor=0.8, active=0.9, NVLINK_TX_BYTES=1e9), busy(tensor=0.01, dram=0.0, active=0.1)
    own = found({gpu(i): works if i < 3 else waits for i in range(8)})["slow-rank"]
    assert own.sentence == "GPUs 3, 4, 5, 6 and 1 more waited 80 % of the time while GPUs 0, 1 and 2 worked."
    assert own.action == "Give GPUs 0, 1 and 2 less work, or vet their node."
    assert {shown.device for shown in own.evidence} > {gpu(0).uuid}


def test_late_input_is_to_blame_for_uneven_work_whichever_gpu_lacks_it():
    """In a third of the time the host reads for GPUs that have nothing to run."""

    def of(read: dict[str, float], alone: dict[str, float]) -> dict[str, object]:
        works = {"tensor": 0.8, "dram": 0.0, "active": 0.9, "engine": 1.0}
        return busy(
            **{name: [works[name], read[name], alone[name]] * 20 for name in works}, NVLINK_TX_BYTES=1e8
        )

    off = {"tensor": 0.0, "dram": 0.0, "active": 0.0, "engine": 0.0}
    spins = {"tensor": 0.0, "dram": 0.0, "active": 0.1, "engine": 1.0}
    works = {"tensor": 0.8, "dram": 0.0, "active": 0.9, "engine": 1.0}
    reads = {"CPU_CORES_USED": [1.0, 9.0, 1.0] * 20, "CPU_UTIL": 0.3}
    late, others = of(off, works), of(spins, spins)
    own = found({gpu(0): late, **{gpu(i): others for i in (1, 2, 3)}, host(): reads}, length=60)["slow-rank"]
    assert own.sentence.endswith("while GPU 0 worked on input that arrived late.")
    assert own.action == "Speed up the input of GPU 0 first."
    starved, well = of(off, spins), of(works, works)
    own = found({gpu(0): well, **{gpu(i): starved for i in (1, 2, 3)}, host(): reads}, length=60)["slow-rank"]
    assert (
        own.action
        == "Find out what GPUs 1, 2 and 3 lacked then, such as input, or distribute the work evenly."
    )


def test_where_each_waits_in_turn_none_is_slow():
    turns = [[0.1 if turn % 4 != own else 0.9 for turn in range(40)] for own in range(4)]
    own = found({gpu(i): busy(tensor=0.05, active=turns[i], NVLINK_TX_BYTES=1e9) for i in range(4)})
    assert own["slow-rank"].sentence.startswith("All GPUs waited for each other alternately, up to ")
    # One of them waited longest, but not alone.
    turns[1] = [0.1 if turn in {1, 5, 9} else level for turn, level in enumerate(turns[1])]
    own = found({gpu(i): busy(tensor=0.05, active=turns[i], NVLINK_TX_BYTES=1e9) for i in range(4)})
    assert own["slow-rank"].sentence.startswith("All GPUs waited for each other alternately, up to ")
    assert "GPU 0" not in own["slow-rank"].sentence + own["slow-rank"].action


@pytest.mark.parametrize("interval", [1.0, 0.1])
def test_gpus_that_starve_in_the_demo_are_not_put_down_to_those_that_work(interval: float):
    """Its truth: input stalls GPUs 2 and 3 in a quarter of the time; GPUs 0 and 1 are well."""
    given = simulated(180, interval)
    advice = advise(given, score_table(given))
    assert not any(name in each.action for each in advice for name in ("GPU 0", "GPU 1", "GPUs 0", "vet"))
    told = [each.sentence for each in advice if each.rule == "slow-rank"]
    assert all(each.startswith("GPUs 2 and 3 had little to do") for each in told)
    assert told


@pytest.mark.parametrize("seconds", [60, 180])
def test_half_of_64_gpus_that_starve_are_not_put_down_to_the_other_half(seconds: int):
    """Work that scatters by some percent makes none of the GPUs that are well a slow one."""
    given = simulated(seconds, gpus=64)
    told = [each for each in advise(given, score_table(given)) if each.rule == "slow-rank"]
    assert told
    assert all(each.sentence.startswith("GPUs 2, 3, 6, 7 and 28 more had little to do") for each in told)
    assert all(each.action.startswith("Find out what GPUs 2, 3, 6, 7") for each in told)


def test_unknown_memory_gives_no_advice_on_the_batch():
    silent = found({gpu(): busy(tensor=0.3, dram=0.3, active=0.9)})
    assert not {"batch-size", "activation-checkpointing"} & set(silent)


@pytest.mark.parametrize("rule", [*SPEAKS, "demo"])
def test_each_loss_of_five_points_has_one_sentence_in_the_order_of_the_losses(rule):
    if rule == "demo":
        given = simulated(180)
    else:
        series, length = stretched(SPEAKS[rule])
        given = table(series, length=length)
    job = score_table(given)
    advice = advise(given, job)
    sentences = [each for each in advice if not each.alternative]
    named = [each.loss for each in sentences if each.loss]
    assert job.total is not None
    large = {name: points for name, points in job.total.losses.items() if round(points) >= 5}
    assert len(named) == len(set(named))
    assert set(large) <= set(named)
    points = [each.points for each in sentences]
    assert points == sorted(points, reverse=True)
    assert [each for each in named if each in large] == sorted(large, key=lambda name: -large[name])
    # What follows a sentence is about the same loss and gains no more.
    for first, second in itertools.pairwise(advice):
        assert not second.alternative or (second.loss == first.loss and second.gain <= first.gain)


def test_a_loss_that_is_small_in_each_sample_has_its_sentence_too():
    steady = busy(tensor=0.92, dram=0.3, active=0.92)
    given = table({gpu(): steady}, length=LENGTH)
    job = score_table(given)
    assert job.total is not None
    (loss,) = [name for name, points in job.total.losses.items() if points >= 5]
    assert [each.loss for each in advise(given, job) if each.loss] == [loss]


def test_remedies_of_one_loss_follow_its_sentence():
    advice = advise(given := table(SPEAKS["cuda-graphs"], length=LENGTH), score_table(given))
    assert [(each.rule, each.alternative) for each in advice if each.loss == "launch"] == [
        ("cuda-graphs", False),
        ("compile", True),
    ]


def test_advice_about_one_pattern_names_all_gpus_that_show_it():
    slow = busy(tensor=0.9, active=1.0, CLOCKS_EVENT_REASONS=64.0, GPU_TEMP=91.0, SM_CLOCK=990.0)
    own = found({gpu(i): slow for i in range(4)})["capping"]
    assert own.sentence.startswith("Heat or the hardware kept the clocks of all GPUs at 50 % of the maximum")
    own = found({gpu(i): WELL if i else busy(tensor=0.0, PIPE_FP32_ACTIVE=0.7) for i in range(4)})
    assert own["half-precision"].sentence.startswith("GPU 0 computed in FP32")
    assert own["quarter-precision"].sentence.startswith("The tensor pipes of GPUs 1, 2 and 3 were near")


def test_full_memory_and_free_memory_get_different_advice():
    assert "batch-size" not in found(SPEAKS["activation-checkpointing"])
    assert "activation-checkpointing" not in found(SPEAKS["batch-size"])


def test_links_that_are_full_need_no_larger_buckets():
    full = busy(tensor=0.2, dram=0.2, active=0.2, NVLINK_TX_BYTES=0.8 * 450e9)
    assert "bucket-size" not in found({gpu(0): full, gpu(1): full})


def test_start_up_is_no_evidence():
    on = [0.0] * 30 + [1.0] * 5 + [0.0] * 5
    starts = busy(tensor=on, dram=0.0, active=on, engine=on)
    own = found({gpu(): starts, host(): READS})["loader-workers"]
    assert own.evidence[0].start_ns == START_NS + 34 * 10**9


def test_no_score_no_advice():
    given = table({gpu(): {"GPU_UTIL": 1.0}}, length=5)
    assert advise(given, score_table(given)) == ()


def test_young_and_daly():
    # An hour of writing and a failure a day: sqrt(2 * 1 * 24) hours.
    assert young(3600, 86400) == pytest.approx(3600 * 48**0.5)
    # Daly's correction: 6.93 h * (1 + sqrt(1/48) / 3 + 1/432) - 1 h.
    assert daly(3600, 86400) == pytest.approx(3600 * (48**0.5 * (1 + (1 / 48) ** 0.5 / 3 + 1 / 432) - 1))
    assert daly(2 * 3600, 3600) == 3600
    assert daly(1, 1e9) == pytest.approx(young(1, 1e9), rel=1e-3)


def test_write_time_and_distance_are_measured():
    written = ([0.0] * 17 + [2e9] * 3) * 5
    given = table({gpu(): WELL, host(): {"IO_WRITE_BYTES": written}}, length=100)
    writes = write_bursts_of(given, Thresholds(), 1.0)
    assert (writes.seconds, writes.distance, len(writes.starts_ns)) == (3.0, 20.0, 5)
    assert writes.host == host().uuid
    own = found({gpu(): WELL, host(): {"IO_WRITE_BYTES": written}}, length=100)["checkpoint-interval"]
    assert own.sentence == "5 checkpoints of 3 s each came every 20 s."
    assert write_bursts_of(table({gpu(): WELL}, length=3), Thresholds(), 1.0) is None
