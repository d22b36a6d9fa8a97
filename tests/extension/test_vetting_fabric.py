"""Pairs compared with reference values of their network: nodes that are equally slow do not pass."""

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gipfel_extension.vetting.model import Owner, Verdict
from gipfel_extension.vetting.probing import ProbeAnswer
from gipfel_extension.vetting.protocol_files import load_protocol, parse_protocol
from gipfel_extension.vetting.report import VettingReport
from gipfel_extension.vetting.run.coordinator import Coordinator
from gipfel_extension.vetting.run.dispatch import AgentPool
from gipfel_extension.vetting.run.messages import (
    CheckDone,
    FindPort,
    Hello,
    PortFound,
    RankResult,
    RanksFinished,
    RunCheck,
    RunRanks,
    from_coordinator,
)
from gipfel_extension.vetting.run.rendezvous import AgentSocket, CoordinatorSocket
from gipfel_extension.vetting.run.report_builder import ReportBuilder

_PROBE = Path(__file__).parents[2] / "extension/gipfel_extension/vetting/checks/probes/collective.py"
_SLINGSHOT = {"fabric": "slingshot", "adapters": 4, "rate": 200e9, "transport": "AWS Libfabric"}
_UNKNOWN = {"fabric": "", "adapters": 0, "rate": 0.0, "transport": "Socket"}


def _pairs_of(name: str) -> str:
    """A protocol with nothing but the pairs of a shipped one."""
    shipped = load_protocol(name)
    (entry,) = [each for each in shipped.checks if each.name == "between nodes"]
    assert entry.threshold is not None
    wanted = entry.threshold.model_dump_json(exclude_defaults=True)
    # Few samples and rounds: the nodes of this test have no noise.
    parameters = "{device: cuda, per_gpu: true, samples: 5, pairs: {survey_rounds: 2}}"
    assert entry.parameters["per_gpu"] is True
    return (
        f"name: pairs\nchecks:\n- name: between nodes\n  type: collective\n  scope: pair\n"
        f"  parameters: {parameters}\n  threshold: {wanted}\n"
    )


def _run(
    folder: Path, protocol: str, nodes: int, rate: float, network: dict[str, Any], dead: str = ""
) -> VettingReport:
    """A step of `nodes` nodes with four GPUs each, whose probes all measure `rate`; those of one may die."""
    listener = CoordinatorSocket(local_only=True, node="here")
    builder = ReportBuilder(
        parse_protocol(protocol), [f"n{n}" for n in range(nodes)], folder, cluster="c", job="1"
    )
    pool = AgentPool(listener, builder.nodes)
    links = {node: AgentSocket(listener.rendezvous, "127.0.0.1") for node in builder.nodes}
    for node, link in links.items():
        hello = Hello(token=listener.rendezvous.token, node=node, address="127.0.0.1", gpus=4)
        link.send(hello.encode())
    ranks_of: set[int] = set()
    asked: Counter[str] = Counter()

    def answer() -> None:
        for node, link in links.items():
            while link.socket.poll(0):
                message = from_coordinator(link.socket.recv())
                said: Any = None
                if isinstance(message, RunCheck):
                    said = CheckDone(task=message.task)
                elif isinstance(message, FindPort):
                    said = PortFound(task=message.task, port=9)
                elif isinstance(message, RunRanks):
                    ranks_of.add(len(message.ranks))
                    asked[node] += 1
                    found = ProbeAnswer(samples=(rate,) * 7, unit="B/s", evidence={"network": network})
                    if node == dead:
                        found = ProbeAnswer(error="The rank was killed by signal 9.")
                    ends = tuple(
                        RankResult(rank=rank, answer=found, died=node == dead) for rank in message.ranks
                    )
                    said = RanksFinished(task=message.task, results=ends)
                if said is not None:
                    link.send(said.encode())

    try:
        coordinator = Coordinator(
            builder, pool, agent_problem=lambda _: "", end_reason=lambda: "", tick=answer
        )
        assert coordinator.run() == ""
    finally:
        for link in links.values():
            link.close()
        listener.close()
    # A rank on every GPU, so that every adapter is used.
    assert ranks_of == {4}
    # A rank that hangs or dies takes the time of one round, not of all.
    assert not dead or asked[dead] == 1 < min(asked[node] for node in builder.nodes if node != dead)
    return builder.report(ended=True, complete=True)


@pytest.mark.parametrize("name", ["standard", "gh200", "h100", "network"])
@pytest.mark.parametrize(
    ("nodes", "rate", "network", "verdict", "owner", "said"),
    [
        (2, 96e9, _SLINGSHOT, "pass", None, "96 GB/s"),
        (4, 96e9, _SLINGSHOT, "pass", None, "96 GB/s"),
        # Two nodes at 8 % of what they can, and one adapter of four that is dead.
        (2, 7.6e9, _SLINGSHOT, "fail", "link", "less than 76"),
        (4, 60e9, _SLINGSHOT, "fail", "site", "less than 76"),
        (4, 3.1e9, {**_SLINGSHOT, "transport": "Socket"}, "fail", "image", "NCCL uses sockets"),
        (4, 900e9, _SLINGSHOT, "inconclusive", "protocol", "more than slingshot can do"),
    ],
)  # fmt: skip
def test_pairs_are_held_against_what_their_network_can_do(
    tmp_path: Path,
    name: str,
    nodes: int,
    rate: float,
    network: dict[str, Any],
    verdict: str,
    owner: str,
    said: str,
) -> None:
    report = _run(tmp_path, _pairs_of(name), nodes, rate, network)
    assert {str(each.verdict) for each in report.results} == {verdict}
    assert {each.owner for each in report.results} == {Owner(owner) if owner else None}
    assert said in report.results[0].reason
    assert report.vetted is (verdict == "pass")
    # All of them are slow: none of them is barred.
    assert report.exclude == ""


def test_of_an_unknown_network_nothing_passes_before_its_line_is_set(tmp_path: Path) -> None:
    report = _run(tmp_path, _pairs_of("standard"), 4, 3.1e9, _UNKNOWN)
    assert {(each.verdict, each.owner) for each in report.results} == {(Verdict.INCONCLUSIVE, Owner.PROTOCOL)}
    assert "no reference value is known" in report.results[0].reason
    assert "Set at_least in the threshold of the check 'between nodes', line 3 of" in report.results[0].fix
    own = _pairs_of("standard").replace('{"of_reference', '{"at_least":2e9,"of_reference')
    assert _run(tmp_path, own, 4, 3.1e9, _UNKNOWN).vetted


def test_the_probe_reads_the_adapters_of_a_node_and_nccls_own_words(tmp_path: Path) -> None:
    probe = runpy.run_path(str(_PROBE))
    assert probe["adapters"](str(tmp_path)) == {"fabric": "", "adapters": 0, "rate": 0.0}

    def port(device: str, layer: str, rate: str, state: str = "4: ACTIVE") -> None:
        folder = tmp_path / "infiniband" / device / "ports" / "1"
        folder.mkdir(parents=True)
        for name, text in {"link_layer": layer, "rate": rate, "state": state}.items():
            (folder / name).write_text(f"{text}\n")

    for number in range(8):
        port(f"mlx5_{number}", "InfiniBand", "400 Gb/sec (4X NDR)")
    port("mlx5_8", "Ethernet", "100 Gb/sec (4X EDR)")
    port("mlx5_9", "InfiniBand", "400 Gb/sec (4X NDR)", "1: DOWN")
    assert probe["adapters"](str(tmp_path)) == {"fabric": "infiniband", "adapters": 8, "rate": 400e9}
    for number in range(4):
        (tmp_path / "cxi" / f"cxi{number}").mkdir(parents=True)
    assert probe["adapters"](str(tmp_path)) == {"fabric": "slingshot", "adapters": 4, "rate": 200e9}
    log = tmp_path / "nccl.log"
    log.write_text("n1:7:9 [0] NCCL INFO Bootstrap\nn1:7:9 [0] NCCL INFO Using network AWS Libfabric\n")
    assert probe["transport"](str(log)) == "AWS Libfabric"
    assert probe["transport"](str(log)) == ""


def test_a_rank_that_dies_is_named_and_asked_once(tmp_path: Path) -> None:
    report = _run(
        tmp_path, _pairs_of("standard").replace("rounds: 2", "rounds: 4"), 6, 96e9, _SLINGSHOT, "n2"
    )
    assert report.good_nodes == ("n0", "n1", "n3", "n4", "n5")
    (bad,) = [each for each in report.results if each.verdict is Verdict.FAIL]
    assert (bad.node, bad.owner, report.exclude) == ("n2", Owner.NODE, "n2")
    assert "killed by signal 9" in bad.reason


@pytest.mark.parametrize(("rate", "verdict"), [(60e9, "pass"), (10e9, "fail")])
def test_a_gate_over_all_nodes_is_measured_between_the_gpus_of_a_single_one(
    tmp_path: Path, rate: float, verdict: str
) -> None:
    gate = (
        "name: gate\nevals:\n- name: full\n  type: vetnode.evaluations.nccl_lib_eval.NcclLibEval\n"
        "  topology: full\n  min_bandwidth: 50 GB\n"
    )
    report = _run(tmp_path, gate, 1, rate, _SLINGSHOT)
    (found,) = report.results
    assert (found.verdict, found.measurement, report.vetted) == (verdict, rate, verdict == "pass")
