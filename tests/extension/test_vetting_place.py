"""Location of a vetting run, by Slurm's variables, and the notation of node lists."""

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.notation import expand_hostlist, fold_hostlist
from gipfel_extension.vetting.run.location import Location, LocationKind

_STEP = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_JOB_NODELIST": "n[1-9]", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n3",
}  # fmt: skip


def test_a_place_is_told_by_slurms_variables() -> None:
    place = Location.of(_STEP)
    assert (place.kind, place.node, place.rank, place.redundant) == (LocationKind.STEP, "n3", 2, False)
    assert place.nodes == ("n1", "n2", "n3", "n4")
    assert Location.of(_STEP | {"SLURM_LOCALID": "1"}).redundant
    # A batch script's step has a special number; a notebook's container is a step of one task.
    batch = Location.of(_STEP | {"SLURM_STEP_ID": "4294967291"})
    notebook = Location.of(_STEP | {"SLURM_STEP_NUM_TASKS": "1", "GIPFEL_RUN": "/runs/x"})
    assert {(each.kind, each.nodes) for each in (batch, notebook)} == {
        (LocationKind.ALLOCATION, tuple(f"n{number}" for number in range(1, 10)))
    }
    assert Location.of({}).kind is LocationKind.MACHINE
    with pytest.raises(GipfelError, match="can't be parsed"):
        Location.of(_STEP | {"SLURM_STEP_NODELIST": "n[1-"})


@pytest.mark.parametrize(
    "text", ["n[001-003,007]", "a,b,c1", "n[8-12]", "x[1-3]-y[1-2]", "n007,n7", "", "n1"]
)
def test_a_folded_hostlist_names_the_same_nodes(text: str) -> None:
    nodes = expand_hostlist(text)
    assert set(expand_hostlist(fold_hostlist(nodes))) == set(nodes)
    assert fold_hostlist([*nodes, *reversed(nodes)]) == fold_hostlist(nodes)


def test_a_list_of_nodes_that_is_shorter_than_the_job_is_no_place() -> None:
    """A node that is missing in the list would not be vetted, without a message."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURMD_NODENAME": "n1"}
    job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    for broken in (
        step,
        step | {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_NODES": "3"},
        job | {"SLURM_JOB_NUM_NODES": "2"},
        job | {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "4"},
    ):
        with pytest.raises(GipfelError, match="would not be vetted"):
            Location.of(broken)
    assert Location.of(step | {"SLURM_STEP_NODELIST": "n1"}).nodes == ("n1",)
    assert Location.of(job | {"SLURM_JOB_NUM_NODES": "1"}).nodes == ("n1",)
    assert Location.of({"SLURM_JOB_NUM_NODES": "4", "SLURMD_NODENAME": "n1"}).nodes == ("n1",)
    for odd in ("a|b", "<b>", "n1\nn2", "-n", "n" * 300):
        with pytest.raises(GipfelError, match="is not a valid node name"):
            Location.of({"GIPFEL_NODE": odd})
