"""Runs have notes, a table that is sorted and filtered, and are compared; git differences of real commits."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from gipfel_cluster.job.git_state import git_difference, git_state
from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.run_folders import (
    NOTES_FILE,
    change_notes,
    find_run,
    read_notes,
)
from gipfel_extension.cli.main import gipfel
from gipfel_extension.server.earlier_runs import earlier_runs
from gipfel_extension.server.job import JobQuery
from gipfel_extension.server.job_verdicts import JobVerdicts
from gipfel_extension.server.run_comparison import compare_runs, configuration_difference
from gipfel_extension.server.run_table import Condition, _key, run_table

_LOSSES = dict.fromkeys(
    ("idle", "input", "launch", "occupancy", "imbalance", "communication", "checkpoint", "capped"), 0.0
) | {"start_up": 1.0, "unexplained": 2.0}
_BINDING = {"compute": 0.5, "memory": 0.25, "interconnect": 0.25}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("GIPFEL_RUN", raising=False)
    return tmp_path / "runs"


@pytest.fixture
def run(runs: Path) -> Callable[..., Result]:
    runner = CliRunner()
    return lambda *words, answer="": runner.invoke(gipfel, words, input=answer, standalone_mode=False)


def make(root: Path, number: int, *, score: float | None = None, **record: Any) -> Path:
    """A run of an hour, the higher number the newer."""
    folder = root / f"alps-{number}"
    (folder / "telemetry").mkdir(parents=True)
    content = {
        "kind": "recording",
        "started": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T01:00:00+00:00",
        "exit_status": 0,
        "directory": "/project",
        "command": ["python", "train.py", "--lr", f"{number}e-4", "--api-key", "sesame"],
        **record,
    }
    (folder / "record.json").write_text(json.dumps(content))
    if score is not None:
        energy = {"gpu_hours": 4.0, "total_wh": 1000.0 * number}
        losses = {**_LOSSES, "input": 97.0 - score}
        document = {"score": score, "losses": losses, "binding": _BINDING, "confidence": 1.0}
        (folder / "score.json").write_text(json.dumps({**document, "energy": energy}))
    for each in (*folder.iterdir(), folder):
        os.utime(each, (1_800_000_000 + number, 1_800_000_000 + number))
    return folder


def test_a_run_gets_a_name_tags_a_note_and_a_pin(run: Callable[..., Result], runs: Path) -> None:
    folder = make(runs, 1)
    named = ("--name", "baseline", "--tag", "sweep", "--tag", "lr:3", "--pin")
    words = (*named, "--note", "first\nsecond\x1b[31m")
    assert run("run", "note", "alps-1", *words).return_value == 0
    assert run("runs", "note", "baseline", "--untag", "sweep").return_value == 0
    notes = read_notes(folder)
    assert (notes.display_name, notes.tags, notes.pinned) == ("baseline", ("lr:3",), True)
    assert notes.note == "first\nsecond [31m"
    assert (folder / NOTES_FILE).stat().st_mode & 0o077 == 0
    assert json.loads(run("runs", "note", "baseline", "--json").stdout)["tags"] == ["lr:3"]
    # Tags and pins have commands of their own too.
    assert "tags    lr:3 seed:1" in run("run", "tag", "baseline", "lr:3", "seed:1").stdout
    assert json.loads(run("runs", "tag", "alps-1", "seed:1", "--remove", "--json").stdout)["tags"] == ["lr:3"]
    assert "pinned  no" in run("run", "pin", "baseline", "--remove").stdout
    assert "pinned  yes" in run("runs", "pin", "baseline").stdout
    assert "Missing parameter: tags" in str(run("runs", "tag", "baseline").exception)
    for command in ("note", "tag", "pin", "show"):
        shell = ShellComplete(gipfel, {}, "gipfel", "_GIPFEL_COMPLETE")
        assert [each.value for each in shell.get_completions(["run", command], "b")] == ["baseline"]
    assert "baseline" in run("runs").stdout
    assert "pinned" in str(run("runs", "rm", "--yes", "baseline").exception)
    assert folder.is_dir()
    make(runs, 2)
    run("runs", "note", "alps-2", "--name", "baseline")
    assert "alps-1, alps-2" in str(run("runs", "show", "baseline").exception)


@pytest.mark.parametrize(
    "changes",
    [
        {"display_name": "two\nlines"},
        {"display_name": "x" * 101},
        {"add_tags": ("two words",)},
        {"add_tags": tuple(f"t{number}" for number in range(21))},
        {"note": "x" * 4001},
    ],
)
def test_notes_out_of_bounds_are_refused(changes: dict[str, Any], runs: Path) -> None:
    folder = make(runs, 1)
    with pytest.raises(GipfelError) as refused:
        change_notes(folder, changes)
    assert "\n" not in str(refused.value)
    assert not (folder / NOTES_FILE).exists()


@pytest.mark.parametrize("content", ["{", '{"tags": 3}', "[" * 100_000, '{"more": 1}'])
def test_damaged_notes_are_empty(content: str, runs: Path) -> None:
    folder = make(runs, 1)
    (folder / NOTES_FILE).write_text(content)
    assert find_run("alps-1", os.environ).display_name == ""


def test_the_table_is_sorted_and_filtered(run: Callable[..., Result], runs: Path) -> None:
    for number, score in ((1, 40.0), (2, None), (3, 62.5), (4, 9.0)):
        make(runs, number, score=score, git={"commit": f"{number}" * 40, "changed_files": 1})
    change_notes(runs / "alps-3", {"tags": ("sweep",), "pinned": True})

    def names(*words: str) -> list[str]:
        return [each["name"] for each in json.loads(run("runs", "list", "--json", *words).stdout)]

    assert names() == ["alps-1", "alps-2", "alps-3", "alps-4"]
    assert names("--sort", "score") == ["alps-2", "alps-4", "alps-1", "alps-3"]
    assert names("--sort", "score", "--reverse", "--limit", "2") == ["alps-1", "alps-4"]
    assert names("--filter", "score>=40", "--filter", "energy_wh<2500") == ["alps-1"]
    assert names("--filter", "parameters.lr=3e-4") == ["alps-3"]
    assert names("--filter", "parameters~TRAIN") == []
    assert names("--filter", "commit~4444") == ["alps-4"]
    assert names("--tag", "sweep") == names("--pinned") == ["alps-3"]
    assert names("--filter", "tags!=sweep", "--sort", "parameters.lr") == ["alps-1", "alps-2", "alps-4"]
    (row,) = run_table(os.environ, conditions=[Condition.parse("name=alps-3")])
    assert (row.loss, row.loss_points, row.duration_s, row.gpu_hours) == ("input", 34.5, 3600.0, 4.0)
    assert row.parameters["api_key"] == "HIDDEN"
    lines = run("runs").stdout.splitlines()
    assert lines[3].split()[:3] == ["alps-3", "*", "recording"]
    assert "input 34" in lines[3]
    assert "1:00:00" in lines[3]
    assert "33333333 changed" in lines[3]
    assert "has no column 'speed'" in str(run("runs", "list", "--sort", "speed").exception)
    for wrong in ("score", "nothing=1", "x" * 301):
        assert isinstance(run("runs", "list", "--filter", wrong).exception, GipfelError)


def test_the_throughput_is_that_of_the_last_values_of_rank_0(run: Callable[..., Result], runs: Path) -> None:
    folder = make(runs, 1)
    lines = [{"rank": 0, "values": {"tokens_per_s": 1000.0}}] * 30
    lines += [{"rank": 0, "values": {"tokens_per_s": 4000.0, "loss": 1}}] * 20
    lines += [{"rank": 1, "values": {"tokens_per_s": 9.0}}, {"rank": 0, "values": {"tokens_per_s": None}}]
    cut = '{"rank": 0, "values": {"tokens_per_s": 7'
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines) + cut)
    make(runs, 2)
    hostile = make(runs, 3)
    (hostile / "metrics.jsonl").write_text('["tokens_per_s"]\n{"values": "tokens_per_s"}\n' + "[" * 10_000)
    found = json.loads(run("runs", "list", "--json").stdout)
    assert [(each["throughput_name"], each["throughput"]) for each in found] == [
        ("tokens_per_s", 4000.0),
        ("", None),
        ("", None),
    ]
    assert "4000 tokens_per_s" in run("runs", "show", "alps-1").stdout


def test_all_but_the_newest_runs_are_pruned(run: Callable[..., Result], runs: Path) -> None:
    folders = [make(runs, number) for number in range(1, 6)]
    change_notes(folders[0], {"pinned": True})
    change_notes(folders[1], {"tags": ("paper",)})
    for each in folders[:2]:
        os.utime(each / NOTES_FILE, (1_700_000_000, 1_700_000_000))
    # Files of the future are newer than any age.
    assert "nothing to remove" in run("runs", "prune", "--keep", "9").stderr
    for number, each in enumerate(folders):
        for path in (*each.iterdir(), each):
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    assert run("runs", "prune", "--keep", "2", answer="n\n").return_value == 1
    assert run("runs", "prune", "--keep", "2", "--yes").return_value == 0
    assert sorted(each.name for each in runs.iterdir()) == ["alps-1", "alps-2", "alps-4", "alps-5"]


def test_a_repository_that_hangs_delays_a_start_once(tmp_path: Path) -> None:
    # The sleep is a child of what is killed, and holds its pipe.
    program = tmp_path / "git"
    commit = "a" * 40
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *rev-parse*) echo {tmp_path}; echo {commit} ;; *) sleep 40; true ;; esac\n'
    )
    program.chmod(0o755)
    begun = time.monotonic()
    found = git_state(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert time.monotonic() - begun < 20
    assert found is not None
    assert (found.commit, found.branch, found.changed_files) == (commit, "", None)


def test_a_parameter_that_is_not_a_number_does_not_disturb_the_order() -> None:
    values: list[str | float] = [3.0, "nan", 1.0, "nan", 2.0, "fast"]
    assert sorted(values, key=_key) == [1.0, 2.0, 3.0, "fast", "nan", "nan"]


def _git(root: Path, *words: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"]}
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *named, "-C", root, *words], env=own, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commits_and_changes_are_found_without_running_the_repositorys_programs(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    assert git_state(root) is None
    _git(root, "init")
    (root / "train.py").write_text("lr = 1\n")
    _git(root, "add", "train.py")
    _git(root, "commit", "-m", "Start")
    first = git_state(root / "src")
    assert first is not None
    assert (first.branch, first.changed_files, first.changes_digest) == ("main", 0, None)
    assert first.root == str(root.resolve())
    marker = tmp_path / "ran"
    for name in ("diff.external", "core.fsmonitor", "core.pager"):
        _git(root, "config", name, f"touch {marker}")
    (root / "train.py").write_text("lr = 2\n")
    changed = git_state(root)
    assert changed is not None
    assert not marker.exists()
    # Without the options the repository's programs run.
    _git(root, "status")
    assert marker.exists()
    assert changed.changed_files == 1
    assert changed.changes_digest
    _git(root, "-c", "core.fsmonitor=false", "commit", "-a", "-m", "Raise the rate")
    marker.unlink(missing_ok=True)
    second = git_state(root)
    assert second is not None
    difference = git_difference(root, first.commit, second.commit)
    assert [each.split(" ", 1)[1] for each in difference.commits] == ["Raise the rate"]
    assert difference.files == ("M train.py",)
    assert git_difference(root, second.commit, first.commit).missing_commits == difference.commits
    assert not marker.exists()
    assert "does not have both commits" in git_difference(root, first.commit, "0" * 40).reason
    assert "no commit" in git_difference(root, first.commit, "--output=/tmp/x").reason


def test_runs_are_compared_with_the_first(run: Callable[..., Result], runs: Path) -> None:
    for number, score in ((1, 40.0), (2, 60.0), (3, 60.2)):
        engine = "podman" if number == 3 else "bubblewrap"
        make(runs, number, score=score, engine=engine, edf={"env": {"A": "1", "SECRET": f"{number}"}})
    change_notes(runs / "alps-1", {"display_name": "baseline"})
    found = compare_runs(["baseline", "alps-2", "alps-3"])
    rows = {row.key: row.values for row in found.configuration}
    assert rows["engine"] == ("bubblewrap", "bubblewrap", "podman")
    assert set(rows) == {"command", "engine"}
    assert "sesame" not in found.model_dump_json()
    measured = {row.name: row for row in found.measurements}
    assert measured["score"].values == (40.0, 60.0, 60.2)
    assert measured["score"].changes == (0.0, 20.0, pytest.approx(20.2))
    assert measured["score"].better == (None, True, True)
    assert measured["input"].better == (None, True, True)
    assert measured["energy"].changes == (0.0, 1000.0, 2000.0)
    assert found.pace == (None, None, None)
    text = run("compare", "baseline", "alps-2", "alps-3").stdout
    assert "60 (+20)" in text
    assert "podman" in text
    assert "not recorded" in text
    assert json.loads(run("compare", "alps-1", "alps-2", "--json").stdout)["runs"][0]["name"] == "alps-1"
    assert "2 to 20" in str(run("compare", "alps-1", "alps-1").exception)
    assert "There is no run" in str(run("compare", "alps-1", "alps-7").exception)


def log_steps(folder: Path, factor: float, *, ranks: int = 4, steps: int = 80, seed: int = 1) -> None:
    """Steps as `log(step=…, step_s=…)` of each rank leaves them."""
    seconds = factor * np.exp(np.random.default_rng(seed).normal(0, 0.03, steps))
    lines = [
        json.dumps(
            {
                "time_ns": 10**18 + (step * ranks + rank) * 10**6,
                "monotonic_ns": step,
                "node": "n1",
                "rank": rank,
                "values": {"step": step, "step_s": float(seconds[step])},
            }
        )
        for step, rank in np.ndindex(steps, ranks)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_the_pace_of_runs_that_logged_steps_is_compared(run: Callable[..., Result], runs: Path) -> None:
    folders = [make(runs, number, score=50.0) for number in range(1, 7)]
    log_steps(folders[0], 1.0)
    log_steps(folders[1], 1.12, seed=2)
    log_steps(folders[2], 1.01, seed=3)
    log_steps(folders[3], 1.0, steps=15)
    log_steps(folders[4], 1.0, ranks=8)
    names = [folder.name for folder in folders]
    found = json.loads(run("compare", *names, "--json").stdout)["pace"]
    assert (found[0], found[5]) == (None, None)
    assert [each["verdict"] for each in found[1:5]] == ["slower", "same", "cannot tell", "cannot tell"]
    assert found[1]["least"] < found[1]["share"] < found[1]["most"]
    assert found[1]["share"] == pytest.approx(0.12, abs=0.03)
    assert found[1]["confidence"] > 0.95
    assert (found[2]["confidence"], 0.05 <= found[2]["resolution"] < 0.08) == (0.0, True)
    assert "alps-4 has fewer than 20 steps" in found[3]["sentence"]
    assert "4 and 8 ranks" in found[4]["sentence"]
    lines = [line for line in run("compare", *names).stdout.splitlines() if line.startswith("PACE")]
    assert len(lines) == 4
    assert lines[0].startswith("PACE  alps-2: This run is slower: ")
    assert "confidence 0.9" in lines[0]
    assert "No difference beyond" in lines[1]


def test_earlier_runs_of_the_same_script_are_chosen_and_the_choice_can_be_changed(
    run: Callable[..., Result], runs: Path
) -> None:
    def earlier(number: int, seconds: float, *, lr: str = "1e-4", image: str = "a") -> Path:
        command = ["torchrun", "--nproc-per-node=4", "train.py", "--lr", lr, f"--out-dir=/x/{number}"]
        started = f"2026-01-{number:02}T00:00:00+00:00"
        folder = make(runs, number, command=command, started=started, image={"digest": f"sha256:{image}"})
        log_steps(folder, seconds, seed=number)
        return folder

    for number in range(1, 7):
        earlier(number, 1.0 + number / 500)
    earlier(7, 2.0, lr="3e-4")
    earlier(8, 2.0, image="b")
    make(runs, 9, command=["python", "other.py"])
    now = earlier(10, 1.15)
    earlier(11, 3.0)
    found = earlier_runs(now)
    assert (found.verdict, found.automatic) == ("slower", True)
    assert [each.name for each in found.runs if each.chosen] == [f"alps-{n}" for n in range(6, 0, -1)]
    reasons = {each.name: each.reason for each in found.runs if not each.chosen}
    assert reasons == {"alps-8": "another image", "alps-7": "other arguments"}
    assert found.confidence > 0.95
    assert found.least is not None
    assert found.share is not None
    assert found.least < found.share
    assert found.resolution is not None
    changed = earlier_runs(now, ["alps-8", "alps-9"])
    assert (changed.verdict, changed.automatic) == ("faster", False)
    assert [each.name for each in changed.runs if each.chosen] == ["alps-8", "alps-9"]
    assert "First baseline" in earlier_runs(runs / "alps-1").sentence
    text = run("compare", "alps-10").stdout
    assert text.startswith("This run is slower: ")
    assert "confidence 0.9" in text
    assert "alps-8  left out: another image" in text
    assert json.loads(run("compare", "alps-10", "--json").stdout)["verdict"] == "slower"
    titles = [each["title"] for each in JobVerdicts().document(now, JobQuery())["verdicts"]]
    assert "This run is slower than earlier runs of the same script, size and image" in titles


def test_a_configuration_is_compared_to_a_bounded_depth() -> None:
    deep: dict[str, Any] = {"value": 1}
    other: dict[str, Any] = {"value": 2}
    for _ in range(50):
        deep, other = {"in": deep}, {"in": other}
    (row,) = configuration_difference([deep, other])
    assert row.key == ".".join(["in"] * 8)
    assert configuration_difference([{"a": None, "b": [1]}, {"b": [1]}]) == ()
    (row,) = configuration_difference([{"a": "x" * 1000}, {}])
    assert row.values == ("x" * 500, None)
