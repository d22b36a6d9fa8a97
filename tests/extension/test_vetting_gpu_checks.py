"""Checks of GPUs on recorded readings: faults are found, and unknown values do not pass."""

import dataclasses
import functools
import threading
import time

import pytest
from vetting_readings import HEALTHY, FakeHost, FakeProbes, Readings, context, gpus

from gipfel_extension.vetting.attribution.compare import compare_with_allocation
from gipfel_extension.vetting.check import ProgramResult
from gipfel_extension.vetting.checks import throughput
from gipfel_extension.vetting.checks.thermal import ThrottleMonitor
from gipfel_extension.vetting.gpus import NvLink, Process, Remapped
from gipfel_extension.vetting.model import Finding, Verdict
from gipfel_extension.vetting.one_check import run_check
from gipfel_extension.vetting.probing import ProbeAnswer
from gipfel_extension.vetting.protocol import VettingProtocol, parse_entry
from gipfel_extension.vetting.protocol_files import load_protocol

PASS, DEGRADED, FAIL = Verdict.PASS, Verdict.DEGRADED, Verdict.FAIL
NOT_RUN, INCONCLUSIVE = Verdict.NOT_RUN, Verdict.INCONCLUSIVE
OF_NVML = (
    "gpu_count", "gpu_memory", "gpu_processes", "compute_mode", "temperature", "clocks", "power_limit", "ecc",
    "remapped_rows", "nvlink", "pcie",
)  # fmt: skip


def look(type_, *readings, host=None, expected=4, error="", threshold=None, **parameters):
    entry = parse_entry({"name": type_, "type": type_, "parameters": parameters, "threshold": threshold})
    assert not entry.problem, entry.problem
    given = {"gpus": Readings(*(readings or gpus()), error=error), "expected_gpus": expected}
    return run_check(entry, context(**given, **({"host": host} if host else {})))


@pytest.mark.parametrize("type_", OF_NVML)
def test_a_healthy_node_passes_and_one_without_answers_does_not(type_):
    assert {each.verdict for each in look(type_)} == {PASS}
    assert {each.subject for each in look(type_)} in (
        {"nid000001"}, {"GPU-0", "GPU-1", "GPU-2", "GPU-3"},
    )  # fmt: skip
    for error in (
        "No devices were found: NVML lists no GPU.",
        "NVML can't be initialized: Driver Not Loaded.",
    ):
        (result,) = look(type_, error=error)
        assert result.verdict is NOT_RUN
        assert error in result.reason
        assert result.fix
    if type_ != "gpu_count":
        silent = type(HEALTHY)(uuid="GPU-0", index=0, name="NVIDIA GH200 120GB")
        (result,) = look(type_, silent)
        assert result.verdict is INCONCLUSIVE


@pytest.mark.parametrize(
    ("type_", "change", "verdict", "said"),
    [
        ("gpu_memory", {"memory_used": 60 * 10**9}, FAIL, "60 GB of 103 GB"),
        ("gpu_processes", {"processes": (Process(10**9, 8 * 10**9),)}, FAIL, "(unknown) with 8 GB"),
        ("compute_mode", {"compute_mode": "exclusive_process"}, FAIL, "exclusive_process"),
        ("compute_mode", {"compute_mode": "prohibited"}, FAIL, "prohibited"),
        ("temperature", {"temperature_c": 80.0}, FAIL, "not 10 °C below its slowdown temperature (87 °C)"),
        ("clocks", {"clock_reasons": 0x48}, FAIL, "hardware slowdown, hardware thermal slowdown"),
        ("clocks", {"clock_reasons": 0x04}, FAIL, "software power cap"),
        ("clocks", {"sm_clock_limit_mhz": 1200.0}, FAIL, "limited to 1200 of 1980 MHz"),
        ("clocks", {"clock_reasons": 0, "memory_clock_mhz": 1593.0}, FAIL, "1593 of 2619 MHz"),
        ("power_limit", {"power_limit_w": 500.0}, FAIL, "500 of 900 W"),
        ("ecc", {"ecc_uncorrected": 2}, FAIL, "2 uncorrected"),
        ("ecc", {"ecc_enabled": False}, FAIL, "off"),
        ("ecc", {"ecc_corrected": 30_000_000}, DEGRADED, "30000000 corrected"),
        ("remapped_rows", {"remapped": Remapped(0, 1, pending=True, failed=False)}, FAIL, "is pending"),
        ("remapped_rows", {"remapped": Remapped(0, 1, pending=False, failed=True)}, FAIL, "could not be"),
        ("remapped_rows", {"remapped": Remapped(0, 600, pending=False, failed=False)}, FAIL, "600 rows"),
        ("remapped_rows", {"recovery_action": 2}, FAIL, "requests a reset"),
        ("remapped_rows", {"remapped": None, "retired_pages": 12}, FAIL, "12 pages"),
        ("nvlink", {"nvlinks": tuple(NvLink(i, active=i != 7) for i in range(18))}, FAIL, "17 of 18"),
        ("nvlink", {"nvlinks": (NvLink(0, active=True), NvLink(1, active=False))}, FAIL, "down: 1"),
        ("nvlink", {"nvlinks": (NvLink(0, active=True, recovery_errors=3),)}, DEGRADED, "recovered 3"),
        ("nvlink", {"nvlinks": (*(NvLink(i, active=True) for i in range(5)), NvLink(5))}, INCONCLUSIVE,
         "whether NVLink 5 is up"),
        ("temperature", {"temperature_c": -273.0}, INCONCLUSIVE, "not plausible"),
        ("clocks", {"memory_clock_max_mhz": 1593.0, "memory_clock_mhz": 1593.0}, FAIL, "allows 2619 MHz"),
        ("pcie", {"pcie_width": 8, "pcie_width_max": 8, "name": "NVIDIA H100 80GB HBM3"}, DEGRADED,
         "slot has 8 lanes"),
        ("pcie", {"pcie_width": 8}, FAIL, "8 of 16 lanes"),
        ("pcie", {"pcie_replays": 50_000}, DEGRADED, "50000"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_gpu_is_named(type_, change, verdict, said):
    results = look(type_, *gpus(**change))
    assert [each.verdict for each in results] == [verdict, PASS, PASS, PASS]
    assert said in results[0].reason
    assert results[0].subject == "GPU-0"
    assert results[0].fix


def test_count_and_model():
    assert look("gpu_count", *gpus(3))[0].reason == "NVML lists 3 of 4 GPUs."
    assert look("gpu_count", *gpus(8), expected=None, count=8)[0].verdict is PASS
    assert look("gpu_count", *gpus(4), expected=None)[0].verdict is FAIL
    assert look("gpu_count", *gpus(4), model="H100")[0].verdict is FAIL
    assert look("gpu_count", *gpus(4, name="NVIDIA H100 80GB HBM3"))[0].verdict is FAIL


def test_this_jobs_own_process_is_only_noted():
    entry = parse_entry({"type": "gpu_processes"})
    held = gpus(1, processes=(Process(77, 10**9),))
    host = FakeHost(texts={"/proc/77/environ": "A=b\0SLURM_JOB_ID=5\0", "/proc/77/comm": "python\n"})
    for job, verdict in (("5", DEGRADED), ("55", FAIL), ("", FAIL)):
        given = context(gpus=Readings(*held), host=host, environment={"SLURM_JOB_ID": job})
        assert run_check(entry, given)[0].verdict is verdict


XID_LOG = """[   10.000000] NVRM: loading NVIDIA UNIX Open Kernel Module
[ 9000.123456] NVRM: Xid (PCI:0009:01:00): 79, pid='<unknown>', GPU has fallen off the bus.
"""


@pytest.mark.parametrize(
    ("log", "status", "verdict", "said"),
    [
        (XID_LOG, 0, FAIL, "XID 79 on 0009:01:00"),
        (XID_LOG.replace("79", "31"), 0, PASS, "No XID"),
        (XID_LOG.replace("79", "95"), 0, FAIL, "XID 95"),
        # A log that begins 100 s ago says nothing of two hours, but what it says counts.
        ("[ 9900.000000] usb 1-1: new device\n", 0, INCONCLUSIVE, "reaches back only 0.028 of 2 h"),
        (XID_LOG.replace("[   10.0", "[ 8990.0"), 0, FAIL, "XID 79"),
        ("usb 1-1: new device\n", 0, INCONCLUSIVE, "has no times"),
        (XID_LOG.replace("79", "149"), 0, DEGRADED, "XID 149"),
        (XID_LOG.replace("[ 9000.123456]", "[  100.0]"), 0, PASS, "No XID"),
        (XID_LOG.replace("[ 9000.123456]", "Nov 21 20:00:00"), 0, INCONCLUSIVE, "can't be parsed"),
        (
            "dmesg: read kernel buffer failed: Operation not permitted\n",
            1,
            NOT_RUN,
            "Operation not permitted",
        ),
        ("", 0, NOT_RUN, "empty"),
    ],
)
def test_xid_in_the_kernels_log(log, status, verdict, said):
    host = FakeHost(texts={"/proc/uptime": "10000.00 1.00\n"}, programs={"dmesg": ProgramResult(status, log)})
    (result,) = look("xid", host=host)
    assert (result.verdict, said in result.reason) == (verdict, True), result.reason
    # Without a driver, none is logged.
    assert look("xid", host=host, error="Driver Not Loaded")[0].verdict is NOT_RUN
    (missing,) = look("xid", host=FakeHost(programs={}))
    assert missing.verdict is NOT_RUN


def test_a_hot_gpu_is_found_beside_the_others_of_the_allocation():
    entry = parse_entry({"name": "t", "type": "temperature", "threshold": {"above_median": "12 C"}})
    results = []
    for node in range(4):
        readings = gpus(4, temperature_c=31.0 + (20 if node == 2 else 0))
        found = run_check(entry, context(node=f"n{node}", gpus=Readings(*readings)))
        results += [each.model_copy(update={"subject": f"{each.node}:{each.subject}"}) for each in found]
    assert {each.verdict for each in results} == {INCONCLUSIVE}, "nothing to compare with yet"
    compared = compare_with_allocation(VettingProtocol(name="p", checks=(entry,)), results)
    assert [each.subject for each in compared if each.verdict is not PASS] == ["n2:GPU-0"]
    assert "above the allocation's median" in next(each for each in compared if each.verdict is FAIL).reason
    (alone,) = compare_with_allocation(VettingProtocol(name="p", checks=(entry,)), results[:1])
    assert alone.verdict is INCONCLUSIVE


def answer(*rates: float, wrong: int = 0, name: str = "NVIDIA GH200 120GB") -> ProbeAnswer:
    devices = [
        {"uuid": f"GPU-{index}", "name": name, "index": index, "samples": [rate] * 5, "wrong": wrong}
        for index, rate in enumerate(rates)
    ]
    return ProbeAnswer(unit="FLOP/s", devices=tuple(devices))


def test_matmul_is_held_against_the_best_known_figure_and_its_values():
    entry = parse_entry(
        {"type": "matmul", "parameters": {"device": "cuda"}, "threshold": {"of_reference": "80 %"}}
    )

    def results(given: ProbeAnswer, expected: int | None = 1):
        return run_check(entry, context(probes=FakeProbes(given), expected_gpus=expected))

    assert results(answer(800e12))[0].verdict is PASS
    slow = results(answer(500e12))[0]
    assert slow.verdict is FAIL
    assert "61% of the reference value for NVIDIA GH200" in slow.reason
    assert results(answer(800e12, wrong=3))[0].reason == "3 values of the result are wrong."
    assert results(answer(800e12, name="Some GPU"))[0].verdict is INCONCLUSIVE
    assert results(ProbeAnswer(error="torch sees no GPU"))[0].verdict is FAIL
    assert (
        results(ProbeAnswer(error="the image lacks a module: torch", missing="torch"))[0].verdict is NOT_RUN
    )
    assert results(ProbeAnswer(), expected=0)[0].verdict is NOT_RUN
    assert [each.verdict for each in results(answer(800e12), expected=2)] == [PASS, FAIL]


def _of_samples(type_: str, *samples: float, threshold: object = None, **more: object):
    device = {"uuid": "GPU-0", "name": "NVIDIA GH200 120GB", "index": 0, "samples": [*samples], **more}
    entry = parse_entry({"name": type_, "type": type_, "threshold": threshold})
    given = FakeProbes(ProbeAnswer(unit="B/s", devices=(device,)))
    (found,) = run_check(entry, context(probes=given, expected_gpus=1))
    return found


@pytest.mark.parametrize(
    ("samples", "threshold", "verdict", "said"),
    [
        ((800e12,) * 7, {"of_reference": "80 %"}, PASS, "97%"),
        ((80e12,) * 3 + (800e12,) * 4, {"of_reference": "80 %"}, FAIL, "two modes"),
        ((80e12,) * 3 + (800e12,) * 4, None, FAIL, "two modes"),
        ((400e12, 500e12, 600e12, *(800e12,) * 4), {"at_least": 650e12}, FAIL, "3 of 7 samples"),
        ((400e12, *(800e12,) * 6), {"at_least": 650e12}, INCONCLUSIVE, "1 of 7 samples"),
        # A thousand times the data sheet's value, for any protocol.
        ((8e17,) * 7, {"of_reference": "80 %"}, INCONCLUSIVE, "more than NVIDIA GH200"),
        ((8e17,) * 7, None, INCONCLUSIVE, "more than NVIDIA GH200"),
    ],
)
def test_a_tenth_of_the_samples_and_the_most_that_is_possible_count(samples, threshold, verdict, said):
    found = _of_samples("matmul", *samples, threshold=threshold)
    assert (found.verdict, said in found.reason) == (verdict, True), found.reason


@pytest.mark.parametrize(
    ("back", "verdict"),
    [([297e9] * 7, PASS), ([30e9] * 7, FAIL), ([30e9] * 3 + [297e9] * 4, FAIL), ([], INCONCLUSIVE)],
)
def test_the_way_back_to_the_host_is_judged_as_well(back, verdict):
    found = _of_samples("host_copy", *[330e9] * 7, threshold={"of_reference": "70 %"}, to_host=back)
    assert found.verdict is verdict, found.reason


class Heating:
    """Probes that take a while, and NVML that meanwhile sees clocks go down."""

    def __init__(self, given: ProbeAnswer, *, seen: int, reasons: int) -> None:
        self.given, self.seen, self.reasons, self.read_often = given, seen, reasons, threading.Event()
        self.readings, self.requests = 0, []

    def read(self):
        self.readings += 1
        if self.readings >= 4:
            self.read_often.set()
        hot = self.reasons if self.readings <= self.seen else 0
        return gpus(1, clock_reasons=hot, sm_clock_mhz=345.0 if hot else 1900.0, temperature_c=85.0)

    def run(self, spec):
        self.requests.append(spec.request)
        assert self.read_often.wait(20)
        return self.given


@pytest.mark.parametrize(
    ("seen", "reasons", "verdict"), [(9, 0x40, FAIL), (1, 0x40, PASS), (9, 0x04, PASS), (0, 0, PASS)]
)
def test_a_gpu_that_slows_down_when_it_is_warm_fails(seen, reasons, verdict, monkeypatch):
    monkeypatch.setattr(throughput, "ThrottleMonitor", functools.partial(ThrottleMonitor, interval_s=0.01))
    heating = Heating(answer(800e12), seen=seen, reasons=reasons)
    (entry,) = [each for each in load_protocol("standard").checks if each.type == "matmul"]
    (found,) = run_check(entry, context(gpus=heating, probes=heating, expected_gpus=1))
    assert heating.requests[0]["heat"] == 30.0
    waits = INCONCLUSIVE if entry.threshold is None else verdict
    assert found.verdict is waits, found.reason
    if verdict is FAIL:
        assert "hardware thermal slowdown" in found.reason
    else:
        assert found.evidence["max_temperature_c"] == 85.0


@pytest.mark.parametrize(("subject", "throttled"), [
    ("GPU-1", True), ("GPU-0", False), ("GPU 1", True), ("GPU 0", False), ("MIG-1", None), ("GPU 2", None),
])  # fmt: skip
def test_throttling_counts_for_the_gpu_that_torch_names_by_uuid_or_index(subject, throttled):
    first, second = gpus(2)
    readings = Readings(first, dataclasses.replace(second, clock_reasons=0x40))
    with ThrottleMonitor(context(gpus=readings), interval_s=0.001) as watch:
        end = time.monotonic() + 60
        while len(watch._readings["GPU-1"]) < 3 and time.monotonic() < end:
            time.sleep(0.001)
    (found,) = watch.judge([Finding(verdict=PASS, reason="x", subject=subject)])
    assert found.verdict is {True: FAIL, False: PASS, None: INCONCLUSIVE}[throttled]
    if throttled:
        assert f"of {len(watch._readings['GPU-1'])} readings: hardware thermal slowdown." in found.reason


def test_the_only_gpu_is_that_of_a_mig_instance():
    with ThrottleMonitor(context(gpus=Readings(*gpus(1)))) as watch:
        end = time.monotonic() + 60
        while not watch._readings and time.monotonic() < end:
            time.sleep(0.001)
    (found,) = watch.judge([Finding(verdict=PASS, reason="x", subject="GPU-MIG-of-torch")])
    assert found.verdict is PASS


def test_a_gpu_whose_clocks_nobody_could_watch_is_not_vetted_by_its_load():
    entry = parse_entry({"type": "matmul", "parameters": {"device": "cuda", "heat": "1 s"}})
    blind = Readings(error="NVML is gone.")
    (found,) = run_check(entry, context(gpus=blind, probes=FakeProbes(answer(800e12)), expected_gpus=1))
    assert (found.verdict, "could not be read under load" in found.reason) == (INCONCLUSIVE, True)


def test_readings_are_values():
    assert dataclasses.is_dataclass(HEALTHY)
    with pytest.raises(dataclasses.FrozenInstanceError):
        HEALTHY.uuid = "other"  # type: ignore[misc]
