"""Target of a launch: files that can't run are refused at once, and the kernel of a notebook is chosen."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.directory import parent_directory
from gipfel_cluster.workloads.submission import submission_context
from gipfel_extension.training.launch import DryRun, launch
from gipfel_extension.training.launches.launchers import LAUNCHERS, Attempt
from gipfel_extension.training.launches.planning import plan_launch, shown_command, started_command
from gipfel_extension.training.record import LAUNCHES
from gipfel_extension.training.record.spec import LaunchSpec

_CELL = {
    "cell_type": "code",
    "metadata": {},
    "source": "print('ran')",
    "outputs": [],
    "execution_count": None,
}


def _environment(folder: Path, **more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {"HOME": str(folder), "PATH": path, "GIPFEL_RUNS": str(folder / "runs")}
    return {**kept, "GIPFEL_SCHEDULER": "local", **more}


def _notebook(path: Path, *, kernel: str = "", language: str = "python") -> Path:
    about = {"kernelspec": {"name": kernel, "display_name": kernel, "language": language}} if kernel else {}
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": about, "cells": [_CELL]}))
    return path


def _dry(folder: Path, spec: dict[str, Any], **more: str) -> DryRun:
    given = LaunchSpec.model_validate({"launcher": "srun", **spec})
    made = launch(given, _environment(folder, **more), directory=folder, dry_run=True)
    assert isinstance(made, DryRun)
    return made


@pytest.mark.parametrize(
    ("target", "content", "said"),
    [
        ("gone.py", None, r"^There is no file \S+/gone.py\. Check the name\.$"),
        ("python", None, r"'python' is not a script; .* Leave it out: `gipfel launch … -- train.py`"),
        ("python3.11", None, "Leave it out"),
        ("torchrun", None, "For a module, use -m"),
        ("folder", "folder", "is a directory"),
        ("run.sh", "echo $RANK\n", "is a shell script; ranks run Python"),
        ("run", "#!/usr/bin/env bash\npython train.py\n", "is a shell script"),
        ("a.out", "\x7fELF", "is a compiled program"),
        ("bad.ipynb", '{"nbformat": 4,\n"cells": [\n', r"not valid JSON \(.*line 3"),
        ("old.ipynb", '{"nbformat": 3, "worksheets": []}', "jupyter nbconvert --to notebook old.ipynb"),
        ("not.ipynb", '{"nbformat": 4, "cells": {}}', "it has no list of cells"),
        ("empty.ipynb", "{}", "it has no 'nbformat'"),
        ("gone.ipynb", None, "There is no file"),
    ],
)
def test_what_ranks_cant_run_is_refused_at_once(
    tmp_path: Path, target: str, content: str | None, said: str
) -> None:
    if content == "folder":
        (tmp_path / target).mkdir()
    elif content is not None:
        (tmp_path / target).write_text(content)
    kind = "notebook" if target.endswith(".ipynb") else "script"
    spec = LaunchSpec.model_validate({"target": target, "kind": kind, "arguments": ()})
    environment = _environment(tmp_path)
    with pytest.raises(GipfelError, match=said):
        launch(spec, environment, directory=tmp_path)
    # Its number is free for the next one.
    assert not list(parent_directory(LAUNCHES, environment).iterdir())


def test_a_notebook_in_another_language_is_refused(tmp_path: Path) -> None:
    _notebook(tmp_path / "r.ipynb", kernel="ir", language="R")
    with pytest.raises(GipfelError, match="is written in r; ranks run Python"):
        _dry(tmp_path, {"target": "r.ipynb", "kind": "notebook"})


@pytest.mark.parametrize("line", ["", "#!/usr/bin/env python3\n", "#!/opt/venv/bin/python -u\n"])
def test_a_python_script_of_any_name_passes(tmp_path: Path, line: str) -> None:
    (tmp_path / "train").write_text(line)
    (script,) = [each for each in _dry(tmp_path, {"target": "train"}).preflight if each.check == "script"]
    assert script.verdict == "pass"


@pytest.mark.parametrize(
    ("kernel", "asked", "verdict", "said"),
    [
        ("", "", None, ""),
        ("python3", "", None, ""),
        ("my-env", "", "warn", "The notebook's kernel 'my-env' is not installed: python3 runs the notebook."),
        ("my-env", "other", "fail", "There is no kernel 'other' here."),
        ("my-env", "python3", None, ""),
    ],
)
def test_the_preflight_looks_for_the_kernel(
    tmp_path: Path, kernel: str, asked: str, verdict: str | None, said: str
) -> None:
    _notebook(tmp_path / "train.ipynb", kernel=kernel)
    made = _dry(tmp_path, {"target": "train.ipynb", "kind": "notebook", "kernel": asked})
    found = [(each.verdict, each.message) for each in made.preflight if each.check == "kernel"]
    assert found == ([(verdict, said)] if verdict else [])


@pytest.mark.parametrize(("ranks", "verdict"), [(1, "pass"), (2, "fail")])
def test_a_kernel_with_another_python_than_the_ranks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, verdict: str
) -> None:
    spec = tmp_path / "data" / "kernels" / "my-env" / "kernel.json"
    spec.parent.mkdir(parents=True)
    about = {"argv": ["/other/bin/python3"], "display_name": "Mine", "language": "python"}
    spec.write_text(json.dumps(about))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "data"))
    _notebook(tmp_path / "train.ipynb", kernel="my-env")
    given = {"target": "train.ipynb", "kind": "notebook", "gpus_per_node": ranks}
    (found,) = [each for each in _dry(tmp_path, given).preflight if each.check == "kernel"]
    assert found.verdict == verdict
    assert ("in /other/bin/python3, and the other ranks run in" in found.message) == (ranks > 1)


def test_a_notebook_whose_kernel_is_not_installed_runs_with_pythons_own(tmp_path: Path) -> None:
    notebook = _notebook(tmp_path / "train.ipynb", kernel="my-env")
    done = _rank_0(tmp_path, notebook)
    assert done.returncode == 0, done.stderr
    assert (
        "gipfel: The notebook's kernel 'my-env' is not installed: python3 runs the notebook." in done.stderr
    )
    assert "ran" in done.stdout


@pytest.mark.parametrize(
    ("kernel", "said"), [("nowhere", "There is no kernel 'nowhere' here."), ("", "JSON")]
)
def test_why_a_notebook_could_not_run_is_kept_for_the_list(tmp_path: Path, kernel: str, said: str) -> None:
    notebook = _notebook(tmp_path / "train.ipynb")
    if not kernel:
        notebook.write_text("{")
    done = _rank_0(tmp_path, notebook, kernel=kernel)
    assert done.returncode == 1
    noted = json.loads((tmp_path / "error.json").read_text())
    assert noted["message"].startswith("The notebook can't be run: ")
    assert said in noted["message"]
    assert noted["message"] in done.stderr


def _rank_0(folder: Path, notebook: Path, **plan: str) -> subprocess.CompletedProcess[str]:
    content = {"target": str(notebook), "parameters": {}, "profile": False, **plan}
    (folder / "attempt.json").write_text(json.dumps(content))
    more = {"RANK": "0", "WORLD_SIZE": "2", "GIPFEL_RANK_ERROR": str(folder / "error.json")}
    return subprocess.run(
        [sys.executable, "-I", "-m", "gipfel_extension.training.launches.notebook", str(folder)],
        env=_environment(folder, **more), cwd=folder, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_the_command_that_is_shown_has_srun_only_where_slurm_starts_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    spec = {"target": "train.py", "gpus_per_node": 2, "preflight": False}
    shown = _dry(tmp_path, spec).command
    assert "srun" not in shown
    assert shown.startswith(f"# script on 2 ranks, from {tmp_path}\n")
    assert "# 2 times, once for each rank:\n" in shown
    alone = _dry(tmp_path, {**spec, "gpus_per_node": 1}).command
    assert alone.startswith(f"# script on 1 rank, from {tmp_path}\n")
    torchrun = _dry(tmp_path, {**spec, "launcher": "torchrun"}).command
    assert "srun" not in torchrun
    by_slurm = _dry(tmp_path, spec, GIPFEL_SCHEDULER="slurm").command
    assert "\nsrun --overlap --nodes=1 --ntasks-per-node=2 " in by_slurm
    in_job = _dry(tmp_path, spec, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n1").command
    assert "\nsrun --overlap" in in_job


def test_an_image_may_have_the_file(tmp_path: Path) -> None:
    edf = tmp_path / "image.toml"
    (tmp_path / "root").mkdir()
    edf.write_text(f'image = "{tmp_path}/root"\n')
    with pytest.raises(GipfelError) as refused:
        launch(LaunchSpec(target="python", edf=str(edf)), _environment(tmp_path), directory=tmp_path)
    assert "Leave it out" in str(refused.value)
    with pytest.raises(GipfelError) as refused:
        launch(LaunchSpec(target="/opt/train.py", edf=str(edf)), _environment(tmp_path), directory=tmp_path)
    assert "There is no file" not in str(refused.value)


def test_a_launch_that_has_begun_shows_what_was_executed(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    environment = _environment(tmp_path)
    folder = tmp_path / "launch"
    folder.mkdir()
    spec = LaunchSpec(target="train.py", gpus_per_node=2)
    plan = plan_launch(spec, folder, submission_context(environment), environment, tmp_path)
    assert "--rdzv-endpoint=127.0.0.1:PORT" in shown_command(plan)
    assert not started_command(plan, folder)
    attempt = Attempt(nodes=("n7",), addresses=("127.0.0.1",), port=21234, ranks_per_node=2)
    content = {"nodes": ["n7"], "commands": [LAUNCHERS["torchrun"].command(attempt, 0)]}
    (folder / "attempt.json").write_text(json.dumps(content))
    shown = started_command(plan, folder)
    assert "--rdzv-endpoint=127.0.0.1:21234" in shown
    assert "PORT" not in shown
    assert "srun" not in shown
