"""``gipfel compare``: a slower run is told with its confidence, an equal one with what could not be seen."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from diagnosis_steps import work

from gipfel_extension.cli import main


@pytest.fixture
def gipfel(tmp_path, monkeypatch, capsys):
    """Runs the command in this process; gives its exit status and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def call(*words: str) -> tuple[int, str, str]:
        status = main(["compare", *words])
        written = capsys.readouterr()
        return status, written.out, written.err

    return call


def write(name: str, factor: float, *, ranks: int = 4, steps: int = 80, seed: int = 1) -> str:
    seconds = work(ranks, steps, seed=seed) * factor
    rows = [
        json.dumps({"rank": rank, "step": step, "step_s": float(seconds[:, step].max()), "work_s": value})
        for rank, step in np.ndindex(seconds.shape)
        for value in [float(seconds[rank, step])]
    ]
    Path(name).write_text("\n".join(rows))
    return name


def test_a_slower_run_is_told_with_its_confidence(gipfel):
    status, out, _ = gipfel(write("a", 1.0), write("b", 1.12, seed=2), "--json")
    document = json.loads(out)
    assert (status, document["first"], document["second"]) == (0, "a", "b")
    found = document["steps"]
    assert (found["verdict"], found["share"]) == ("slower", pytest.approx(0.12, abs=0.03))
    assert found["least"] < found["share"] < found["most"]
    assert found["confidence"] > 0.95
    status, out, _ = gipfel("a", "b")
    assert status == 0
    assert out.startswith("This run is slower")


def test_equal_runs_say_what_could_not_be_seen(gipfel):
    status, out, _ = gipfel(write("a", 1.0), write("b", 1.01, seed=2), "--json")
    found = json.loads(out)["steps"]
    assert (status, found["verdict"], found["confidence"]) == (0, "same", 0.0)
    assert 0.05 <= found["resolution"] < 0.08


def test_earlier_runs_that_differ_make_a_difference_unsure(gipfel):
    others = [
        write(f"e{number}", factor, seed=number) for number, factor in enumerate((0.88, 0.95, 1.08, 1.12))
    ]
    words = [word for name in others for word in ("--earlier", name)]
    found = json.loads(gipfel(write("a", 1.0), write("b", 1.1, seed=9), *words, "--json")[1])["steps"]
    assert found["verdict"] == "same"
    assert "5 earlier runs" in found["sentence"]


def test_what_cannot_be_compared_is_one_line(gipfel, tmp_path):
    write("a", 1.0)
    for other, status, reason in (
        (write("short", 1.0, steps=12), 1, ""),
        ("missing", 2, "can't be read"),
        (str(tmp_path), 2, "has no steps"),
    ):
        found = gipfel("a", other, "--json")
        assert found[0] == status
        assert reason in found[2]
    assert "4 and 8 ranks" in gipfel("a", write("large", 1.0, ranks=8))[2]
