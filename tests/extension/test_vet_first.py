"""Vetting before a server's start: progress reported to the hub, and its decisions."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.job import VettingProgress
from gipfel_cluster.scheduler.excluded_nodes import exclude_nodes, excluded_nodes, remaining_variables
from gipfel_cluster.steps.container import step_job_from_environment
from gipfel_extension.vet_first import VetFirst, summarize_failures, vetting_progress
from gipfel_extension.vetting.model import CheckResult, Owner, Scope, Verdict
from gipfel_extension.vetting.protocol import ProtocolCheck, VettingProtocol
from gipfel_extension.vetting.report import VettingReport, make_report, read_report
from gipfel_extension.vetting.run.location import Location
from gipfel_spawner.failure import explain
from gipfel_spawner.failure.cause import Evidence
from gipfel_spawner.start.progress import vetting_page, vetting_text

_LIMIT_S = 120
_STRICT = """\
name: strict
checks:
- {name: memory, type: host_memory, parameters: {min_available: 1 %}}
- {name: variable, type: environment, parameters: {expected: {WANTED: "<1>"}}}
"""
_SERVER = ("--", "-c", "import sys; print('the server has', *sys.argv[1:])", "its arguments")


class Hub(ThreadingHTTPServer):
    """Takes what a job tells; answers with a status of the test's choice."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.told: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        self.status = 204


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(f"{self.path} {self.headers['Authorization']}")
        self.server.told.append(json.loads(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def start(tmp_path: Path, hub: Hub, *words: str, **more: str) -> "subprocess.Popen[str]":
    home, run = tmp_path / "home", tmp_path / "run"
    (home / ".gipfel" / "protocols").mkdir(parents=True, exist_ok=True)
    (home / ".gipfel" / "protocols" / "strict.yaml").write_text(_STRICT)
    (run / "telemetry").mkdir(parents=True, exist_ok=True)
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GIPFEL_", "SLURM", "JUPYTER"))}
    environment = {
        **kept, "HOME": str(home), "GIPFEL_RUN": str(run), "JUPYTERHUB_API_TOKEN": "t0ken",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.server_port}/hub/api", **more,
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "gipfel_extension.vet_first", *words, *_SERVER],
        env=environment, cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_fit_node_gets_its_server_and_the_hub_hears_of_it(tmp_path: Path, hub: Hub) -> None:
    job = start(tmp_path, hub, "strict", "abort", WANTED="<1>")
    said, errors = job.communicate(timeout=_LIMIT_S)
    assert (job.returncode, said.splitlines()[-1]) == (0, "the server has its arguments"), errors
    assert hub.tokens == {"/hub/api/gipfel/server/vetting token t0ken"}
    last = VettingProgress.model_validate(hub.told[-1])
    assert (last.nodes, last.done, last.bad, last.ended) == (1, 1, 0, True)
    assert last.rows[0].state == "pass"
    assert vetting_text(last) == "Vetting: The server starts."
    # Whether it ended before the hub could hear of it is a matter of time; a growing report shows both.
    assert [each["ended"] for each in hub.told].count(True) == 1


def test_abort_names_node_and_reason_and_report_starts_all_the_same(tmp_path: Path, hub: Hub) -> None:
    job = start(tmp_path, hub, "strict", "abort")
    said, errors = job.communicate(timeout=_LIMIT_S)
    assert job.returncode == 1
    assert "the server has" not in said
    found = explain(Evidence(state="FAILED", log=errors))
    assert found is not None
    # A variable that the environment lacks is not the node's fault.
    assert found.cause == "vetting-image"
    assert "ther nodes would fail in the same way" in found.fix
    assert "administrators" not in found.fix
    node = read_report(tmp_path / "run").bad_nodes[0]
    assert f"{node}: variable: WANTED is not set, and must be '<1>'" in found.reason
    last = VettingProgress.model_validate(hub.told[-1])
    assert (last.bad, last.rows[0].node, last.rows[0].state) == (1, node, "fail")
    assert last.outcome.endswith("No server starts.")
    # What a job says is text on the hub's page.
    page = vetting_page(last)
    assert "&lt;1&gt;" in page
    assert "<1>" not in page

    hub.status = 403
    told = len(hub.told)
    job = start(tmp_path, hub, "strict", "report")
    said, errors = job.communicate(timeout=_LIMIT_S)
    assert (job.returncode, said.splitlines()[-1]) == (0, "the server has its arguments"), errors
    # A hub that refuses is told nothing more, and does not stop anything.
    assert len(hub.told) == told + 1


def test_of_several_nodes_the_server_goes_on_with_those_that_are_fit(tmp_path: Path, hub: Hub) -> None:
    """The decision from reports; the cluster tests show that a real job leaves the nodes out."""
    run = tmp_path / "run"
    run.mkdir()
    environment = {
        "GIPFEL_RUN": str(run), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NNODES": "3",
        "SLURM_JOB_CPUS_PER_NODE": "8(x2),4", "GIPFEL_NODE": "n1", "JUPYTERHUB_API_TOKEN": "t0ken",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.server_port}/hub/api", "HOME": str(tmp_path),
    }  # fmt: skip

    def decided(bad: set[str], action: str, *, here: str = "n1") -> tuple[str, tuple[str, ...]]:
        vetting = VetFirst("strict", action, {**environment, "GIPFEL_NODE": here})
        report = report_of_nodes(("n1", "n2", "n3"), bad)
        return vetting._decide(report, vetted=report.vetted), vetting.without

    assert decided(set(), "shrink") == ("", ())
    assert decided({"n2"}, "shrink") == ("", ("n2",))
    assert hub.told[-1]["outcome"].endswith("n2: variable: it is not set. The server starts without n2.")
    assert excluded_nodes(str(run)) == {"n2"}
    assert Location.of(environment).nodes == ("n1", "n3")
    setting = step_job_from_environment(environment)
    assert (setting.nodes, setting.cpus) == (("n1", "n3"), 4)
    assert remaining_variables(environment, {"n2"}) == {
        "SLURM_JOB_NODELIST": "n[1,3]", "SLURM_NNODES": "2", "SLURM_JOB_CPUS_PER_NODE": "8,4",
    }  # fmt: skip
    # A requeued job starts over.
    exclude_nodes(run, ())
    assert excluded_nodes(str(run)) == frozenset()
    for bad, here in (({"n1"}, "n1"), ({"n1", "n2", "n3"}, "n1"), ({"n2"}, "n2")):
        problem, without = decided(bad, "shrink", here=here)
        assert (bool(problem), without) == (True, ())
        assert hub.told[-1]["outcome"].endswith("No server starts.")
    assert "The server would run on n2, which failed." in problem
    problem, without = decided({"n2"}, "abort")
    assert ("1 of 3 nodes not fit" in problem, without) == (True, ())
    assert decided({"n2"}, "report") == ("", ())
    assert excluded_nodes(str(run)) == frozenset()


@pytest.mark.parametrize(
    ("kind", "verdict", "owner", "bad", "cause"),
    [
        ("environment", Verdict.FAIL, None, {"n1"}, "vetting-failed"),
        ("environment", Verdict.FAIL, None, {"n1", "n2", "n3"}, "vetting-image"),
        ("matmul", Verdict.NOT_RUN, Owner.IMAGE, {"n1", "n2", "n3"}, "vetting-image"),
        ("matmul", Verdict.NOT_RUN, Owner.PROTOCOL, {"n1", "n2", "n3"}, "vetting-protocol"),
        ("storage_read", Verdict.FAIL, None, {"n1", "n2", "n3"}, "vetting-site"),
        ("temperature", Verdict.FAIL, None, {"n2"}, "vetting-failed"),
    ],
)
def test_the_page_says_whose_fault_it_is_and_what_that_one_can_do(
    kind: str, verdict: Verdict, owner: Owner | None, bad: set[str], cause: str
) -> None:
    report = report_of_nodes(("n1", "n2", "n3"), bad, kind=kind, verdict=verdict, owner=owner)
    line = f"gipfel: vet first: {summarize_failures(report)}"
    found = explain(Evidence(state="FAILED", log=line))
    assert found is not None
    assert found.cause == cause
    assert f"{len(bad)} of 3 nodes not fit by strict: {min(bad)}: variable: it is not set" in found.reason
    # Other nodes would have the same problem.
    assert ("Start again" in found.fix) is (cause == "vetting-failed")


def test_what_other_nodes_would_not_mend_is_said_first() -> None:
    checks = [ProtocolCheck(name=name, type=name) for name in ("temperature", "environment")]
    results = [
        result_of(node, verdict, kind=kind, check=kind)
        for kind, failing in (("temperature", {"n1"}), ("environment", {"n1", "n2", "n3"}))
        for node in ("n1", "n2", "n3")
        for verdict in [Verdict.FAIL if node in failing else Verdict.PASS]
    ]
    protocol = VettingProtocol(name="strict", checks=tuple(checks))
    report = make_report(protocol, ("n1", "n2", "n3"), results, started_ns=1, ended_ns=2, complete=True)
    assert report.exclude == "n1"
    assert {each.owner for each in report.nodes} == {Owner.IMAGE}
    assert summarize_failures(report).startswith(
        "Fault of the image: 3 of 3 nodes not fit by strict: n1: environ"
    )


def test_a_slow_pair_of_two_nodes_is_said_as_theirs() -> None:
    check = ProtocolCheck(name="pairs", type="collective", scope=Scope.PAIR)
    results = [
        result_of(node, Verdict.FAIL, kind="collective", check="pairs", scope=Scope.PAIR)
        for node in ("n1", "n2")
    ]
    protocol = VettingProtocol(name="strict", checks=(check,))
    report = make_report(protocol, ("n1", "n2"), results, started_ns=1, ended_ns=2, complete=True)
    found = explain(Evidence(state="FAILED", log=f"gipfel: vet first: {summarize_failures(report)}"))
    assert found is not None
    assert found.cause == "vetting-link"


def result_of(
    node: str,
    verdict: Verdict,
    *,
    kind: str = "environment",
    check: str = "variable",
    scope: Scope = Scope.NODE,
    owner: Owner | None = None,
) -> CheckResult:
    return CheckResult(
        check=check, type=kind, scope=scope, subject=node, node=node, verdict=verdict,
        reason="it is not set.", owner=owner,
    )  # fmt: skip


def report_of_nodes(
    nodes: tuple[str, ...],
    bad: set[str],
    *,
    kind: str = "environment",
    verdict: Verdict = Verdict.FAIL,
    owner: Owner | None = None,
) -> VettingReport:
    check = ProtocolCheck(name="variable", type=kind)
    results = [
        result_of(node, verdict, kind=kind, owner=owner) if node in bad else result_of(node, Verdict.PASS)
        for node in nodes
    ]
    protocol = VettingProtocol(name="strict", checks=(check,))
    return make_report(protocol, nodes, results, started_ns=1, ended_ns=2, complete=True)


def test_a_protocol_that_is_none_starts_no_server_and_says_so(tmp_path: Path, hub: Hub) -> None:
    job = start(tmp_path, hub, "strct", "report")
    said, errors = job.communicate(timeout=_LIMIT_S)
    assert (job.returncode, said) == (1, "")
    found = explain(Evidence(state="FAILED", log=errors))
    assert found is not None
    assert (found.cause, "There is no protocol 'strct'" in found.reason) == ("vetting-not-run", True)
    assert hub.told == []


def test_a_job_that_is_cancelled_meanwhile_ends_and_starts_no_server(tmp_path: Path, hub: Hub) -> None:
    job = start(tmp_path, hub, "cpu", "report")
    deadline = time.monotonic() + _LIMIT_S
    while not any(each["rows"] and each["rows"][0]["state"] == "running" for each in hub.told):
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=_LIMIT_S)
    assert job.returncode == 128 + signal.SIGTERM
    assert "the server has" not in said
    report = read_report(tmp_path / "run")
    assert (report.complete, report.vetted) == (False, False)
    assert vetting_progress(report).ended
