"""Score and losses: sums, the effect of missing samples, and the indicator of each loss."""

from dataclasses import replace

import numpy as np
import pytest
from saturation_tables import START_NS, busy, gpu, host, table

from gipfel_extension.saturation import LOSSES, RESOURCES, Settings, Weights, score_table
from gipfel_extension.telemetry.sample import Provenance, SampleTable, SegmentState

#: Minimum traffic between GPUs that train together.
SOME = {"NVLINK_TX_BYTES": 1e9, "NVLINK_RX_BYTES": 1e9}
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


def test_the_time_before_the_first_work_is_start_up():
    off = [0.0, 0.0, 1.0, 1.0]
    job = score_table(table({gpu(): busy(tensor=off, dram=0.0, active=off, engine=off)}, length=4))
    assert (job.total.score, job.total.losses["start_up"], job.startup) == (50.0, 50.0, 2.0)
    assert job.gpus[0].missing == 0


def test_a_blip_before_the_work_does_not_end_the_start_up():
    on = [0.0] * 5 + [0.05] + [0.0] * 54 + [1.0] * 20
    job = score_table(table({gpu(): busy(tensor=on, dram=0.0, active=on, engine=on)}, length=80))
    assert (job.startup, job.total.losses["start_up"]) == (60.0, pytest.approx(75.0 - 5 / 80))
    # Work for a while, then a long pause, is a job that stands idle, not one that starts.
    on = [1.0] * 5 + [0.0] * 170 + [1.0] * 5
    assert (
        score_table(table({gpu(): busy(tensor=on, dram=0.0, active=on, engine=on)}, length=180)).startup
        == 0.0
    )


def test_a_gpu_that_never_worked_is_idle_while_the_job_is_scored():
    job = score_table(table({gpu(0): busy(tensor=1.0, active=1.0), gpu(1): IDLE, host(): {}}, length=4))
    assert job.gpus[1].total.losses["idle"] == 100.0
    assert (job.total.score, job.total.losses["imbalance"]) == (50.0, 0.0)
    assert (job.spread.worst_gpu, job.spread.gap) == (gpu(1).uuid, 100.0)


def test_off_is_idle_where_the_host_rests_too_and_else_unexplained():
    rests = {"CPU_CORES_USED": 0.05}
    assert losses(table({gpu(): after_work(), host(): rests}, length=4)) == {"idle": 75.0}
    assert losses(table({gpu(): after_work(), host(): {"CPU_CORES_USED": 1.0}}, length=4)) == {
        "unexplained": 75.0
    }
    assert losses(table({gpu(): after_work()}, length=4)) == {"unexplained": 75.0}


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("CPU_CORES_USED", 1.6),
        ("IO_READ_BYTES", 2e8),
        ("LUSTRE_READ_BYTES", 2e8),
        ("NFS_READ_BYTES", 2e8),
        ("PRESSURE_IO", 0.3),
        ("PRESSURE_CPU", 0.3),
    ],
)
def test_off_while_the_host_loads_is_input(metric, value):
    assert losses(table({gpu(): after_work(), host(): {metric: value}}, length=4)) == {"input": 75.0}
    assert losses(table({gpu(): after_work(), host("nid2"): {metric: value}}, length=4)) == {
        "unexplained": 75.0
    }


def test_off_while_data_comes_over_a_link_from_the_host_is_input():
    copies = after_work(PCIE_RX_BYTES=[0.0, 5e9, 5e9, 5e9])
    assert losses(table({gpu(): copies, host(): {"CPU_CORES_USED": 0.1}}, length=4)) == {"input": 75.0}
    # However full that link is, a GPU that computes nothing is not saturated.
    full = after_work(PCIE_RX_BYTES=[0.0, 55e9, 55e9, 55e9])
    assert score_table(table({gpu(): full}, length=4)).total.score == pytest.approx(25.0)


def test_small_gaps_beside_a_busy_thread_are_launches():
    # Sampled ten times a second, steady: the pauses are far below a sample.
    gaps = table(
        {gpu(): busy(tensor=0.02, dram=0.02, active=0.1, engine=0.5), host(): {"CPU_CORES_USED": 1.0}},
        length=40, interval=0.1,
    )  # fmt: skip
    assert losses(gaps) == {"launch": 90.0, "unexplained": pytest.approx(100 * (0.1 - 0.02 / 0.9))}
    long = [0.0] * 5 + [1.0] * 5
    alternates = busy(tensor=0.0, dram=0.0, active=long * 4, engine=long * 4)
    pauses = table({gpu(): alternates, host(): {"CPU_CORES_USED": 1.0}}, length=40, interval=0.1)
    assert "launch" not in losses(pauses)


@pytest.mark.parametrize("system", ["IO", "LUSTRE", "NFS"])
def test_off_in_a_write_burst_is_checkpoint_on_every_node(system):
    written = {f"{system}_WRITE_BYTES": [0.0, 0.0, 0.0, 3e8]}
    job = table(
        {gpu(): after_work(), gpu(0, node="nid2"): after_work(), host("nid2"): written},
        length=4,
    )
    assert losses(job) == {"unexplained": 50.0, "checkpoint": 25.0}


def test_steady_writing_is_no_checkpoint():
    assert losses(table({gpu(): after_work(), host(): {"IO_WRITE_BYTES": 3e8}}, length=4)) == {
        "unexplained": 75.0
    }


def test_empty_sms_are_launch_and_waiting_pipes_are_occupancy_where_warps_and_power_say_so():
    waits = busy(tensor=0.1, dram=0.0, active=0.3)
    assert losses(table({gpu(): waits}, length=4)) == {"launch": 70.0, "unexplained": 20.0}
    sparse = {**waits, "SM_OCCUPANCY": 0.02, "POWER_USAGE": 200.0}
    assert losses(table({gpu(): sparse}, length=4)) == {"launch": 70.0, "occupancy": 20.0}
    for other in ({"SM_OCCUPANCY": 0.2}, {"POWER_USAGE": 600.0}):
        assert "occupancy" not in losses(table({gpu(): {**sparse, **other}}, length=4))


def test_what_the_clock_lost_is_capped_and_no_more():
    half = {"SM_CLOCK": 990.0, "MAX_SM_CLOCK": 1980.0, "CLOCKS_EVENT_REASONS": 4.0}
    full = table({gpu(): busy(tensor=1.0, dram=0.0, active=1.0, **half)}, length=4)
    assert losses(full) == {"capped": 50.0}
    assert score_table(full).total.score == pytest.approx(50.0)
    waits = table({gpu(): busy(tensor=0.4, dram=0.0, active=1.0, **half)}, length=4)
    assert losses(waits) == {"capped": 50.0, "unexplained": 30.0}
    # Memory has its own clock.
    copies = table({gpu(): busy(tensor=0.0, dram=0.9, active=1.0, **half)}, length=4)
    assert losses(copies) == {}


def test_a_clock_event_at_full_clock_costs_nothing():
    found = busy(tensor=0.5, dram=0.0, active=1.0, CLOCKS_EVENT_REASONS=4.0, SM_CLOCK=1980.0)
    assert losses(table({gpu(): found}, length=4)) == {"unexplained": 50.0}


def test_a_metric_in_per_cent_is_an_error_of_the_source():
    tensor = [13.0, 0.4, 12.0, 15.0]
    job = score_table(table({gpu(): busy(tensor=tensor, dram=0.1)}, length=4))
    assert job.total.score < 20.0
    assert any("PIPE_TENSOR_ACTIVE: values above 1" in note for note in job.notes)


def test_a_gpu_weighs_by_the_time_that_it_was_held():
    found = table({gpu(0): busy(tensor=1.0), gpu(1): busy(tensor=0.5)}, length=40)
    columns = {key: values[:10] for key, values in found[gpu(1).uuid].items()}
    job = score_table(replace(found, columns={**found.columns, gpu(1).uuid: columns}))
    assert job.total.score == pytest.approx((40 * 100 + 10 * 50) / 50)


def test_a_slice_of_a_gpu_weighs_by_its_size():
    small = gpu(0, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    large = gpu(1, name="NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    job = score_table(table({small: busy(tensor=1.0), large: busy(tensor=0.6)}, length=4))
    assert job.total.score == pytest.approx(70.0)


def test_the_score_is_a_range_where_phases_may_alternate_within_a_sample():
    # One half of each second multiplies, the other copies: the mean shows both half busy.
    phases = [1.0, 0.0] * 40
    fine = table(
        {gpu(): busy(tensor=phases, dram=[0.9 * (1 - each) for each in phases], active=1.0)},
        length=80,
        interval=0.5,
    )
    assert score_table(fine).total.score == pytest.approx(100.0)
    coarse = score_table(table({gpu(): busy(tensor=0.5, dram=0.45, active=1.0)}, length=40)).total
    assert (coarse.score, coarse.lower_bound, coarse.upper_bound) == pytest.approx((50.0, 50.0, 100.0))
    # Half compute and half waiting, or half compute and half memory: neither can be told.
    assert coarse.bottleneck is None or coarse.points[coarse.bottleneck] == pytest.approx(50.0)
    steady = score_table(table({gpu(): busy(tensor=0.9, dram=0.05, active=1.0)}, length=40)).total
    assert steady.bottleneck == "compute"
    assert steady.upper_bound - steady.lower_bound < 7


def test_no_bottleneck_is_named_where_coarser_samples_would_show_another_score():
    # Four seconds multiply, two copy: samples of a second show 100, means of ten seconds far less.
    phases = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0] * 10

    def scored(interval: float):
        times = round(1.0 / interval)
        tensor = np.repeat(phases, times)
        work = busy(tensor=tensor, dram=0.9 * (1 - tensor), active=1.0)
        return score_table(table({gpu(): work}, length=60 * times, interval=interval)).total

    coarse, fine = scored(1.0), scored(0.1)
    assert (coarse.score, fine.score) == pytest.approx((100.0, 100.0))
    assert coarse.coarse_difference > 10.0
    assert (coarse.bottleneck, fine.bottleneck) == (None, "compute")


def test_waiting_on_links_is_communication_among_several_gpus_alone():
    waits = busy(tensor=0.1, dram=0.0, active=0.1, NVLINK_TX_BYTES=0.1 * 450e9)
    assert losses(table({gpu(0): waits, gpu(1): waits}, length=4)) == {"communication": 90.0}
    assert losses(table({gpu(0): waits}, length=4)) == {"launch": 90.0}


def test_waiting_on_the_network_is_communication():
    waits = busy(tensor=0.1, dram=0.0, active=0.1)
    both = {gpu(0): waits, gpu(0, node="nid2"): waits, host(): {"NET_TX_BYTES": 5e9, "NET_RX_BYTES": 5e9}}
    job = score_table(table(both, length=4))
    assert job.gpus[0].total.losses["communication"] == pytest.approx(90.0)
    assert job.gpus[1].total.losses["communication"] == 0.0


def test_reading_from_a_file_system_is_not_talking():
    waits = busy(tensor=0.1, dram=0.0, active=0.1)
    reads = {"NET_RX_BYTES": 5e9, "NET_TX_BYTES": 1e7, "LUSTRE_READ_BYTES": 5e9}
    assert "communication" not in losses(table({gpu(0): waits, gpu(1): waits, host(): reads}, length=4))


def test_most_gpus_waiting_for_one_is_imbalance_on_them():
    slow, others = busy(tensor=0.8, active=0.9, **SOME), busy(tensor=0.05, dram=0.0, active=0.1)
    job = score_table(table({gpu(0): slow, **{gpu(place): others for place in (1, 2, 3)}}, length=4))
    assert job.gpus[0].total.losses["imbalance"] == 0.0
    assert job.gpus[1].total.losses["imbalance"] == pytest.approx(80.0)


def test_one_gpu_behind_the_others_is_not_waiting_for_them():
    fast, behind = busy(tensor=0.8, active=0.9), busy(tensor=0.05, dram=0.0, active=0.1)
    job = score_table(table({gpu(0): behind, **{gpu(place): fast for place in (1, 2, 3)}}, length=4))
    assert job.gpus[0].total.losses["imbalance"] == 0.0
    assert job.gpus[0].total.losses["unexplained"] == pytest.approx(95.0)


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
    assert losses(found, Settings(Weights(memory=0.5))) == {"launch": 10.0, "unexplained": 40.0}


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
    columns = found[gpu().uuid]
    # Ten samples in a second, then three in thirty seconds.
    seconds = np.concatenate((np.arange(10) * 0.1, 11.0 + np.arange(3) * 10.0))
    columns["time_ns"] = START_NS + (seconds * 1e9).astype(np.int64)
    states = tuple(
        SegmentState(f"{i}", "closed", rows=9, provenance=Provenance(interval=i)) for i in (0.1, 10.0)
    )
    job = score_table(replace(found, segments=states, interval=10.0))
    assert job.total.score == pytest.approx(100.0 * 1.0 / 31.0, rel=1e-6)


def test_a_clock_that_was_set_wrong_costs_no_memory():
    found = table({gpu(): busy(), gpu(1): busy()}, length=3)
    found[gpu().uuid]["time_ns"][0] = 0
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
    assert losses(table({pretended: after_work(), host(): writes}, length=4)) == {"unexplained": 75.0}
    both = {pretended: after_work(), replace(host(), simulated=True): {"CPU_CORES_USED": 9.0}}
    assert losses(table(both, length=4)) == {"input": 75.0}


def test_what_is_put_down_to_imbalance_is_counted_once():
    slow, waits = busy(tensor=0.8, active=0.9, **SOME), busy(tensor=0.1, dram=0.0, active=0.1, engine=0.5)
    job = score_table(table({gpu(0): slow, gpu(1): waits, gpu(2): waits}, length=4))
    lost = job.gpus[1].total.losses
    assert (lost["imbalance"], lost["idle"], lost["unexplained"]) == pytest.approx((80.0, 0.0, 10.0))


def test_a_rank_that_is_a_tenth_slower_costs_the_others_a_tenth():
    # Nine tenths of each step they compute, one tenth they wait in a kernel on few SMs for the slow one.
    works, waits = [0.95] * 9 + [0.95], [0.95] * 9 + [0.1]
    slow = busy(tensor=0.5, active=works * 40, **SOME)
    others = busy(tensor=[0.5 if each > 0.5 else 0.0 for each in waits] * 40, dram=0.0, active=waits * 40)
    found = table({gpu(0): slow, **{gpu(place): others for place in (1, 2, 3)}}, length=400, interval=0.1)
    job = score_table(found)
    assert job.gpus[0].total.losses["imbalance"] == 0.0
    assert job.gpus[1].total.losses["imbalance"] == pytest.approx(8.5, abs=0.5)


def test_gpus_that_exchange_nothing_wait_for_nobody():
    slow, others = busy(tensor=0.8, active=0.9), busy(tensor=0.05, dram=0.0, active=0.1)
    job = score_table(table({gpu(0): slow, **{gpu(place): others for place in (1, 2, 3)}}, length=4))
    assert job.total.losses["imbalance"] == 0.0


def test_half_of_the_gpus_waiting_for_the_other_half_is_imbalance():
    busier, waits = busy(tensor=0.8, active=0.9, **SOME), busy(tensor=0.1, dram=0.0, active=0.1)
    job = score_table(table({gpu(0): busier, gpu(1): busier, gpu(2): waits, gpu(3): waits}, length=4))
    assert [score.total.losses["imbalance"] for score in job.gpus] == pytest.approx([0.0, 0.0, 80.0, 80.0])
