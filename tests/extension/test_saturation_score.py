"""Score and losses: what adds up, what a missing sample may change, and which sign takes which step."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gipfel_extension.saturation import LOSSES, RESOURCES, Settings, Weights, score_table
from gipfel_extension.telemetry.sample import SampleTable, SegmentState

sys.path.insert(0, str(Path(__file__).parent))

from saturation_tables import START_NS, busy, gpu, host, table

IDLE = busy(tensor=0.0, dram=0.0, active=0.0, engine=0.0, GPU_UTIL=0.0)


def losses(found: SampleTable, settings: Settings | None = None) -> dict[str, float]:
    """The losses that are not 0, in points."""
    total = score_table(found, settings).total
    assert total is not None
    assert total.score + sum(total.losses.values()) == pytest.approx(100.0, abs=1e-9)
    return {name: pytest.approx(loss) for name, loss in total.losses.items() if loss > 1e-9}


def after_work(**values: object) -> dict[str, object]:
    """One busy second, so that the rest isn't start-up, then nothing on the GPU."""
    metrics = busy(tensor=[1.0, 0.0, 0.0, 0.0], dram=0.0, active=[1.0, 0, 0, 0], engine=[1.0, 0, 0, 0])
    return {**metrics, **values}


def test_nothing_at_all_is_idle_and_zero():
    job = score_table(table({gpu(): IDLE}, length=5))
    assert job.total is not None
    assert (job.total.score, job.total.losses["idle"], job.total.bottleneck) == (0.0, 100.0, "idle")
    assert job.startup == 0.0
    assert set(job.total.binding.values()) == {0.0}


def test_the_time_before_the_first_work_is_start_up_and_not_scored():
    off = [0.0, 0.0, 1.0, 1.0]
    job = score_table(table({gpu(): busy(tensor=off, dram=0.0, active=off, engine=off)}, length=4))
    assert (job.total.score, job.startup) == (100.0, 2.0)
    assert job.gpus[0].missing == 0


def test_a_gpu_that_never_worked_is_idle_while_the_job_is_scored():
    job = score_table(table({gpu(0): busy(tensor=1.0, active=1.0), gpu(1): IDLE, host(): {}}, length=4))
    assert job.gpus[1].total.losses["idle"] == 100.0
    assert (job.total.score, job.total.losses["imbalance"]) == (50.0, 0.0)
    assert (job.spread.worst_gpu, job.spread.gap) == (gpu(1).uuid, 100.0)


def test_off_without_a_sign_is_idle():
    assert losses(table({gpu(): after_work()}, length=4)) == {"idle": 75.0}


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("CPU_CORES_USED", 0.9),
        ("CPU_UTIL", 0.9),
        ("IO_READ_BYTES", 2e8),
        ("PRESSURE_IO", 0.3),
        ("PRESSURE_CPU", 0.3),
    ],
)
def test_off_while_the_host_is_busy_is_input(metric, value):
    assert losses(table({gpu(): after_work(), host(): {metric: value}}, length=4)) == {"input": 75.0}
    assert losses(table({gpu(): after_work(), host("nid2"): {metric: value}}, length=4)) == {"idle": 75.0}


def test_off_in_a_write_burst_is_checkpoint_on_every_node():
    written = [0.0, 0.0, 0.0, 3e8]
    job = table(
        {gpu(): after_work(), gpu(0, node="nid2"): after_work(), host("nid2"): {"IO_WRITE_BYTES": written}},
        length=4,
    )
    assert losses(job) == {"idle": 50.0, "checkpoint": 25.0}


def test_steady_writing_is_no_checkpoint():
    assert losses(table({gpu(): after_work(), host(): {"IO_WRITE_BYTES": 3e8}}, length=4)) == {"idle": 75.0}


def test_empty_sms_are_launch_and_waiting_pipes_occupancy():
    assert losses(table({gpu(): busy(tensor=0.1, dram=0.0, active=0.3)}, length=4)) == {
        "launch": 70.0,
        "occupancy": 20.0,
    }


@pytest.mark.parametrize("reason", [0x04, 0x08, 0x20, 0x40, 0x80, 0x84])
def test_waiting_with_a_clock_event_is_capped(reason):
    found = table({gpu(): busy(tensor=0.5, dram=0.0, active=1.0, CLOCKS_EVENT_REASONS=reason)}, length=4)
    assert losses(found) == {"capped": 50.0}


@pytest.mark.parametrize("reason", [0x0, 0x01, 0x02, 0x10, 0x100])
def test_other_clock_events_are_not(reason):
    found = table({gpu(): busy(tensor=0.5, dram=0.0, active=1.0, CLOCKS_EVENT_REASONS=reason)}, length=4)
    assert losses(found) == {"occupancy": 50.0}


def test_waiting_on_links_is_communication_among_several_gpus_alone():
    waits = busy(tensor=0.1, dram=0.0, active=0.1, NVLINK_TX_BYTES=0.1 * 450e9)
    assert losses(table({gpu(0): waits, gpu(1): waits}, length=4)) == {"communication": 90.0}
    assert losses(table({gpu(0): waits}, length=4)) == {"launch": 90.0}


def test_waiting_on_the_network_is_communication():
    waits = busy(tensor=0.1, dram=0.0, active=0.1)
    both = {gpu(0): waits, gpu(0, node="nid2"): waits, host(): {"NET_TX_BYTES": 5e9}}
    job = score_table(table(both, length=4))
    assert job.gpus[0].total.losses["communication"] == pytest.approx(90.0)
    assert job.gpus[1].total.losses["launch"] == pytest.approx(90.0)


def test_most_gpus_waiting_for_one_is_imbalance_on_them():
    slow, others = busy(tensor=0.8, active=0.9), busy(tensor=0.05, dram=0.0, active=0.1)
    job = score_table(table({gpu(0): slow, **{gpu(place): others for place in (1, 2, 3)}}, length=4))
    assert job.gpus[0].total.losses["imbalance"] == 0.0
    assert job.gpus[1].total.losses["imbalance"] == pytest.approx(80.0)


def test_one_gpu_behind_the_others_is_not_waiting_for_them():
    fast, behind = busy(tensor=0.8, active=0.9), busy(tensor=0.05, dram=0.0, active=0.1)
    job = score_table(table({gpu(0): behind, **{gpu(place): fast for place in (1, 2, 3)}}, length=4))
    assert job.gpus[0].total.losses["imbalance"] == 0.0
    assert job.gpus[0].total.losses["launch"] == pytest.approx(90.0)


def test_binding_shares_points_and_bottleneck():
    job = score_table(
        table({gpu(): busy(tensor=[0.8, 0.8, 0.0, 0.0], dram=[0.0, 0.0, 0.9, 0.009])}, length=4)
    )
    assert job.total.binding == {"compute": 0.5, "memory": 0.25, "interconnect": 0.0}
    assert sum(job.total.points.values()) == pytest.approx(job.total.score)
    assert job.total.bottleneck == "compute"


def test_weights_change_the_score_and_not_the_sum():
    found = table({gpu(): busy(tensor=0.1, dram=0.9)}, length=4)
    assert score_table(found).total.score == pytest.approx(100.0)
    assert score_table(found, Settings(Weights(memory=0.5))).total.score == pytest.approx(50.0)
    assert losses(found, Settings(Weights(memory=0.5))) == {"launch": 10.0, "occupancy": 40.0}


def test_a_rank_is_the_mean_of_its_gpus():
    devices = {gpu(0): busy(tensor=1.0), gpu(1): busy(tensor=0.5), gpu(2): busy(tensor=0.25)}
    ranks = {0: [gpu(0).uuid, gpu(1).uuid], 1: [gpu(2).uuid], 2: ["GPU-gone"]}
    job = score_table(table(devices, length=4), ranks=ranks)
    scores = [rank.total.score for rank in job.ranks if rank.total]
    # The third GPU's memory, 0.3 / 0.9, is above its tensor pipes.
    assert scores == pytest.approx([75.0, 100 / 3])
    assert job.ranks[2].total is None
    assert job.ranks[2].confidence == 0.0


def test_utilization_alone_gives_no_score_and_says_so():
    job = score_table(table({gpu(): {"GPU_UTIL": 1.0, "PCIE_RX_BYTES": 2e9}}, length=4))
    assert (job.total, job.confidence, job.gpus[0].utilization) == (None, 0.0, 1.0)
    assert any("utilization alone" in note for note in job.notes)


def test_no_gpu_and_no_sample_give_no_score():
    assert score_table(SampleTable()).total is None
    assert score_table(table({host(): {"CPU_UTIL": 0.5}}, length=3)).notes == (
        "There is no GPU in the recording.",
    )
    assert score_table(table({gpu(): busy()}, length=0)).total is None


def test_a_score_without_a_resource_is_a_lower_bound_and_says_so():
    job = score_table(table({gpu(): busy(dram=float("nan"), active=float("nan"))}, length=4))
    assert any("SM_ACTIVE is missing" in note for note in job.notes)
    assert any("lower bound without memory" in note for note in job.notes)
    assert job.confidence < score_table(table({gpu(): busy()}, length=4)).confidence


def test_each_sample_counts_for_its_own_recorders_interval():
    found = table({gpu(): busy(tensor=[1.0] * 10 + [0.0] * 3, dram=0.0)}, length=13)
    columns = found.of(gpu().uuid)
    # Ten samples in a second, then three in thirty seconds.
    seconds = np.concatenate((np.arange(10) * 0.1, 11.0 + np.arange(3) * 10.0))
    columns["time_ns"] = START_NS + (seconds * 1e9).astype(np.int64)
    states = tuple(SegmentState(f"{i}", "closed", rows=9, interval=i) for i in (0.1, 10.0))
    job = score_table(replace(found, segments=states, interval=10.0))
    assert job.total.score == pytest.approx(100.0 * 1.0 / 31.0, rel=1e-6)


def test_a_clock_that_was_set_wrong_costs_no_memory():
    found = table({gpu(): busy(), gpu(1): busy()}, length=3)
    found.of(gpu().uuid)["time_ns"][0] = 0
    job = score_table(found)
    assert job.total.score == pytest.approx(60.0)
    assert job.confidence < 0.01


def test_names_of_all_parts():
    total = score_table(table({gpu(): busy()}, length=3)).total
    assert tuple(total.losses) == LOSSES
    assert tuple(total.binding) == tuple(total.points) == RESOURCES


def test_a_real_host_says_nothing_about_a_simulated_gpu():
    pretended = replace(gpu(), simulated=True)
    writes = {"CPU_CORES_USED": 9.0, "IO_WRITE_BYTES": [0.0, 0.0, 0.0, 3e8]}
    assert losses(table({pretended: after_work(), host(): writes}, length=4)) == {"idle": 75.0}
    both = {pretended: after_work(), replace(host(), simulated=True): {"CPU_CORES_USED": 9.0}}
    assert losses(table(both, length=4)) == {"input": 75.0}


def test_a_window_scores_a_part_and_keeps_the_runs_start_up():
    on = [0.0] * 4 + [1.0] * 8 + [0.0] * 8
    found = table({gpu(): busy(tensor=on, dram=0.0, active=on, engine=on)}, length=20)
    second = 10**9
    job = score_table(found, window=(START_NS + 10 * second, START_NS + 13 * second))
    assert (job.total.score, job.total.losses["idle"], job.startup) == (50.0, 50.0, 4.0)
    assert (job.gpus[0].samples, job.gpus[0].missing) == (4, 0)
    # Nothing ran at the window's begin, but that is no start-up.
    late = score_table(found, window=(START_NS + 16 * second, START_NS + 99 * second))
    assert (late.total.losses["idle"], late.first_ns, late.last_ns) == (
        100.0,
        START_NS + 16 * second,
        START_NS + 19 * second,
    )
    whole = score_table(found, window=(0, START_NS + 99 * second))
    assert (whole.total, whole.gpus) == (score_table(found).total, score_table(found).gpus)
    assert score_table(found, window=(START_NS + 99 * second, START_NS + 100 * second)).total is None


def test_what_is_put_down_to_imbalance_is_counted_once():
    slow, waits = busy(tensor=0.8, active=0.9), busy(tensor=0.1, dram=0.0, active=0.1, engine=0.5)
    job = score_table(table({gpu(0): slow, gpu(1): waits, gpu(2): waits}, length=4))
    lost = job.gpus[1].total.losses
    assert (lost["imbalance"], lost["idle"], lost["launch"]) == pytest.approx((80.0, 0.0, 10.0))


def test_half_of_the_gpus_waiting_for_the_other_half_is_imbalance():
    busier, waits = busy(tensor=0.8, active=0.9), busy(tensor=0.1, dram=0.0, active=0.1)
    job = score_table(table({gpu(0): busier, gpu(1): busier, gpu(2): waits, gpu(3): waits}, length=4))
    assert [score.total.losses["imbalance"] for score in job.gpus] == pytest.approx([0.0, 0.0, 80.0, 80.0])
