"""Ranks of a job: layouts, selections, reports of ranks and launches, and what contradicts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gipfel_extension.cli.findings import comparison_lines
from gipfel_extension.diagnosis.reported_roles import REPORTS_FILE, read_reports
from gipfel_extension.diagnosis.roles import Roles, check_size, parse_layout, parse_selection, roles_of_layout
from gipfel_extension.job.metric_figures import last_steps
from gipfel_extension.job.ranks import read_job
from gipfel_extension.server.job import JobQuery
from gipfel_extension.server.job_verdicts import JobVerdicts
from gipfel_extension.server.run_comparison import compare_runs
from gipfel_extension.telemetry.ranks import (
    RankFinder,
    RankLocation,
    ranks_file,
    ranks_json,
    read_ranks,
)
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.user_metrics import read_metrics
from gipfel_extension.training.launch import Launch, launch
from gipfel_extension.training.record import LaunchState
from gipfel_extension.training.record.spec import LaunchSpec

LAYOUT = "pp=8,dp=2,tp=2"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "alps-1"
    (folder / "telemetry").mkdir(parents=True)
    return folder


def report(run: Path, rank: int, roles: dict[str, int] | None, world: int = 4, **more: object) -> None:
    content = {"time_ns": 10 + rank, "rank": rank, "world_size": world, "node": f"n{rank // 2}", **more}
    with (run / REPORTS_FILE).open("a") as file:
        file.write(json.dumps({**content, "roles": roles or {}}) + "\n")


def locate(run: Path, gpus: dict[int, str], node: str = "n0", **more: object) -> None:
    places = [RankLocation(rank, node, 100 + rank, gpu, "python", **more) for rank, gpu in gpus.items()]
    ranks_file(run / "telemetry", node, "job").write_text(ranks_json(places))


def test_a_layout_gives_the_coordinates_that_torchs_mesh_gives() -> None:
    roles = roles_of_layout(parse_layout(LAYOUT))
    assert len(roles.coordinates) == 32
    assert roles.coordinates[0] == {"pp": 0, "dp": 0, "tp": 0}
    assert roles.coordinates[1] == {"pp": 0, "dp": 0, "tp": 1}
    assert roles.coordinates[31] == {"pp": 7, "dp": 1, "tp": 1}
    check_size({"pp": 8, "dp": 2, "tp": 2}, 32)
    with pytest.raises(SourceError, match="is for 32 ranks, and the job has 16"):
        check_size(parse_layout(LAYOUT), 16)


@pytest.mark.parametrize("text", ["pp", "pp=0", "PP=2", "pp=2,pp=2", "rank=4", "dp=99999999", "a=2 " * 9])
def test_what_is_not_a_layout_is_one_line(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_layout(text)
    assert "such as pp=4,dp=2,tp=2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_selection_holds_all_of_its_terms() -> None:
    layout = roles_of_layout(parse_layout(LAYOUT))
    places = {rank: {"node": f"n{rank // 4}", "switch": "s0"} for rank in range(32)}
    roles = Roles(layout.coordinates, places)

    def chosen(text: str) -> tuple[int, ...]:
        return parse_selection(text).ranks(range(32), roles)

    assert chosen("pp=6,7 & dp=0") == (24, 25, 28, 29)
    assert chosen(" PP = 6-7&dp=0 ") == (24, 25, 28, 29)
    assert chosen("node=n0,n7 & tp=1") == (1, 3, 28 + 1, 28 + 3)
    assert chosen("rank=0-2,31") == (0, 1, 2, 31)
    assert chosen("switch=s1") == ()
    assert chosen("") == tuple(range(32))
    with pytest.raises(SourceError, match="no axis 'ep': it has dp, pp, tp"):
        chosen("ep=0")


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.text("pdtranknode=,-&0123456789 ", max_size=60)))
def test_any_text_is_a_selection_or_one_line(text: str) -> None:
    roles = roles_of_layout({"pp": 2, "dp": 2})
    found, error = (), None
    try:
        found = parse_selection(text).ranks(range(4), roles)
    except SourceError as caught:
        error = caught
    assert set(found) <= set(range(4))
    assert error is None or (error.problem and error.fix and "\n" not in str(error))


def test_ranks_report_roles_and_a_missing_rank_is_named(run: Path) -> None:
    for rank in (0, 1, 3):
        report(run, rank, {"dp": rank % 2, "pp": rank // 2}, launch="alps-1/1", source="rank")
    (run / REPORTS_FILE).open("a").write('{"rank": 2\nnot json\n{"rank": -1, "time_ns": 1}\n')
    locate(run, {0: "GPU-a", 1: "GPU-b"}, numa=1)
    found = read_job(run)
    job = found.job
    assert (job.world_size, job.source, job.axes, job.missing) == (4, "rank", {"dp": 2, "pp": 2}, (2,))
    assert [(each.rank, each.state) for each in job.ranks] == [
        (0, "seen"), (1, "seen"), (2, "missing"), (3, "seen"),
    ]  # fmt: skip
    first = job.ranks[0]
    assert (first.node, first.gpus, first.numa, first.pid) == ("n0", ("GPU-a",), 1, 100)
    assert first.role == {"dp": 0, "pp": 0}
    # Rank 3 is on a node without a recorder, and known by its own report.
    assert job.ranks[3].node == "n1"
    assert read_reports(run).damaged_lines == 3
    assert job.problems == ()


def test_a_launch_with_a_job_of_its_own_gives_its_layout_ranks_and_metrics(run: Path) -> None:
    folder = run.parent / "launches" / "7"
    (folder / "ranks").mkdir(parents=True)
    spec = {"target": "train.py", "gpus_per_node": 4, "layout": "pp=2,dp=2"}
    (folder / "spec.json").write_text(json.dumps(spec))
    for rank in range(4):
        record = {"rank": rank, "node": f"n{rank // 2}", "world": 4, "started_ns": 5}
        (folder / "ranks" / f"{rank}.json").write_text(json.dumps(record))
    state = LaunchState(phase="running", number=7, run=str(run), started_ns=5)
    (folder / "state.json").write_text(state.model_dump_json())
    job = read_job(run).job
    assert (job.world_size, job.source, job.axes) == (4, "launch", {"pp": 2, "dp": 2})
    assert job.launch == "7"
    # What ranks log and report themselves names the directory of launches.
    name = f"{run.parent.name}/7"
    line = {"time_ns": 9, "monotonic_ns": 9, "node": "n0", "rank": 0, "launch": name, "values": {"step": 3}}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert last_steps(read_metrics(run), job.launch) == {0: 3}
    for rank in range(4):
        report(run, rank, {"tp": rank}, launch=name, source="rank")
    job = read_job(run).job
    assert (job.launches, job.source, job.axes) == (("7",), "rank", {"tp": 4})


def test_interruptions_are_entries_of_the_job_page_and_of_a_comparison(run: Path) -> None:
    lines, time_ns = [], 10**18
    for step in range(60):
        # Every 15th step is followed by 5 s in which no step ends.
        time_ns += 10**9 * (6 if step and step % 15 == 0 else 1)
        for rank in range(4):
            values = {"step": step, "step_s": 1.0, "work_s": 0.9}
            lines.append(
                {"time_ns": time_ns + rank, "monotonic_ns": 1, "node": "n0", "rank": rank, "values": values}
            )
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    verdicts = JobVerdicts().document(run, JobQuery())["verdicts"]
    (found,) = [each for each in verdicts if each["source"] == "phases"]
    assert (found["kind"], found["severity"], found["ranks"]) == ("regular", 0, [])
    assert found["title"].startswith("3 checkpoints or evaluations, every 15 steps, 5 s each: 15 s in all")
    shutil.copytree(run, run.with_name("alps-2"))
    environment = {"GIPFEL_RUNS": str(run.parent), "HOME": str(run.parent)}
    compared = compare_runs([run.name, "alps-2"], environment)
    assert [each.phases.cost_s for each in compared.steps if each.phases] == pytest.approx([15, 15])
    text = "\n".join(comparison_lines(compared))
    assert "STEPS  alps-2\n  A step takes 1 s" in text


def test_the_newest_world_and_launch_count(run: Path) -> None:
    for rank in range(4):
        report(run, rank, {"dp": rank}, launch="alps-1/1", source="mesh")
    for rank in range(2):
        report(run, rank, {"dp": rank}, 2, launch="alps-1/2", source="launch", time_ns=100)
        report(run, rank, {"pp": rank}, 2, launch="alps-1/2", source="rank", time_ns=99)
    assert read_job(run).job.world_size == 2
    # What the program says counts more than the layout of its launch.
    assert read_job(run).job.source == "rank"
    assert read_job(run, launch="alps-1/1").job.axes == {"dp": 4}
    assert read_job(run).job.launches == ("alps-1/1", "alps-1/2")


def test_what_contradicts_is_one_line_with_a_fix(run: Path) -> None:
    for rank in range(4):
        report(run, rank, None)
    locate(run, {0: "GPU-a", 1: "GPU-a"})
    (run / "roles.json").write_text(json.dumps({str(rank): {"dp": rank} for rank in range(3)}))
    table, gpus = read_job(run).job.problems
    assert table.text == "roles.json does not fit the job: it names 3 ranks, and the job has 4."
    assert table.fix.startswith("Give the roles of ranks 0 to 3.")
    assert gpus.text == "Ranks 0-1 use one GPU, GPU-a."
    assert "--gpus-per-node" in gpus.fix
    assert read_job(run).job.source == ""
    typed = read_job(run, layout="dp=2,tp=2").job
    assert (typed.source, len(typed.problems)) == ("typed", 1)
    assert "product is 4" in read_job(run, layout="dp=3").job.problems[0].fix
    (run / REPORTS_FILE).unlink()
    (run / "roles.json").write_text('{"0": {"gpu": "G"}, "1": {"gpu": "G"}}')
    assert "claim one GPU, G" in read_job(run).job.problems[0].text


def test_reports_that_contradict_leave_roles_unknown(run: Path) -> None:
    report(run, 0, {"dp": 0, "pp": 0}, 2)
    report(run, 1, {"dp": 1}, 2)
    job = read_job(run).job
    assert (job.source, job.axes) == ("", {})
    assert "contradict each other" in job.problems[0].text
    (run / REPORTS_FILE).unlink()
    (run / REPORTS_FILE).symlink_to("/etc/passwd")
    assert "can't be read" in read_job(run).job.problems[0].text


def test_a_ranks_cores_tell_its_numa_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for node, cores in ((0, allowed[:1]), (1, allowed[1:])):
        folder = tmp_path / "numa" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(",".join(map(str, cores)) + "\n")
    (tmp_path / "telemetry").mkdir()
    path = ranks_file(tmp_path / "telemetry", "n0", "job")
    for last, expected in ((1, 0), (len(allowed), None if len(allowed) > 1 else 0)):
        process, other = (_start_rank(set(allowed[:last]), run) for run in (tmp_path, tmp_path / "other"))
        try:
            finder = RankFinder(path, "n0", {}, numa_nodes=tmp_path / "numa")
            # A rank of other work on this machine is not one of this run.
            finder.update([(process.pid, "GPU-a"), (other.pid, "GPU-b")])
            (found,) = read_ranks(tmp_path / "telemetry")
            assert (found.pid, found.rank, found.gpu_uuid, found.numa) == (process.pid, 4, "GPU-a", expected)
        finally:
            process.communicate("\n", timeout=20)
            other.communicate("\n", timeout=20)
            path.unlink(missing_ok=True)


def _start_rank(cores: set[int], run: Path) -> subprocess.Popen[str]:
    script = f"import os; os.sched_setaffinity(0, {cores}); print(1, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "RANK": "4", "GIPFEL_RUN": str(run)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


_PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "mesh":
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "tp"))
    mesh["tp"]
    dist.destroy_process_group()
elif sys.argv[2] in ("ddp", "fsdp2"):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    fully_shard(model) if sys.argv[2] == "fsdp2" else torch.nn.parallel.DistributedDataParallel(model)
    dist.destroy_process_group()
elif sys.argv[2] == "log":
    from gipfel_widgets import log
    log(roles={"dp": int(os.environ["RANK"])})
"""


@pytest.mark.parametrize(
    ("way", "source", "axes"),
    [
        ("mesh", "mesh", {"pp": 1, "tp": 2}),
        ("log", "rank", {"dp": 2}),
        ("", "launch", {"ep": 2}),
        ("ddp", "wrapper", {"dp": 2}),
        ("fsdp2", "wrapper", {"dp": 2}),
    ],
)
def test_a_launchs_ranks_tell_their_roles(
    tmp_path: Path, run: Path, way: str, source: str, axes: dict[str, int]
) -> None:
    (tmp_path / "train.py").write_text(_PROGRAM)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path),
        "GIPFEL_RUNS": str(tmp_path), "GIPFEL_RUN": str(run), "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    widgets = str(Path(__file__).parents[2] / "widgets")
    layout = "" if source == "wrapper" else "ep=2"
    spec = LaunchSpec(
        target="train.py", arguments=(widgets, way), launcher="srun", gpus_per_node=2, layout=layout
    )
    started = launch(spec, environment, directory=tmp_path)
    assert isinstance(started, Launch)
    assert started.wait(90) == 0, [line.text for line in started.logs().lines]
    job = read_job(run).job
    assert (job.world_size, job.source, job.axes) == (2, source, axes), job
    assert [each.state for each in job.ranks] == ["ended", "ended"]
    assert all(each.log for each in job.ranks)
    assert job.launch == "alps-1/1"
    assert job.problems == ()


def test_a_launchs_layout_must_fit_its_ranks() -> None:
    with pytest.raises(ValueError, match="is for 4 ranks, and the job has 2"):
        LaunchSpec(target="train.py", gpus_per_node=2, layout="dp=4")
