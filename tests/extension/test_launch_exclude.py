"""Nodes that a launch in a job around it leaves out."""

import pytest

from gipfel_cluster.steps import StepSetting
from gipfel_extension.training.launches.plan import LaunchPlan
from gipfel_extension.training.launches.vetted import vetted_nodes
from gipfel_extension.training.spec import LaunchSpec


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
    setting = StepSetting.model_construct(nodes=("n1", "n2", "n3", "n10"))
    assert vetted_nodes(plan, setting, {}, lambda: False) == left
