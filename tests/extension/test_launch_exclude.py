"""Nodes of the job that a launch excludes."""

import json
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.steps import StepJob
from gipfel_extension.training.launches import allocation
from gipfel_extension.training.launches.allocation import vetted_nodes
from gipfel_extension.training.record.spec import LaunchPlan, LaunchSpec


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("", ("n1", "n2", "n3", "n10")),
        ("n[2-3]", ("n1", "n10")),
        ("n10,other", ("n1", "n2", "n3")),
        ("n[1-3,10]", ()),
    ],
)
def test_excluded_nodes_are_not_used(exclude: str, left: tuple[str, ...]) -> None:
    spec = LaunchSpec(target="train.py", nodes=1, exclude=exclude)
    plan = LaunchPlan(spec=spec, folder="/f", host_folder="/f", target="/train.py", directory="/")
    setting = StepJob.model_construct(nodes=("n1", "n2", "n3", "n10"))
    assert vetted_nodes(plan, setting, {}, lambda: False) == left


@pytest.mark.parametrize(
    ("exclude", "told"),
    [("n2", "Exclude the bad nodes with --exclude"), ("", "excluding nodes does not help")],
)
def test_only_nodes_that_are_at_fault_themselves_are_to_be_left_out(
    exclude: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"outcome": "0 of 2 nodes are vetted.", "exclude": exclude, "nodes": []}

    def run(_argv: list[str], _environment: object, folder: Path, _stopped: object) -> int:
        (folder / allocation.VETTING_REPORT).write_text(json.dumps(report))
        return 1

    monkeypatch.setattr(allocation, "_run", run)
    spec = LaunchSpec(target="train.py", nodes=2, vetting="quick")
    plan = LaunchPlan(
        spec=spec, folder=str(tmp_path), host_folder=str(tmp_path), target="/train.py", directory="/"
    )
    setting = StepJob.model_construct(nodes=("n1", "n2"), edf="", run="")
    with pytest.raises(GipfelError, match=told):
        vetted_nodes(plan, setting, {}, lambda: False)
