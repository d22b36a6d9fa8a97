"""``gipfel diagnose``: the contract of its document, runs and files, and one line for what can't be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from diagnosis_steps import START_NS, work

from gipfel_extension.cli import main
from gipfel_extension.diagnosis.steps import read_step_file

KEYS = {"kind", "ranks", "stage", "unit", "evidence", "since", "confidence"}


@pytest.fixture
def gipfel(tmp_path, monkeypatch, capsys):
    """Runs the command in this process; gives its exit status and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIPFEL_RUNS", str(tmp_path / "runs"))

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["diagnose", *words])
        written = capsys.readouterr()
        return status, written.out, written.err

    return call


def lines(seconds: np.ndarray) -> list[str]:
    whole = seconds.max(axis=0) * 1.05
    times = START_NS + (np.cumsum(whole) * 1e9).astype(np.int64)
    return [
        json.dumps(
            {"rank": rank, "step": step, "time_ns": int(times[step]), "step_s": whole[step], "work_s": value}
        )
        for step in range(seconds.shape[1])
        for rank, value in enumerate(seconds[:, step].tolist())
    ]


def slow() -> np.ndarray:
    seconds = work(8, 80)
    seconds[3, 40:] *= 1.3
    return seconds


def write_roles(ranks: int = 8, **places: str) -> str:
    Path("roles.json").write_text(json.dumps({str(rank): {"dp": rank, **places} for rank in range(ranks)}))
    return "roles.json"


def test_a_file_with_roles_gives_the_contracts_document(gipfel, tmp_path):
    Path("steps.jsonl").write_text("\n".join(lines(slow())))
    status, out, err = gipfel("steps.jsonl", "--roles", write_roles(), "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert all(set(verdict) == KEYS for verdict in document["verdicts"])
    found = document["verdicts"][0]
    assert (found["kind"], found["ranks"], found["stage"]) == ("slow_rank", [3], None)
    assert START_NS < found["since"] < START_NS + 200 * 10**9
    assert 0.9 <= found["confidence"] <= 1
    status, out, _ = gipfel("steps.jsonl", "--roles", "roles.json")
    assert status == 0
    assert out.startswith("slow rank, since 2027-")
    assert "Rank 3 works" in out


def test_a_healthy_job_has_no_verdicts(gipfel):
    Path("steps.jsonl").write_text("\n".join(lines(work(8, 80))))
    status, out, _ = gipfel("steps.jsonl", "--roles", write_roles())
    assert status == 0
    assert out.splitlines()[0] == "Nothing stands out."
    assert "What these steps can't show" in out


def test_a_run_takes_what_its_ranks_logged_and_its_own_roles(gipfel, tmp_path):
    run = tmp_path / "runs" / "alps-1"
    (run / "telemetry").mkdir(parents=True)
    logged = []
    for line in lines(slow()):
        row = json.loads(line)
        values = {name: row[name] for name in ("step", "step_s", "work_s")}
        about = {"time_ns": row["time_ns"] + row["rank"], "monotonic_ns": row["time_ns"], "node": "n1"}
        logged.append(json.dumps({**about, "rank": row["rank"], "values": values}))
    (run / "metrics.jsonl").write_text("\n".join([*logged, "torn"]) + "\n")
    places = [
        {"rank": r, "node": f"n{r // 4}", "pid": r, "gpu_uuid": f"GPU-{r}", "name": "p"} for r in range(8)
    ]
    (run / "telemetry" / "n1-job.ranks.json").write_text(json.dumps(places))
    status, out, err = gipfel("alps-1", "--json")
    assert status == 0
    assert "1 line of metrics.jsonl" in err
    assert json.loads(out)["verdicts"][0]["unit"] is None
    (run / "roles.json").write_text(json.dumps({str(rank): {"dp": rank} for rank in range(8)}))
    document = json.loads(gipfel("alps-1", "--json")[1])
    assert document["verdicts"][0]["unit"] == "gpu GPU-3"
    (run / "roles.json").write_text(json.dumps({"0": {"dp": 0}}))
    status, out, err = gipfel("alps-1", "--json")
    assert status == 0
    assert "does not fit" in err
    assert "unknown" in json.loads(out)["verdicts"][0]["evidence"]
    places[1]["gpu_uuid"] = "GPU-0"
    (run / "telemetry" / "n1-job.ranks.json").write_text(json.dumps(places))
    assert "Ranks 0-1 use one GPU, GPU-0" in gipfel("alps-1")[2]


def test_ranks_of_the_roles_without_a_step_are_named(gipfel):
    Path("steps.jsonl").write_text("\n".join(lines(work(8, 40))))
    status, _, err = gipfel("steps.jsonl", "--roles", write_roles(10))
    assert (status, err) == (0, "gipfel: 2 ranks of the roles have no step: 8, 9.\n")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 << 30)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_pipe, "not a regular file"),
        (_sparse, "larger than 2 GiB"),
        (lambda path: path.write_text(""), "no step"),
        (lambda path: path.write_text("garbage\n[1]\n{}\n" + '{"rank": true, "step": 1}\n'), "no step"),
        (lambda path: path.write_text("[" * 500_000), "no step"),
        (lambda path: path.mkdir(), "not a run folder"),
        (
            lambda path: path.write_text(
                "\n".join(json.dumps({"rank": i, "step": i, "work_s": 1.0}) for i in range(3000))
            ),
            "not one job's steps",
        ),
    ],
)
def test_what_cannot_be_read_is_one_line(gipfel, make, reason):
    make(Path("hostile"))
    status, out, err = gipfel("hostile", "--json")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert reason in err


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"0": {"dp": 0}}', "does not fit"),
        ('{"0": {"gpu": "G"}, "1": {"gpu": "G"}}', "claim one GPU"),
        ('{"0": {"dp": 0}, "0": {"dp": 1}}', "there twice"),
        ('{"0": {"dp": "<b>"}}', "'dp'"),
        ("[" * 100_000, "not a table of roles"),
        ("\x00", "not a table of roles"),
    ],
)
def test_roles_that_do_not_fit_are_one_line(gipfel, content, reason):
    Path("steps.jsonl").write_text("\n".join(lines(work(8, 40))))
    Path("roles.json").write_text(content)
    status, out, err = gipfel("steps.jsonl", "--roles", "roles.json", "--json")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert reason in err


def test_broken_lines_are_counted_and_left_out(gipfel):
    sound = lines(slow())
    broken = ['{"rank": 1, "step":', '{"rank": 1, "step": 2, "work_s": "x"}', "[[", '{"rank": -1, "step": 0}']
    Path("steps.jsonl").write_text("\n".join([*sound[:300], *broken, *sound[300:]]) + '\n{"rank": 0')
    status, out, err = gipfel("steps.jsonl", "--roles", write_roles(), "--json")
    assert status == 0
    assert err.startswith(
        "gipfel: 5 lines of steps.jsonl could not be read and are left out; the first is line 301"
    )
    assert json.loads(out)["verdicts"][0]["ranks"] == [3]


def test_lines_read_together_and_one_by_one_are_the_same(tmp_path):
    sound, path = lines(work(4, 60)), tmp_path / "steps.jsonl"
    path.write_text("\n".join(sound))
    together, _ = read_step_file(path)
    # A bracket anywhere and each line is checked by itself.
    path.write_text("\n".join([*sound, "[]"]))
    each, notes = read_step_file(path)
    assert notes
    for name in ("ranks", "steps", "time_ns", "step_s", "work_s"):
        assert np.array_equal(getattr(together, name), getattr(each, name))


def test_of_a_step_that_was_repeated_after_a_restart_the_last_counts(tmp_path):
    path = tmp_path / "steps.jsonl"
    rows = [(0, 5, 100, 9.0), (0, 5, 200, 1.0), (1, 5, 150, 2.0)]
    keys = ("rank", "step", "time_ns", "work_s")
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    table, _ = read_step_file(path)
    assert table.work_s.tolist() == [[1.0], [2.0]]


_LOOP = """
import os, random
from gipfel_widgets.log import log

random.seed(1)
for step in range(40):
    for rank in range(4):
        os.environ["RANK"] = str(rank)
        work = random.gauss(1.0, 0.01) * (1.5 if rank == 2 else 1.0)
        log(step=step, step_s=1.55, work_s=work, loss=0.1)
"""


def test_what_a_training_loop_logs_is_diagnosed(gipfel, tmp_path):
    run = tmp_path / "runs" / "local-1"
    (run / "telemetry").mkdir(parents=True)
    environment = {**os.environ, "GIPFEL_RUN": str(run)}
    subprocess.run([sys.executable, "-c", _LOOP], env=environment, check=True, timeout=60)
    status, out, _ = gipfel("local-1", "--roles", write_roles(4), "--json")
    assert status == 0
    (found,) = json.loads(out)["verdicts"]
    assert (found["kind"], found["ranks"]) == ("slow_rank", [2])
