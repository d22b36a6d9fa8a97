"""vetnode's six ways to pass an untested node, each as its own YAML: non-zero here, with a report."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvml_stand_in
import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.vetting.history.queries import Exclusion, Exclusions
from gipfel_extension.vetting.history.site_registry import has_consent
from gipfel_extension.vetting.protocol_files import find_protocol, known_protocols, load_protocol

_LIMIT_S = 120
_RAISES = """
from typing import ClassVar
from gipfel_cluster.model import Frozen
from gipfel_extension.vetting.model import Scope

class Raises(Frozen):
    scope: ClassVar[Scope] = Scope.NODE

    def run(self, context):
        raise RuntimeError("the tool broke")
"""


@dataclass
class Outcome:
    """Exit status and report of ``gipfel vet``."""

    status: int
    stdout: str
    stderr: str
    report: dict[str, Any]

    def of(self, check: str) -> dict[str, Any]:
        """The only verdict of a check."""
        (found,) = (each for each in self.report["results"] if each["check"] == check)
        return found


def _vet(folder: Path, protocol: str, *options: str, **variables: str) -> Outcome:
    file = folder / "protocol.yaml"
    file.write_text(protocol)
    kept = {name: each for name, each in os.environ.items() if name in {"PATH", "LANG"}}
    environment = {**kept, "HOME": str(folder), "GIPFEL_RUNS": str(folder / "runs"), **variables}
    argv = [sys.executable, "-m", "gipfel_extension.cli", "vet", str(file), *options]
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    reports = list(folder.glob("runs/*/vetting.json"))
    report = json.loads(reports[0].read_text()) if reports else {}
    return Outcome(done.returncode, done.stdout, done.stderr, report)


def _one(kind: str, **keys: object) -> str:
    entry = {"name": "it", "type": f"vetnode.evaluations.{kind}", **keys}
    return json.dumps({"name": "a protocol of vetnode's", "scheduler": "standalone", "evals": [entry]})


def _refused(outcome: Outcome, check: str, verdict: str, *words: str) -> None:
    assert outcome.status == 1, outcome.stderr
    assert outcome.report["complete"]
    assert (outcome.report["vetted"], outcome.report["good_nodes"]) == (False, [])
    found = outcome.of(check)
    assert found["verdict"] == verdict
    for word in words:
        assert word in found["reason"]
    assert "Traceback" not in outcome.stderr + outcome.stdout


def test_1_a_check_that_refuses(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Bound and never listening: connections are refused.
        taken.bind(("127.0.0.1", 0))
        entry = _one(
            "internet_access.InternetAccessEval", host="127.0.0.1", port=taken.getsockname()[1], timeout=3
        )
        _refused(_vet(tmp_path, entry), "it", "fail", "127.0.0.1")


def test_1_a_check_that_raises(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    about = packages / "raises-1.dist-info"
    about.mkdir(parents=True)
    (packages / "raises.py").write_text(_RAISES)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: raises\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[gipfel.checks]\nraises = raises:Raises\n")
    protocol = "name: p\nchecks:\n- {name: it, type: raises}\n"
    outcome = _vet(tmp_path, protocol, PYTHONPATH=str(packages))
    _refused(outcome, "it", "not_run", "RuntimeError", "the tool broke")


def test_1_a_check_whose_package_exits_when_it_is_imported(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    about = packages / "leaves-1.dist-info"
    about.mkdir(parents=True)
    (packages / "leaves.py").write_text("raise SystemExit(0)\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: leaves\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[gipfel.checks]\nleaves = leaves:Leaves\n")
    protocol = "name: p\nchecks:\n- {name: it, type: leaves}\n"
    outcome = _vet(tmp_path, protocol, PYTHONPATH=str(packages))
    _refused(outcome, "it", "not_run", "can't be imported")


def test_2_no_driver_on_the_node(tmp_path: Path) -> None:
    outcome = _vet(tmp_path, _one("gpu_eval.GPUEval", max_temp=30, max_used_memory=0.2))
    assert outcome.status == 1
    verdicts = {each["check"]: each for each in outcome.report["results"]}
    assert len(verdicts) == 2
    assert {each["verdict"] for each in verdicts.values()} == {"not_run"}
    assert all("NVML" in each["reason"] for each in verdicts.values())


def test_3_a_driver_that_shows_no_device(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed.")
    library = nvml_stand_in.build(tmp_path)
    entry = _one("gpu_eval.GPUEval", max_temp=30, max_used_memory=0.2)
    outcome = _vet(tmp_path, entry, LD_LIBRARY_PATH=str(library.parent), NVML_STAND_IN_GPUS="0")
    assert outcome.status == 1
    assert {each["verdict"] for each in outcome.report["results"]} == {"not_run"}
    assert all("No devices were found" in each["reason"] for each in outcome.report["results"])


def test_4_a_mistyped_type(tmp_path: Path) -> None:
    outcome = _vet(tmp_path, _one("gpu_eval.GPUEvall", max_temp=30, max_used_memory=0.2))
    _refused(outcome, "it", "not_run", "GPUEvall")
    assert "GPUEval" in outcome.of("it")["fix"]


def test_5_a_requirement_that_is_not_installed(tmp_path: Path) -> None:
    entry = _one(
        "nccl_pytorch_eval.NcclPytorchEval",
        method="allreduce",
        min_bandwidth="1 GB",
        requirements=[["torch==999.0", "--index-url", "https://download.pytorch.org/whl/cu129"]],
    )
    outcome = _vet(tmp_path, entry)
    assert outcome.status == 1
    assert outcome.of("it")["verdict"] == "not_run"
    assert "torch" in outcome.of("it")["reason"]


def test_6_a_value_that_differs_here(tmp_path: Path) -> None:
    entry = _one("env_var_eval.EnvVarEval", expected={"NCCL_NET": "AWS Libfabric", "RANK": None})
    _refused(_vet(tmp_path, entry, NCCL_NET="Socket"), "it", "fail", "NCCL_NET")
    for path in tmp_path.glob("runs/*/vetting.json"):
        path.unlink()
    assert _vet(tmp_path, entry, NCCL_NET="AWS Libfabric").status == 0


def test_gates_between_nodes_that_measured_nothing_vet_no_single_node(tmp_path: Path) -> None:
    kinds = {
        "full": {"type": "nccl_lib_eval.NcclLibEval", "topology": "full", "min_bandwidth": "50 GB"},
        "internode": {"type": "nccl_lib_eval.NcclLibEval", "topology": "internode"},
        "torch": {"type": "nccl_pytorch_eval.NcclPytorchEval", "method": "allreduce"},
        "good": {"type": "env_var_eval.EnvVarEval", "expected": {"NOT_THERE": None}},
    }
    evals = [
        {"name": name, **keys, "type": f"vetnode.evaluations.{keys['type']}"} for name, keys in kinds.items()
    ]
    outcome = _vet(tmp_path, json.dumps({"name": "gates", "evals": evals}))
    assert outcome.status == 1
    assert (outcome.report["vetted"], outcome.report["exclude"]) == (False, "")
    found = {name: (outcome.of(name)["verdict"], outcome.of(name)["owner"]) for name in kinds}
    untested = ("not_run", "protocol")
    assert found == {"full": untested, "internode": untested, "torch": untested, "good": ("pass", None)}
    # The first column is "full", the last one "good".
    assert any(line.split()[1:5] == ["∅", "∅", "∅", "✓"] for line in outcome.stdout.splitlines()), (
        outcome.stdout
    )
    for path in tmp_path.glob("runs/*/vetting.json"):
        path.unlink()
    # A protocol may say that it does without them there, as the shipped ones do.
    lenient = [{**each, "skip_if_alone": True} for each in evals]
    outcome = _vet(tmp_path, json.dumps({"name": "gates", "evals": lenient}))
    assert (outcome.status, outcome.of("full")["verdict"]) == (0, "not_run")
    assert "(such as a second node or GPU): internode, full, torch." in outcome.stderr


def test_no_check_at_all(tmp_path: Path) -> None:
    outcome = _vet(tmp_path, "name: nothing\nevals: []\n")
    _refused(outcome, "protocol", "not_run", "no check")


@pytest.mark.parametrize("text", ["just words", "evals: 3", "checks: []\nevals: []", "\0", "a: [b"])
def test_what_is_no_protocol_is_2_without_a_report(tmp_path: Path, text: str) -> None:
    outcome = _vet(tmp_path, text)
    assert (outcome.status, outcome.report, outcome.stdout) == (2, {}, "")
    assert outcome.stderr.count("\n") == 1


def test_json_alone_on_stdout_and_the_same_in_a_file(tmp_path: Path) -> None:
    entry = _one("env_var_eval.EnvVarEval", expected={"RANK": None})
    document = json.loads(_vet(tmp_path, entry, "--json", "-").stdout)
    assert (document["schema_version"], document["vetted"], document["exit_status"]) == (2, True, 0)
    outcome = _vet(tmp_path, entry, "--json", str(tmp_path / "out.json"), "--min-nodes", "2")
    # One node is vetted, two are requested.
    assert (outcome.status, json.loads((tmp_path / "out.json").read_text())["exit_status"]) == (1, 1)


def test_a_protocol_is_found_here_then_in_the_users_folder_then_among_the_shipped(tmp_path: Path) -> None:
    def found(name: str) -> str:
        return find_protocol(name, directory=tmp_path / "here", environment={"HOME": str(tmp_path)}).name

    own = tmp_path / ".gipfel" / "protocols"
    own.mkdir(parents=True)
    (tmp_path / "here").mkdir()
    text = "name: {}\nchecks: []\n"
    assert found("quick") == load_protocol("quick").name
    (own / "quick.yaml").write_text(text.format("the user's"))
    assert found("quick") == "the user's"
    (tmp_path / "here" / "quick.yaml").write_text(text.format("beside the notebook"))
    assert (found("quick"), found("quick.yaml"), found("./quick.yaml")) == ("beside the notebook",) * 3
    assert set(known_protocols({"HOME": str(tmp_path)})) >= {
        "quick",
        "standard",
        "network",
        "gh200",
        "h100",
        "cpu",
    }
    for name in ("nowhere", "\0", "./nowhere.yaml", str(tmp_path)):
        with pytest.raises(GipfelError):
            found(name)


def test_a_node_that_was_just_vetted_is_skipped_on_request_and_not_found_good_anew(tmp_path: Path) -> None:
    entry = _one("env_var_eval.EnvVarEval", expected={"FIT": "yes"})
    first = _vet(tmp_path, entry, FIT="yes")
    assert first.status == 0
    history = tmp_path / ".gipfel" / "vetting"
    kept = sorted(history.glob("*/runs/*.json"))
    assert len(kept) == 1
    # It would fail if it were tested.
    again = json.loads(_vet(tmp_path, entry, "--skip-vetted", "1 h", "--json", "-", FIT="no").stdout)
    assert (again["vetted"], again["results"][0]["evidence"]) == (True, {"skipped": True})
    assert "Not run again" in again["results"][0]["reason"]
    assert sorted(history.glob("*/runs/*.json")) == kept
    other = entry.replace('"it"', '"another name"')
    assert _vet(tmp_path, other, "--skip-vetted", "1 h", FIT="no").status == 1


def test_options_that_cannot_be_are_said_before_anything_runs(tmp_path: Path) -> None:
    entry = _one("env_var_eval.EnvVarEval", expected={"RANK": None})
    for options, word in (
        (("--time-limit", "nan"), "--time-limit"),
        (("--json", str(tmp_path / "nowhere" / "out.json")), "no directory"),
        (("--skip-vetted", "1e400"), "--skip-vetted"),
    ):
        outcome = _vet(tmp_path, entry, *options)
        assert (outcome.status, outcome.report, outcome.stderr.count("\n")) == (2, {}, 1)
        assert word in outcome.stderr


def test_sharing_is_a_switch_that_is_remembered_and_nodes_that_failed_can_be_excluded(tmp_path: Path) -> None:
    history = tmp_path / "history"
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIPFEL_VETTING_HISTORY": str(history),
        "GIPFEL_CLUSTER": "alps",
    }  # fmt: skip

    def vet(*options: str) -> tuple[int, str, str]:
        argv = [sys.executable, "-m", "gipfel_extension.cli", "vet", *options]
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        return done.returncode, done.stdout, done.stderr

    assert vet("--share")[::2] == (0, "")
    assert has_consent(environment)
    assert "are not sent" in vet("--no-share")[1]
    assert not has_consent(environment)
    assert vet("--excluded") == (0, "\n", "")
    now = time.time_ns()
    slow = [
        Exclusion(node=f"n{number}", check="m", reason="Slow.", since_ns=now, until_ns=now + 10**15)
        for number in (1, 2, 7)
    ]
    Exclusions(history / "alps").update(slow)
    status, printed, said = vet("--excluded")
    assert (status, printed) == (0, "n[1-2,7]\n")
    assert "n7: m: Slow." in said
