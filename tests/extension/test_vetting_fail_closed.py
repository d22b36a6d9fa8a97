"""A node that was not tested is not vetted, in the cases in which vetnode passes one."""
# ruff: noqa: N802 - NVML's own names

import json
import socket
import sys
import time
from typing import ClassVar

import pytest
from pydantic import ValidationError
from vetting_readings import FakeProbes, Readings, context, gpus

from gipfel_cluster.model import Frozen
from gipfel_extension.vetting import check
from gipfel_extension.vetting.attribution.compare import compare_with_allocation
from gipfel_extension.vetting.check import MissingRequirement
from gipfel_extension.vetting.gpus import Nvml, ReadingError
from gipfel_extension.vetting.model import CheckResult, Finding, Scope, Verdict, worst
from gipfel_extension.vetting.one_check import run_check
from gipfel_extension.vetting.probing import ProbeAnswer, read_answer
from gipfel_extension.vetting.protocol import ProtocolCheck, VettingProtocol
from gipfel_extension.vetting.protocol_files import parse_protocol
from gipfel_extension.vetting.threshold import Threshold, judge


def vetnode(text: str) -> ProtocolCheck:
    return parse_protocol(f"evals:\n- name: e\n  type: vetnode.evaluations.{text}").checks[0]


def test_1_a_check_that_raises_or_whose_host_is_unreachable():
    # Bound, so that no other process answers there, but not listening.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        text = f"internet_access.InternetAccessEval\n  host: 127.0.0.1\n  port: {port}\n  timeout: 1"
        (result,) = run_check(vetnode(text), context())
    assert result.verdict is Verdict.FAIL


def test_2_no_driver_on_the_node():
    class NoDriver:
        class NVMLError(Exception):
            pass

        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver Not Loaded")

    entry = vetnode("gpu_eval.GPUEval\n  max_temp: 30\n  max_used_memory: 0.2")
    (result,) = run_check(entry, context(gpus=Nvml({}, NoDriver())))
    assert (result.verdict, "Driver Not Loaded" in result.reason) == (Verdict.NOT_RUN, True)


def test_3_no_devices_were_found():
    class NoDevices:
        class NVMLError(Exception):
            pass

        def nvmlInit(self) -> None: ...
        def nvmlShutdown(self) -> None: ...
        def nvmlDeviceGetCount(self) -> int:
            return 0

    for type_ in ("gpu_count", "temperature", "gpu_memory"):
        (result,) = run_check(ProtocolCheck(name=type_, type=type_), context(gpus=Nvml({}, NoDevices())))
        assert (result.verdict, "No devices were found" in result.reason) == (Verdict.NOT_RUN, True)
    with pytest.raises(ReadingError):
        Nvml({}, NoDevices()).read()


def test_4_a_mistyped_type():
    entry = vetnode("gpu_eval.GPUEvall")
    (result,) = run_check(entry, context())
    assert (result.verdict, result.fix) == (
        Verdict.NOT_RUN, "Did you mean 'vetnode.evaluations.gpu_eval.GPUEval'?",
    )  # fmt: skip


def test_5_a_requirement_that_is_not_installed():
    entry = parse_protocol("checks:\n- {type: dns, requirements: ['no-such-package>=2']}").checks[0]
    (result,) = run_check(entry, context())
    assert (result.verdict, "no-such-package" in result.reason) == (Verdict.NOT_RUN, True)
    old = parse_protocol("checks:\n- {type: dns, requirements: ['pytest>=1000']}").checks[0]
    (result,) = run_check(old, context())
    assert (result.verdict, "the image has" in result.reason) == (Verdict.NOT_RUN, True)
    met = parse_protocol(
        "checks:\n- {type: dns, requirements: ['pytest>=1'], parameters: {names: [localhost]}}"
    ).checks[0]
    assert run_check(met, context())[0].verdict is Verdict.PASS
    unclear = parse_protocol("checks:\n- {type: dns, requirements: ['not a requirement!']}").checks[0]
    assert run_check(unclear, context())[0].verdict is Verdict.NOT_RUN
    # Ours does without it, and still says so where the image lacks what ours needs.
    cuda = vetnode("cuda_eval.CUDAEval\n  requirements: [cuda-python, numpy]")
    lacking = FakeProbes(ProbeAnswer(error="the image lacks a module: torch", missing="torch"))
    (result,) = run_check(cuda, context(probes=lacking))
    assert (result.verdict, "torch" in result.fix) == (Verdict.NOT_RUN, True)


def test_6_a_value_that_differs_on_one_rank():
    entry = vetnode('env_var_eval.EnvVarEval\n  expected: {NCCL_NET: "AWS Libfabric", RANK: null}')
    results = [
        run_check(entry, context(node=f"n{rank}", environment={"NCCL_NET": value}))[0]
        for rank, value in enumerate(("AWS Libfabric", "Socket"))
    ]
    assert [each.verdict for each in results] == [Verdict.PASS, Verdict.FAIL]
    assert worst([]) is Verdict.NOT_RUN


class Odd(Frozen):
    """A check that does what its parameter says."""

    scope: ClassVar[Scope] = Scope.NODE
    what: str = ""

    def run(self, given):
        if self.what == "raise":
            raise ValueError("line one\nline two")
        if self.what == "exit":
            sys.exit(0)
        if self.what == "missing":
            raise MissingRequirement("There is no tool.", "Install it.")
        if self.what == "sleep":
            time.sleep(60)
        if self.what == "nothing":
            return []
        if self.what == "none":
            return None
        if self.what == "wrong":
            return ["pass"]
        return [Finding(verdict=Verdict.PASS, reason="fine")]


@pytest.fixture
def odd(monkeypatch):
    """The check is found as another package's would be: by its entry point."""

    class Point:
        name, value = "odd", "odd_package:Odd"

        def load(self):
            return Odd

    class Broken(Point):
        name, value = "broken", "broken_package:Broken"

        def load(self):
            raise ImportError("No module named 'cupy'")

    monkeypatch.setattr(check, "_installed", lambda: {"odd": Point(), "broken": Broken()})


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise", "The check raised an exception: ValueError: line one line two"),
        ("exit", "The check raised an exception: SystemExit"),
        ("missing", "There is no tool."), ("sleep", "did not end within its time limit of 0.3 s"),
        ("nothing", "nothing to test"),
        ("none", "The check raised an exception"), ("wrong", "The check raised an exception"),
    ],
)  # fmt: skip
def test_whatever_a_check_does_is_a_verdict_that_does_not_pass(odd, what, said):
    text = f"checks:\n- {{type: odd, parameters: {{what: {what}}}, time_limit: 0.3 s}}"
    limit = "0.3 s" if what == "sleep" else "30 s"
    entry = parse_protocol(text.replace("0.3 s", limit)).checks[0]
    (result,) = run_check(entry, context())
    assert result.verdict is Verdict.NOT_RUN
    assert said in result.reason


def test_another_packages_check_is_found_and_one_that_cannot_be_imported_is_named(odd):
    protocol = parse_protocol("checks:\n- {type: odd}\n- {type: broken}\n- {type: od}")
    assert run_check(protocol.checks[0], context())[0].verdict is Verdict.PASS
    broken, mistyped = protocol.problems()
    assert "No module named 'cupy'" in broken.reason
    assert mistyped.fix == "Did you mean 'odd'?"


def test_a_warning_that_cannot_be_run_still_counts():
    (result,) = parse_protocol("checks:\n- {type: dns}\n- {type: nonsense, severity: warning}").problems()
    assert result.severity == "error"


def test_a_threshold_without_a_figure_does_not_pass():
    entry = parse_protocol("checks:\n- {type: compute_mode, threshold: {at_least: 1}}").checks[0]
    (result,) = run_check(entry, context(gpus=Readings(*gpus(1))))
    assert result.verdict is Verdict.INCONCLUSIVE


def test_only_pass_vets_and_degraded_where_the_protocol_tolerates_it():
    strict, lenient = (ProtocolCheck(name="c", type="dns", tolerate_degraded=each) for each in (False, True))
    assert [each for each in Verdict if strict.accepts(each)] == [Verdict.PASS]
    assert [each for each in Verdict if lenient.accepts(each)] == [Verdict.PASS, Verdict.DEGRADED]


def _compared(*figures, threshold):
    protocol = VettingProtocol(
        name="p", checks=(ProtocolCheck(name="m", type="matmul", scope=Scope.GPU, threshold=threshold),)
    )
    results = [
        CheckResult(
            check="m", type="matmul", scope=Scope.GPU, subject=f"g{number}", node=f"n{number}",
            verdict=Verdict.INCONCLUSIVE, reason="It waits.", measurement=figure,
            evidence={"awaits_comparison": True},
        )
        for number, figure in enumerate(figures)
    ]  # fmt: skip
    return [each.verdict for each in compare_with_allocation(protocol, results)]


def test_a_figure_that_is_no_number_passes_nothing():
    nothing = (float("nan"), float("inf"), float("-inf"))
    for odd in nothing:
        assert (
            _compared(5.0, 5.0, 5.0, odd, threshold=Threshold(below_median=0.1))[-1] is Verdict.INCONCLUSIVE
        )
        finding = Finding(verdict=Verdict.PASS, reason="r", measurement=odd)
        assert judge(finding, Threshold(at_most=9), type_="x").verdict is Verdict.INCONCLUSIVE
    for said in (*nothing, -1.0):
        answer = read_answer(json.dumps({"gipfel_probe": 1, "samples": [said]}).encode(), status=0)
        assert answer.error
        assert answer.samples == ()
    for field in ({"mads": float("inf")}, {"below_median": float("nan")}):
        with pytest.raises(ValidationError):
            Threshold.model_validate({"below_median": 0.1} | field)


def test_half_of_the_nodes_being_slow_passes_none_of_them():
    verdicts = _compared(100.0, 100.0, 50.0, 50.0, threshold=Threshold(below_median=0.1))
    assert verdicts == [Verdict.PASS, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE]
