"""A launch's values, directories and commands, without a cluster."""

import ast
import base64
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.tree import Process
from gipfel_cluster.scheduler.notation import expand_hostlist
from gipfel_cluster.workloads.directory import new_directory
from gipfel_cluster.workloads.logs import read_logs
from gipfel_extension.training import rank_program, run_program
from gipfel_extension.training.launches.allocation import (
    choose_gpus,
    granted_gpus,
    held_gpus,
    launches_in_job,
)
from gipfel_extension.training.launches.attempt import addresses_of
from gipfel_extension.training.launches.launchers import LAUNCHERS, Attempt
from gipfel_extension.training.launches.logs import launch_logs, read_progress
from gipfel_extension.training.record import (
    LaunchState,
    find_folder,
    first_failure,
    known_folders,
    read_rank_records,
    read_state,
    write_state,
)
from gipfel_extension.training.record.spec import LaunchSpec, nodes_range, parameter_value
from gipfel_extension.training.run_program import notebook_cells

#: As Slurm writes them on different sites.
HOSTLISTS = [
    ("nid006888", ("nid006888",)),
    ("nid[006888-006890]", ("nid006888", "nid006889", "nid006890")),
    ("nid[0001,0003-0004]", ("nid0001", "nid0003", "nid0004")),
    ("a1,b[2-3]", ("a1", "b2", "b3")),
    ("rack[1-2]node[08-09]", ("rack1node08", "rack1node09", "rack2node08", "rack2node09")),
    ("x[1-2]-ib,y", ("x1-ib", "x2-ib", "y")),
    ("gpu-a100-[9-10].example.org", ("gpu-a100-9.example.org", "gpu-a100-10.example.org")),
    ("n[098-101]", ("n098", "n099", "n100", "n101")),
    ("n[5]", ("n5",)),
    ("tux[0],tux[2-3],login1", ("tux0", "tux2", "tux3", "login1")),
]  # fmt: skip


def _attempt(count: int = 2, **more: object) -> Attempt:
    nodes = tuple(f"n{number}" for number in range(count))
    addresses = tuple(f"10.0.0.{number + 1}" for number in range(count))
    given = {"nodes": nodes, "addresses": addresses, "port": 23456, "ranks_per_node": 4, "nodes_min": count}
    return Attempt.model_validate({**given, **more})


@pytest.mark.parametrize(("text", "nodes"), HOSTLISTS)
def test_the_first_node_of_odd_lists_hosts_the_store(text: str, nodes: tuple[str, ...]) -> None:
    found = expand_hostlist(text)
    assert found == nodes
    addresses = tuple(f"10.1.0.{index + 1}" for index in range(len(found)))
    attempt = Attempt(nodes=found, addresses=addresses, port=20001, ranks_per_node=2, nodes_min=len(found))
    command = LAUNCHERS["torchrun"].command(attempt, len(found) - 1)
    assert "--rdzv-endpoint=10.1.0.1:20001" in command
    assert f"--local-addr={addresses[-1]}" in command


def test_torchrun_is_told_who_hosts_and_what_may_leave() -> None:
    torchrun = LAUNCHERS["torchrun"]
    first, second = (torchrun.command(_attempt(nodes_min=1, restarts=3), rank) for rank in (0, 1))
    assert first[:3] == ("{python}", "{program}", "torch.distributed.run")
    assert {"--nnodes=1:2", "--max-restarts=3"} <= set(first)
    assert any("is_host=1" in word for word in first)
    assert any("is_host=0" in word for word in second)
    assert not [word for word in first if "numa" in word]
    assert "--numa-binding=node" in torchrun.command(_attempt(gpu_bound=True), 0)
    assert "--nnodes=2" in torchrun.command(_attempt(), 0)
    assert _attempt(1, addresses=("fe80::1",)).endpoint == "[fe80::1]:23456"


def test_accelerate_and_srun_get_no_room_for_a_guess() -> None:
    words = LAUNCHERS["accelerate"].command(_attempt(), 1)
    for word in (
        "--machine_rank=1",
        "--num_processes=8",
        "--main_process_ip=10.0.0.1",
        "--rdzv_backend=static",
    ):
        assert word in words
    assert LAUNCHERS["srun"].command(_attempt(), 1) == ("{python}", "{program}", "rank")
    assert set(LAUNCHERS) == {"torchrun", "srun", "accelerate"}


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", ""])
def test_several_nodes_never_meet_on_the_loopback(address: str) -> None:
    with pytest.raises(GipfelError, match=r"which other nodes can't reach|can't be resolved"):
        addresses_of([address, address], {}, slurm=False)


def test_one_node_needs_no_address() -> None:
    assert addresses_of(["anything"], {}, slurm=False) == ("127.0.0.1",)


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"target": "-x.py"}, {"target": "a\nb.py"}, {"kind": "module", "target": "a b"}, {"kind": "cell"},
        {"target": "x.py", "parameters": {"a": 1}},
        {"kind": "notebook", "target": "x.ipynb", "arguments": ("a",)},
        {"target": "x.py", "nodes": 2, "nodes_min": 3}, {"target": "x.py", "nodes": 0},
        {"target": "x.py", "nodes": 2, "nodes_min": 1, "launcher": "srun"},
        {"target": "x.py", "launcher": "mpirun"},
        {"target": "x.py", "environment": {"A=B": "c"}},
        {"target": "x.py", "environment": {"WANDB_API_KEY": "c"}},
        {"target": "x.py", "arguments": ("a\0b",)}, {"target": "x.py", "partition": "a --exclusive"},
        {"target": "x.py", "time": "soon"}, {"target": "x.py", "account": "a\n#SBATCH"},
        {"target": "x.py", "more": 1},
        {"target": "x.py", "name": "../x"},
    ],
)  # fmt: skip
def test_what_is_no_launch_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        LaunchSpec.model_validate(wrong)


def test_a_repeated_launch_keeps_its_title() -> None:
    words = {"arguments": ("--lr", "0.1")}
    for target in ("train.py", f"/users/ada/{'deep/' * 40}train.py"):
        assert LaunchSpec.model_validate({"target": target, **words}).title == "train.py --lr 0.1"
    assert LaunchSpec(target="src/train.py").title == "src/train.py"


def test_numbers_of_nodes_and_parameters_are_read_as_they_are_typed() -> None:
    assert nodes_range("3") == (3, None)
    assert nodes_range("1:4") == (4, 1)
    for text in ("", "a", "1:2:3", "-1", "1-2"):
        with pytest.raises(ValueError, match="not a valid number of nodes"):
            nodes_range(text)
    typed = {
        "3": 3,
        "0.5": 0.5,
        "true": True,
        "None": None,
        "[1, 2]": [1, 2],
        "__import__('os')": "__import__('os')",
    }
    assert {text: parameter_value(text) for text in typed} == typed


def _state(folder: Path, **more: object) -> LaunchState:
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "phase": "running",
        "number": int(folder.name),
        "supervisor": Process.of(os.getpid()),
        "job_id": "7",
    }
    return write_state(folder, LaunchState.model_validate({**given, **more}))


def test_gpus_that_another_launch_holds_are_not_given_twice(tmp_path: Path) -> None:
    launches = tmp_path / "launches"
    _state(launches / "1", gpus={"n1": (0, 1), "n2": (0, 1)})
    _state(launches / "2", gpus={"n1": (2,)}, phase="ended")
    _state(launches / "5", gpus={"n1": (0, 1, 2, 3)}, job_id="8")
    gone = Process(pid=os.getpid(), start=1, boot="another")
    old = _state(launches / "3", gpus={"n1": (3,)}, supervisor=gone)
    assert held_gpus(launches / "4", "7")["n1"] == {0, 1, 3}, "it may only be silent for a moment"
    silent = old.model_copy(update={"updated_ns": time.time_ns() - 10**12})
    (launches / "3" / "state.json").write_text(silent.model_dump_json())
    taken = held_gpus(launches / "4", "7")
    assert taken == {"n1": {0, 1}, "n2": {0, 1}}
    assert choose_gpus(["n1", "n2"], 2, 4, taken) == {"n1": (2, 3), "n2": (2, 3)}
    assert choose_gpus(["n1"], 2, 0, taken) == {}
    with pytest.raises(GipfelError, match="2 of the job's 4 are free"):
        choose_gpus(["n1"], 3, 4, taken)
    assert granted_gpus({"CUDA_VISIBLE_DEVICES": "0,GPU-1"}) == 2
    assert granted_gpus({"CUDA_VISIBLE_DEVICES": ""}) == granted_gpus({}) == 0
    assert launches_in_job({"GIPFEL_RUN": str(tmp_path)}) == ("launch", "launch")


def test_folders_are_numbered_and_found(tmp_path: Path) -> None:
    environment = {"GIPFEL_RUNS": str(tmp_path)}
    inside = {**environment, "GIPFEL_RUN": str(tmp_path / "alps-7")}
    for where in (tmp_path / "launches", tmp_path / "alps-7" / "launches"):
        for _ in range(2):
            _state(new_directory(where))
    assert [each.name for each in known_folders(environment)] == ["1", "2"]
    assert len(known_folders(environment, all_runs=True)) == 4
    assert find_folder("", inside) == tmp_path / "alps-7/launches/2"
    assert find_folder("alps-7/1", environment) == tmp_path / "alps-7/launches/1"
    assert find_folder("1", environment) == tmp_path / "launches/1"
    for wrong in ("9", "../../etc", "a\0b", "alps-9/1"):
        with pytest.raises(GipfelError, match="There is no launch"):
            find_folder(wrong, environment)
    (tmp_path / "launches/1/state.json").write_text("{")
    with pytest.raises(GipfelError, match="can't be read"):
        read_state(tmp_path / "launches/1")


def test_logs_are_merged_by_the_time_at_which_they_grew(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_bytes(b"zero a\nzero b\nzero torn")
    (tmp_path / "rank-1.log").write_bytes(b"one a\n\xff\xfe\n")
    (tmp_path / "rank-x.log").write_bytes(b"no rank\n")
    times = [[100, {"0": 7}], [200, {"1": 6}], ["x", {}], [300, {"0": 14, "1": 9}]]
    (tmp_path / "times.jsonl").write_text("\n".join(json.dumps(each) for each in times) + "\n{torn")
    page = read_logs(launch_logs(tmp_path))
    assert [(each.rank, each.text, each.time_ns) for each in page.lines] == [
        (0, "zero a", 100), (1, "one a", 200), (0, "zero b", 300), (1, "\ufffd\ufffd", 300),
    ]  # fmt: skip
    assert not read_logs(launch_logs(tmp_path), page.cursor).lines
    with (tmp_path / "rank-0.log").open("ab") as file:
        file.write(b" no more\n")
    (late,) = read_logs(launch_logs(tmp_path), page.cursor).lines
    # After the last recorded size, the log's own time is the best that is known.
    written = (tmp_path / "rank-0.log").stat().st_mtime_ns
    assert (late.text, late.time_ns) == ("zero torn no more", written)
    assert [each.rank for each in read_logs(launch_logs(tmp_path), ranks=(1,)).lines] == [1, 1]
    small = read_logs(launch_logs(tmp_path), max_bytes=8)
    assert small.more
    assert [each.text for each in small.lines] == ["zero a", "one a"]


def test_the_first_failing_rank_is_that_of_the_last_start(tmp_path: Path) -> None:
    (tmp_path / "errors").mkdir()
    for name, rank, at in (("0-0-1", 1, 1), ("0-1-3", 3, 30), ("0-1-2", 2, 20), ("1-0-0", 0, 5)):
        content = {"rank": rank, "node": "n", "message": "broke", "time_ns": at, "location": "t.py:3"}
        (tmp_path / "errors" / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "errors" / "0-1-9.json").write_text("{torn")
    found = first_failure(tmp_path, 0)
    assert str(found) == "rank 2 on n: broke (t.py:3)"
    assert first_failure(tmp_path, 7) is None


def test_progress_is_what_the_lowest_rank_logged_last(tmp_path: Path) -> None:
    lines = [
        {"time_ns": 5, "rank": 0, "values": {"step": 1, "total_steps": 10, "loss": 2.5}},
        {"time_ns": 6, "rank": 1, "values": {"step": 7}},
        {"time_ns": 7, "rank": 0, "values": {"step": 4, "loss": None, "note": "x"}},
        {"time_ns": 90, "rank": 0, "values": {"step": 99}},
    ]
    (tmp_path / "metrics.jsonl").write_text(
        "torn\n" + "\n".join(json.dumps(each) for each in lines) + "\n[1]\n"
    )
    state = LaunchState(phase="ended", number=1, run=str(tmp_path), started_ns=2, ended_ns=50)
    progress = read_progress(tmp_path / "launches/1", state)
    assert (progress.step, progress.total, progress.fraction) == (4, 10, 0.4)
    assert progress.values["loss"] == 2.5
    assert read_progress(tmp_path, state.model_copy(update={"run": ""})).step == 4


def test_a_notebook_is_a_script_for_the_other_ranks(tmp_path: Path) -> None:
    def cell(source: str | list[str], kind: str = "code", **more: object) -> dict[str, object]:
        return {"cell_type": kind, "source": source, "metadata": more}

    cells = [
        cell("# title", "markdown"),
        cell("lr = 1\nname = 'x'\n", tags=["parameters"]),
        cell(["%matplotlib inline\n", "!ls\n", "y = lr * 2"]),
        cell("%%bash\nls"),
        cell("z = y + 1"),
    ]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    found = notebook_cells(str(path), {"lr": 5, "name": "a'b\n"})
    names: dict[str, object] = {}
    for title, source in found:
        exec(compile(source, title, "exec"), names)
    assert (names["z"], names["name"]) == (11, "a'b\n")
    assert found[-1][0] == "n.ipynb, cell 5"


def test_a_traceback_of_a_rank_shows_the_line_of_the_cell(tmp_path: Path) -> None:
    program = Path(run_program.__file__)
    for name in ("run_program.py", "gipfel_rank_files.py", "step_hooks.py", "rank_requests.py"):
        shutil.copy(program.with_name(name), tmp_path)
    cells = [
        {
            "cell_type": "code",
            "source": "import inspect\ndef step():\n    raise ValueError(2)\n",
            "metadata": {},
        },
        {"cell_type": "code", "source": "print(inspect.getsource(step))\nstep()", "metadata": {}},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    plan = {"kind": "notebook", "target": str(tmp_path / "n.ipynb"), "arguments": [], "parameters": {}}
    (tmp_path / "attempt.json").write_text(json.dumps({**plan, "step_hooks": False}))
    argv = [sys.executable, str(tmp_path / "run_program.py")]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    # Compilers of kernels, too, read the source of a function that a cell defines.
    assert "raise ValueError(2)" in done.stdout
    assert done.stderr.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "n.ipynb, cell 2", line 2, in <module>',
        "    step()",
    ]


class _Payload:
    """Object that touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("key", ["0" * 64, ""])
def test_a_rendezvous_of_strangers_is_never_unpickled(key: str, tmp_path: Path) -> None:
    from torch.distributed import TCPStore  # noqa: PLC0415 - takes seconds

    folder = Path(rank_program.__file__).parent
    program = shutil.copyfile(folder / "rank_program.py", tmp_path / "program.py")
    shutil.copyfile(folder / "torchrun_program.py", tmp_path / "torchrun.py")
    shutil.copy(folder / "gipfel_rank_files.py", tmp_path)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    forged = base64.b64encode(pickle.dumps(_Payload(tmp_path / "executed")))
    store.set("torch.rendezvous.gipfel", forged)
    attempt = _attempt(1, addresses=("127.0.0.1",), port=store.port, ranks_per_node=1, join_s=20)
    # This node does not host the store: the stranger does.
    words = [word.replace("is_host=1", "is_host=0") for word in LAUNCHERS["torchrun"].command(attempt, 0)]
    known = {"{python}": sys.executable, "{program}": str(program)}
    done = subprocess.run(
        [known.get(word, word) for word in words],
        env={**os.environ, "GIPFEL_RENDEZVOUS_KEY": key},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert not (tmp_path / "executed").exists()
    problem = (
        "another process wrote into this launch's rendezvous" if key else "has no key for its rendezvous"
    )
    assert problem in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_launcher_loads_torch_without_collections_and_ranks_load_no_openssl(tmp_path: Path) -> None:
    torch = tmp_path / "torch" / "distributed"
    torch.mkdir(parents=True)
    (torch.parent / "__init__.py").touch()
    (torch / "__init__.py").write_text("import gc, sys\nprint(gc.isenabled(), '_hashlib' in sys.modules)\n")
    code = "import gc, torchrun_program as program; program.run_torchrun([]); print(gc.isenabled())"
    folder = Path(rank_program.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{folder}", "PATH": os.defpath},
        cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "False", "True"], done.stderr


def test_programs_of_a_launch_run_with_the_standard_library_of_an_old_python() -> None:
    folder = Path(rank_program.__file__).parent
    names = ("rank_program.py", "torchrun_program.py", "run_program.py", "probe_program.py")
    for name in (*names, "gipfel_rank_files.py"):
        tree = ast.parse((folder / name).read_text(), feature_version=(3, 9))
        imported = {
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        imported |= {
            (node.module or "").partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        assert imported - {"torch"} <= set(sys.stdlib_module_names)


def test_a_rank_says_when_it_began_also_at_its_end(tmp_path: Path) -> None:
    program = shutil.copyfile(rank_program.__file__, tmp_path / "program.py")
    for name in ("gipfel_rank_files.py", "rank_writes.py"):
        shutil.copy(Path(rank_program.__file__).with_name(name), tmp_path)
    (tmp_path / "run.py").write_text("raise SystemExit(3)\n")
    plan = {"number": 0, "per": "node", "environment": {}, "cpus": 1, "ranks_per_node": 1}
    (tmp_path / "attempt.json").write_text(json.dumps(plan))
    argv = [sys.executable, str(program), "rank"]
    # The directory of the program is then not in its sys.path.
    environment = {"PATH": os.defpath, "RANK": "0", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(argv, env=environment, timeout=60, check=False)
    assert done.returncode == 3
    note = read_rank_records(tmp_path)[0]
    assert note.status == 3
    assert note.started_ns is not None
    assert note.ended_ns is not None
    assert note.started_ns < note.ended_ns
