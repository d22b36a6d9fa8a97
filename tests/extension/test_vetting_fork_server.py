"""One import of torch for all probes of a node, each of which is a separate process."""

import json
import os
import runpy
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gipfel_extension.vetting import probing
from gipfel_extension.vetting.children import LocalProbes, start_forked
from gipfel_extension.vetting.one_check import group_probe
from gipfel_extension.vetting.probing import (
    ForkServer,
    ProbeAnswer,
    ProbeSpec,
    probe_file,
    read_answer,
)
from gipfel_extension.vetting.protocol import parse_entry
from gipfel_extension.vetting.report import read_report
from gipfel_extension.vetting.run.messages import CheckDone, RunCheck, TorchImported, from_agent
from gipfel_extension.vetting.run.worker import Worker

_LIMIT_S = 120
#: Sleeps as if it came from a slow file system, and notes each process that imports it.
_SLOW_TORCH = """
import os, time
with open(os.environ["IMPORTS"], "a") as file:
    file.write(f"{os.getpid()} {time.time_ns()}\\n")
time.sleep(float(os.environ["IMPORT_S"]))
__version__ = "2.9"
class version:
    cuda = None
class cuda:
    is_available = staticmethod(lambda: False)
"""


def _fake_torch(folder: Path, text: str = _SLOW_TORCH) -> dict[str, str]:
    """The variables with which a Python finds this torch."""
    package = folder / "packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    (package / "distributed.py").write_text("")
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package.parent), "IMPORTS": str(folder / "imports")}


def _until(done: Callable[[], Any], limit_s: float = _LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_three_checks_of_a_run_import_torch_once_beside_the_others(tmp_path: Path) -> None:
    seconds = "1.5"
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: p\nchecks:\n- {name: one, type: container}\n- {name: two, type: container}\n"
        "- {name: three, type: container}\n- {name: memory, type: host_memory}\n"
    )
    kept = {"HOME": str(tmp_path), "GIPFEL_RUNS": str(tmp_path / "runs"), "IMPORT_S": seconds}
    done = subprocess.run(
        [sys.executable, "-m", "gipfel_extension.cli", "vet", str(file)], cwd=tmp_path, capture_output=True,
        env={**_fake_torch(tmp_path), **kept}, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ((_, begun),) = [line.split() for line in (tmp_path / "imports").read_text().splitlines()]
    (folder,) = (tmp_path / "runs").iterdir()
    report = read_report(folder)
    # The time that it took is told to people and to programs.
    (node,) = report.nodes
    assert node.torch_import_s is not None
    assert node.torch_import_s >= float(seconds)
    assert f"torch was imported once, in {node.torch_import_s:.1f} s." in done.stdout + done.stderr
    assert json.loads((folder / "vetting.json").read_text())["nodes"][0]["torch_import_s"] >= float(seconds)
    # What does without torch is first in time, if not in the protocol, and waits for no import.
    started = {each.check: each.started_ns for each in report.results}
    ready = int(begun) + float(seconds) * 1e9
    assert started["memory"] < min(started["one"], started["two"], started["three"])
    assert started["one"] >= ready
    assert all(each.evidence["torch"] == "2.9" for each in report.results if each.type == "container")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A server that has imported the real torch."""
    server = ForkServer(sys.executable, {"PATH": "/usr/bin:/bin"})
    _until(lambda: not server.importing)
    assert server.can_fork, server.imported
    yield server
    server.close()


def _both(
    server: ForkServer, name: str, mode: str, request: dict[str, Any]
) -> tuple[ProbeAnswer, ProbeAnswer]:
    spec = ProbeSpec(argv=(probe_file(name), mode), request=request, torch=True, time_limit_s=_LIMIT_S)
    environment = {"PATH": "/usr/bin:/bin"}
    # A Python that can't run shows that the server does it.
    forked = LocalProbes("/no/python", environment, server).run(spec)
    return forked, LocalProbes(sys.executable, environment).run(spec)


def test_a_forked_probe_says_what_one_by_itself_does(server: ForkServer) -> None:
    forked, alone = _both(server, "container", "environment", {})
    assert (forked, forked.evidence["torch"] is not None) == (alone, True)
    request = {"device": "cpu", "samples": 5, "seconds": 0.001, "shapes": [[128] * 3]}
    for answer in _both(server, "throughput", "matmul", request):
        values: Any = answer.devices[0]
        assert (answer.error, answer.unit, values["wrong"], len(values["samples"])) == ("", "FLOP/s", 0, 5)


def test_forked_ranks_meet_in_a_collective(server: ForkServer) -> None:
    parameters = {
        "method": "allreduce", "device": "cpu", "payload": 65_536, "warmup_payload": 1024, "samples": 5,
    }  # fmt: skip
    entry = parse_entry(
        {"type": "collective", "scope": "all", "parameters": parameters, "time_limit": _LIMIT_S}
    )
    spec = group_probe(entry)
    assert spec.torch
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        start_forked(
            server, spec.argv, stdin=spec.stdin(), variables={**common, "RANK": rank, "LOCAL_RANK": rank},
            limit_s=_LIMIT_S,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    # Both are looked at each time.
    _until(lambda: sum(each.advance() for each in ranks) == 2)
    for each in ranks:
        answer = read_answer(bytes(each.output), status=each.status, errors=each.errors.decode())
        assert (answer.error, answer.wrong, len(answer.samples)) == ("", 0, 5)


def test_a_forked_probe_that_hangs_or_crashes_leaves_the_others_alone(
    server: ForkServer, tmp_path: Path
) -> None:
    probes = LocalProbes("/no/python", {}, server)
    file, marker = tmp_path / "probe.py", tmp_path / "child"

    def said(code: str, limit: float = 60.0) -> ProbeAnswer:
        file.write_text(code)
        return probes.run(ProbeSpec(argv=(str(file),), time_limit_s=limit, torch=True))

    hanging = "import subprocess, time; p = subprocess.Popen(['sleep', '1000']);"
    hanging += f"open({str(marker)!r}, 'w').write(str(p.pid)); time.sleep(1000)"
    assert "time limit" in said(hanging, 3.0).error
    state = Path(f"/proc/{marker.read_text()}/stat")
    _until(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX")
    assert "signal 11" in said("import os; os.kill(os.getpid(), 11)").error
    assert "NameError" in said("nonsense").error
    assert "status 3" in said("import sys; sys.exit(3)").error
    assert said('print(\'{"gipfel_probe": 1, "samples": [1.0]}\')').samples == (1.0,)
    # Ranks whose caller stops waiting leave no process, either.
    file.write_text(hanging)
    marker.unlink()
    child = start_forked(server, [str(file)], stdin=b"", variables={}, limit_s=60)
    _until(lambda: child.advance() or (marker.exists() and marker.read_text()))
    child.kill()
    left = Path(f"/proc/{marker.read_text()}/stat")
    _until(lambda: not left.exists() or left.read_text().rpartition(")")[2].split()[0] in "ZX")
    assert (child.killed, child.advance()) == (True, True)
    assert server.can_fork
    named = (
        'import json; print(json.dumps({"gipfel_probe": 1, "unit": open("/proc/self/comm").read().strip()}))'
    )
    assert said(named).unit == "probe.py"


def test_without_a_server_or_with_one_that_died_each_probe_runs_by_itself(tmp_path: Path) -> None:
    environment = {**_fake_torch(tmp_path), "IMPORT_S": "0"}
    server = ForkServer(sys.executable, environment)
    _until(lambda: not server.importing)
    spec = ProbeSpec(argv=(probe_file("container"), "environment"), torch=True)
    probes = LocalProbes(sys.executable, environment, server)
    assert probes.run(spec).evidence["torch"] == "2.9"
    server.close()
    assert probes.run(spec).evidence["torch"] == "2.9"
    assert len((tmp_path / "imports").read_text().splitlines()) == 2
    (tmp_path / "packages/torch/__init__.py").write_text("raise OSError('libcudart.so.12: cannot open')")
    broken = ForkServer(sys.executable, environment)
    _until(lambda: not broken.importing)
    assert (broken.can_fork, "libcudart" in str(broken.imported)) == (False, True)
    assert "libcudart" in LocalProbes(sys.executable, environment, broken).run(spec).error
    broken.close()


def test_an_import_that_hangs_is_a_verdict_of_what_needs_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probing, "IMPORT_LIMIT_S", 1.0)
    environment = {**_fake_torch(tmp_path), "IMPORT_S": "1000"}
    worker = Worker(os.getppid(), "n1", 0, environment)
    done: dict[int, CheckDone] = {}

    def look() -> None:
        worker._advance()
        for line in capfd.readouterr().out.splitlines():
            message = from_agent(line.encode())
            assert not isinstance(message, TorchImported)
            if isinstance(message, CheckDone):
                done[message.task] = message

    checks = (("host_memory", "later"), ("container", "now"), ("collective", "now"))
    for task, (kind, torch) in enumerate(checks):
        entry = {"name": kind, "type": kind, "scope": "node"}
        request = RunCheck(task=task, entry=entry, limit_s=60, torch=torch)  # type: ignore[arg-type]
        worker._on_message(request.encode())
        _until(lambda number=task: look() or number in done)  # type: ignore[misc]
    assert (done[0].problem, done[0].results[0].check) == ("", "host_memory")
    assert "torch could not be imported within" in done[1].problem
    assert done[2].problem == done[1].problem
    assert len((tmp_path / "imports").read_text().splitlines()) == 1


def test_a_torch_that_has_opened_a_gpu_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch.distributed"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    program = runpy.run_path(probe_file("fork_server"))
    look = program["import_torch"]
    assert look() == ""
    monkeypatch.setitem(look.__globals__, "open_files", lambda: ["/dev/null", "/dev/nvidiactl"])
    assert "opened /dev/nvidiactl" in look()
