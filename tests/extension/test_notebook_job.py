"""Plan of a batch notebook, and errors that are found before anything is submitted."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from broker_jobs import running_broker, write_edf
from notebook_files import write_notebook
from slurm_commands import unconfigured_slurm

from gipfel_cluster.job import JOB_VARIABLE, JobSpec
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime
from gipfel_cluster.runtime.model import Description
from gipfel_cluster.workloads.submission import ContainerContext
from gipfel_extension.training.batch import NotebookJob, NotebookOptions, plan_notebook_job, scheduler_of
from gipfel_extension.training.batch.dry_run import dry_run_document, dry_run_lines
from gipfel_extension.training.papermill.__main__ import task_of
from gipfel_extension.training.papermill.notebook_file import read_notebook
from gipfel_extension.training.papermill.parameters import known_parameters
from gipfel_extension.training.papermill.values import from_yaml

HOSTILE = [
    "a b", 'it\'s "quoted"', "$(touch /tmp/gipfel-pwned) `id` ; rm -rf /", "two\nlines\ttab", "-p",
    "--engine", "{python}", "{text} %j \\", "Zürich ✓ \U0001f3d4", "",
]  # fmt: skip


NO_NOTEBOOKS = (
    *("", "no json", "[]", '{"nbformat": 4}', '{"nbformat": 99, "metadata": {}, "cells": []}'),
    '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "x"}]}',
    '{"nbformat": 4, "nbformat_minor": {}, "metadata": {}, "cells": []}',
    '{"nbformat": true, "metadata": {}, "cells": [{"cell_type": {}}]}',
    '{"nbformat": 4, "metadata": {"x": ' + "[" * 900 + "]" * 900 + '}, "cells": []}',
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def _environment(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.defpath, "GIPFEL_SCHEDULER": "local", **more}


def _plan(home: Path, options: dict[str, Any] | None = None, **more: str) -> NotebookJob:
    given = {"notebook": "in.ipynb", "output": "out.ipynb", **(options or {})}
    return plan_notebook_job(
        NotebookOptions.model_validate(given), environment=_environment(home, **more), directory=home
    )


def test_qos_reservation_and_memory_reach_the_job(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    request = _plan(home, {"qos": "high", "reservation": "course", "memory": "64G"}).request
    assert (request.qos, request.reservation, request.memory) == ("high", "course", "64G")
    with pytest.raises(GipfelError, match="memory can't be used"):
        _plan(home, {"memory": "a lot"})


def _words(job: NotebookJob) -> list[str]:
    spec = JobSpec.model_validate_json(job.request.environment[JOB_VARIABLE])
    return list(spec.command)


def test_slurms_commands_without_a_cluster_leave_the_job_to_this_machine(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    unconfigured_slurm(home / "bin")
    path = f"{home}/bin:{os.defpath}"
    job = _plan(home, GIPFEL_SCHEDULER="", PATH=path)
    assert job.scheduler == "local"
    (note,) = job.notes
    assert note.startswith("Slurm's commands are installed but not configured")
    assert note.endswith("The job runs on this machine.")
    # A cluster that is named, or chosen, stays the answer, and is an error where it is silent.
    assert _plan(home, GIPFEL_SCHEDULER="", PATH=path, SLURM_CONF="/gone").scheduler == "slurm"
    chosen = _plan(home, {"scheduler": "slurm"}, PATH=path)
    assert (chosen.scheduler, chosen.notes) == ("slurm", ())


@pytest.mark.parametrize("value", HOSTILE)
def test_values_travel_unchanged_and_never_in_the_script(home: Path, value: str) -> None:
    write_notebook(home / "in.ipynb")
    job = _plan(home, {"parameters": [("text", value)]})
    words = _words(job)
    assert not value or value not in words[1:]
    ((name, text),) = job.spec.options["parameters"]
    assert (name, from_yaml(text)) == ("text", value)
    assert "touch" not in job.request.script
    assert job.request.script.count("\n") == 2


def test_the_job_says_where_everything_is(home: Path) -> None:
    (home / "a").mkdir()
    (home / "b").mkdir()
    write_notebook(home / "a" / "in{x}.ipynb")
    job = _plan(
        home, {"notebook": "a/in{x}.ipynb", "output": "b/out.ipynb", "gpus_per_node": 2, "time": "10"}
    )
    assert job.spec.directory == str(home)
    assert job.spec.folders == (str(home / "a"), str(home / "b"))
    assert job.log == home / "b" / "out.ipynb.log"
    assert job.request.output == str(job.log)
    assert (job.request.gpus_per_node, job.request.time, job.spec.cluster) == (2, "10", "local")
    assert f"{home}/a/in{{x}}.ipynb" in _words(job)
    assert job.spec.options["notebook"] == f"{home}/a/in{{x}}.ipynb"
    assert sorted(path.name for path in home.rglob("*") if path.is_file()) == ["in{x}.ipynb"]


def test_neither_tokens_nor_another_jobs_variables_reach_the_job(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    others = {"GIPFEL_RUN": "/run", "GIPFEL_ENGINE": "host", "SLURM_JOB_ID": "7", "SBATCH_PARTITION": "x"}
    others |= {"JUPYTERHUB_API_TOKEN": "secret", "JPY_API_TOKEN": "secret", "CUDA_VISIBLE_DEVICES": "0"}
    job = _plan(home, SCRATCH="/scratch", GIPFEL_RUNS="/runs", BROKEN="\udcff", **others)
    names = set(job.request.environment)
    assert names == {"HOME", "PATH", "SCRATCH", "GIPFEL_RUNS", JOB_VARIABLE}
    assert job.spec.engine == "bubblewrap"


def test_from_a_folder_of_the_system_it_runs_beside_the_notebook(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    options = NotebookOptions(notebook=home / "in.ipynb", output=home / "out.ipynb")
    job = plan_notebook_job(options, environment=_environment(home), directory=Path("/"))
    assert job.spec.directory == str(home)


def test_a_runtime_runs_jobs_of_a_cluster_and_is_found_in_the_home_folder(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    assert _plan(home).spec.runtime in {"", str(Path(__file__).parents[2] / "build" / "runtime")}
    folder = home / "lent"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").symlink_to(sys.executable)
    here = Runtime.from_current_interpreter()
    described = Description(prefix=str(folder), version="1", arch=here.arch, key="k", distributions={})
    (folder / "runtime.json").write_text(described.model_dump_json())
    job = _plan(home, {"runtime": str(folder)})
    assert job.spec.runtime == str(folder)
    # This machine has what is installed beside the command; a cluster's nodes may have the runtime alone.
    assert f"exec {sys.executable} -I -m gipfel_cluster.job" in job.request.script
    on_slurm = _plan(home, {"runtime": str(folder), "scheduler": "slurm"}).request.script
    assert f"exec {folder}/bin/python3 -I -m gipfel_cluster.job" in on_slurm
    (home / ".gipfel").mkdir()
    folder.rename(home / ".gipfel" / "runtime")
    assert _plan(home).spec.runtime == str(home / ".gipfel" / "runtime")
    assert _plan(home, GIPFEL_RUNTIME=str(home / ".gipfel" / "runtime")).spec.runtime.endswith("runtime")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        *((each, "is not a notebook") for each in NO_NOTEBOOKS),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}', "names no kernel"),
    ],
)
def test_what_is_no_notebook_is_refused_in_one_line(home: Path, content: str | None, words: str) -> None:
    if content is not None:
        (home / "in.ipynb").write_text(content)
    with pytest.raises(GipfelError, match=words) as refused:
        _plan(home)
    assert "\n" not in str(refused.value)
    assert not (home / "out.ipynb").exists()


def test_a_small_notebook_takes_little_time_whatever_is_in_it(home: Path) -> None:
    begun = time.process_time()
    content = json.loads(write_notebook(home / "in.ipynb").read_text())
    content["cells"][0]["metadata"]["tags"] = [{"a": number} for number in range(20_000)]
    (home / "tags.ipynb").write_text(json.dumps(content))
    with pytest.raises(GipfelError, match="tags of a cell are not a list"):
        read_notebook(home / "tags.ipynb")
    blanks = " " * 200_000
    write_notebook(home / "blanks.ipynb", parameters=f"a: b{blanks}=1\nd = 5\nc = x{blanks}y{blanks}z")
    found = known_parameters(read_notebook(home / "blanks.ipynb"))
    assert found is not None
    assert [each.name for each in found] == ["a", "d", "c"]
    assert time.process_time() - begun < 10


def test_a_folder_and_binary_content_are_no_notebooks(home: Path) -> None:
    (home / "in.ipynb").mkdir()
    with pytest.raises(GipfelError, match="can't be read: Is a directory"):
        _plan(home)
    (home / "other.ipynb").write_bytes(b"\x80\xff hsqs")
    with pytest.raises(GipfelError, match="is not a notebook"):
        _plan(home, {"notebook": "other.ipynb"})


def test_a_misspelt_parameter_is_refused_and_another_unknown_one_is_told_of(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    with pytest.raises(GipfelError, match=r"no parameter 'secnds'\. Did you mean 'seconds'\?"):
        _plan(home, {"parameters": [("secnds", "1")]})
    (note,) = _plan(home, {"parameters": [("zzz", "1"), ("text", "x")]}).notes
    assert "no parameter 'zzz'; it is set nevertheless. It has seconds, text, fail" in note
    with pytest.raises(GipfelError, match="It has seconds, text, fail"):
        _plan(home, {"parameters": [("zzz", "1")], "strict": True})
    with pytest.raises(GipfelError, match="is not a valid name of a parameter"):
        _plan(home, {"parameters": [("x = 1; y", "1")]})
    content = json.loads((home / "in.ipynb").read_text())
    content["cells"][0]["metadata"] = {}
    (home / "in.ipynb").write_text(json.dumps(content))
    (note,) = _plan(home, {"parameters": [("seconds", "1")]}).notes
    assert note.endswith("It has none.")
    with pytest.raises(GipfelError, match="takes no parameters"):
        _plan(home, {"parameters": [("seconds", "1")], "strict": True})


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("in.ipynb", "would overwrite"),
        ("nowhere/out.ipynb", "does not exist"),
        ("out.txt", "must end in"),
        ("50%.ipynb", "has a '%'"),
        ("folder.ipynb", "is not a file that you can write"),
    ],
)
def test_an_output_that_cant_be_written_is_refused(home: Path, output: str, words: str) -> None:
    write_notebook(home / "in.ipynb")
    (home / "folder.ipynb").mkdir()
    with pytest.raises(GipfelError, match=words):
        _plan(home, {"output": output})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": 2}, "is one node, but 2 were requested"),
        ({"parameters": [("seconds", "soon")]}, "declares 'seconds' as float, but 'soon' is not a valid"),
        ({"parameters_yaml": ["seconds: [1"]}, "is not valid YAML"),
        ({"parameters_yaml": ["- 1"]}, "does not map names to values"),
        ({"parameters_file": ["nowhere.yaml"]}, "can't be read"),
        ({"grid": ["seconds"]}, "is not a valid axis"),
        ({"grid": ["seconds=1,1"]}, "has the same value of seconds twice"),
        ({"grid": ["seconds=1,soon"]}, "as float"),
        ({"grid": ["secnds=1,2"]}, "Did you mean 'seconds'"),
        ({"grid": ["seconds=1,2"], "parameters": [("seconds", "1")]}, "is given twice"),
        ({"grid": ["seconds=0..99999"]}, "can't be used"),
        ({"scheduler": "pbs"}, "no scheduler 'pbs'"),
        ({"time": "soon"}, "time can't be used"),
        ({"partition": "a b;c"}, "partition can't be used"),
        ({"cluster": "../x"}, "cluster can't be used"),
        ({"runtime": "/nowhere"}, "no runtime in /nowhere"),
        ({"edf": "nowhere"}, "no EDF of this name"),
        ({"parameters": [("text", "x" * 200_000)]}, "too long"),
    ],
)
def test_options_that_cant_be_used_are_refused_in_one_line(
    home: Path, options: dict[str, Any], words: str
) -> None:
    write_notebook(home / "in.ipynb")
    with pytest.raises(GipfelError, match=words) as refused:
        _plan(home, options)
    assert "\n" not in str(refused.value)


def test_the_edf_is_checked_before_anything_is_submitted(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    (home / "bad.toml").write_text('image = "/nowhere/image.sqsh"\n')
    with pytest.raises(GipfelError, match=r"/nowhere/image\.sqsh"):
        _plan(home, {"edf": "./bad.toml"})
    (home / "plain.toml").write_text('[env]\nA = "b"\n')
    assert _plan(home, {"edf": "./plain.toml"}).spec.edf == str(home / "plain.toml")
    with pytest.raises(GipfelError, match="no engine 'warp'"):
        _plan(home, {"edf": "./plain.toml", "engine": "warp"})


def test_inside_a_container_without_a_broker_it_says_so(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    with pytest.raises(GipfelError, match="broker does not answer"):
        _plan(home, GIPFEL_RUN="/run", GIPFEL_ENGINE="bubblewrap")
    # Outside the same name is a default.
    assert _plan(home, GIPFEL_ENGINE="host").spec.engine == "host"


def test_inside_a_container_the_host_says_what_the_job_gets(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    write_edf(home, "other")
    with running_broker(home) as broker:
        inside = {"GIPFEL_RUN": "/run", "GIPFEL_ENGINE": "bubblewrap", "GIPFEL_SOCKETS": broker.sockets}
        # What the image says means nothing on the host.
        job = _plan(home, {"edf": "other"}, **inside, PATH="/image/bin", OF_THE_IMAGE="x", GIPFEL_CLUSTER="x")
        assert (job.in_container, job.scheduler, job.spec.cluster, job.spec.engine) == (
            True, "local", "here", "bubblewrap",
        )  # fmt: skip
        assert job.spec.edf == f"{home}/.edf/other.toml"
        assert job.request.environment["PATH"] == broker.host_environment["PATH"]
        assert not {"OF_THE_IMAGE", "GIPFEL_SOCKETS", "GIPFEL_RUN"} & set(job.request.environment)
        reached = scheduler_of(job, _environment(home, **inside))
        assert reached.name == "broker"
        with pytest.raises(GipfelError, match="can submit to the scheduler of its job only, which is local"):
            scheduler_of(_plan(home, {"scheduler": "slurm"}, **inside), _environment(home, **inside))
        with pytest.raises(GipfelError, match="no EDF of this name"):
            _plan(home, {"edf": "nowhere"}, **inside)


def test_a_path_that_the_host_has_elsewhere_is_the_hosts(home: Path) -> None:
    (home / "data").mkdir()
    spot = write_notebook(home / "data" / "in.ipynb")

    class Elsewhere(ContainerContext):
        """A container that mounts ``data`` under another name."""

        def on_host(self, path: Path) -> Path:
            return Path("/project") / path.relative_to(home / "data") if path != home else path

    with running_broker(home) as broker:
        options = NotebookOptions(notebook=spot, output=home / "data" / "out.ipynb")
        here = Elsewhere(broker.socket)
        job = plan_notebook_job(options, environment={}, directory=home / "data", context=here)
    assert job.spec.folders == ("/project",)
    assert job.spec.directory == "/project"
    assert job.request.output == "/project/out.ipynb.log"
    assert "/project/in.ipynb" in job.spec.command
    assert (job.output, job.log) == (home / "data/out.ipynb", home / "data/out.ipynb.log")


def test_parameters_are_typed_as_papermill_does_and_as_their_annotation_wants(home: Path) -> None:
    write_notebook(home / "in.ipynb", parameters='a: str = "x"\nb = 1\nc = None\nd: list[int] = []\ne = 0')
    (home / "more.yaml").write_text("b: 5\ne: .nan\n")
    job = _plan(
        home,
        {
            "parameters": [("a", "12"), ("b", "1e-3")],
            "parameters_raw": [("c", "True")],
            "parameters_yaml": ["d: [1, 2]"],
            "parameters_file": ["more.yaml"],
        },
    )
    values = {name: from_yaml(text) for name, text in job.spec.options["parameters"]}
    assert values.pop("e") != 0
    assert values == {"a": "12", "b": 0.001, "c": "True", "d": [1, 2]}


def test_a_grid_is_an_array_with_an_output_for_each_point(home: Path, tmp_path: Path) -> None:
    write_notebook(home / "in.ipynb")
    grid = ["seconds=1e-3,2", "text=a/b,c"]
    job = _plan(home, {"output": "o-{text}-{seconds}.ipynb", "grid": grid, "max_parallel": 3})
    tasks = list(job.tasks("7"))
    assert [task.output.name for task in tasks] == [
        "o-a_b-0.001.ipynb", "o-c-0.001.ipynb", "o-a_b-2.ipynb", "o-c-2.ipynb",
    ]  # fmt: skip
    assert (tasks[2].job_id, tasks[2].log.name, tasks[2].values) == (
        "7_2", "o-2.ipynb.log", {"seconds": "2", "text": "a/b"},
    )  # fmt: skip
    assert (job.request.array, job.request.array_limit) == (4, 3)
    assert job.request.output == f"{home}/o-%a.ipynb.log"
    # The task finds the same point and output by its number.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text(json.dumps({"options": job.spec.options}))
    inside = {"GIPFEL_RUN": str(tmp_path / "run"), "SLURM_ARRAY_TASK_ID": "2"}
    task = task_of(job.output, False, inside)
    assert (task.output, task.parameters) == (tasks[2].output, {"seconds": 2, "text": "a/b"})
    assert not task.resume
    # After a requeue only its own output is resumed.
    again = {**inside, "SLURM_RESTART_COUNT": "1"}
    assert not task_of(job.output, False, again).resume
    task.output.write_text(json.dumps({"metadata": {"gipfel": {"run": "run"}}}))
    assert task_of(job.output, False, again).resume
    with pytest.raises(GipfelError, match="4 points, but this is task 9"):
        task_of(job.output, False, {**inside, "SLURM_ARRAY_TASK_ID": "9"})
    plain = _plan(home, {"grid": grid})
    assert next(plain.tasks("7")).output.name == "out-seconds=0.001-text=a_b.ipynb"
    collide = _plan(home, {"grid": ["text=a/b,a b"]})
    assert [task.output.name for task in collide.tasks("7")] == ["out-0.ipynb", "out-1.ipynb"]


def test_a_dry_run_shows_all_of_it_and_no_variables_value(home: Path) -> None:
    write_notebook(home / "in.ipynb")
    options = {"scheduler": "slurm", "nodes": 2, "grid": ["seconds=0..2"], "max_parallel": 2, "time": "5"}
    job = _plan(home, {**options, "parameters": [("text", "$(id)")]}, SECRET="hidden-value")
    lines = dry_run_lines(job)
    submit = lines[0].split()
    assert submit[:2] == ["submit", "sbatch"]
    assert {"--nodes=2", "--array=0-2%2", "--time=5"} <= set(submit)
    assert "parameter text: $(id)" in lines
    assert sum(line.startswith("output ") for line in lines) == 3
    assert "SECRET" in " ".join(lines)
    assert "hidden-value" not in " ".join(lines) + json.dumps(dry_run_document(job))
    assert not (home / "out.ipynb.log").exists()
