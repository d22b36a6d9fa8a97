"""Detection of a job's GPUs: by variables, and by the devices that its control group can open."""

import pytest

from gipfel_extension.telemetry.sources.job_gpus import job_gpus

_FOUR = {f"GPU-{number}": number for number in range(4)}


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({}, "0123"),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "20"),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_STEP_GPUS": "0,1"}, ""),
        ({"SLURM_STEP_GPUS": "1,3", "SLURM_JOB_GPUS": "0-3"}, "13"),
        ({"SLURM_JOB_GPUS": "1-2"}, "12"),
        ({"SLURM_JOB_GPUS": "7"}, ""),
        ({"SLURM_JOB_GPUS": "nonsense"}, "0123"),
    ],
)
def test_the_jobs_gpus_by_variables(environment: dict[str, str], own: str) -> None:
    assert job_gpus(_FOUR, environment) == tuple(f"GPU-{number}" for number in own)


def test_gpus_that_the_cgroup_forbids_are_not_the_jobs() -> None:
    can_open = {0: False, 1: True, 2: False, 3: True}.__getitem__
    assert job_gpus(_FOUR, {}, can_open=can_open) == ("GPU-1", "GPU-3")
    # Inside a constrained job CUDA counts what is left.
    assert job_gpus(_FOUR, {"CUDA_VISIBLE_DEVICES": "1"}, can_open=can_open) == ("GPU-3",)
    # Renumbered devices: Slurm's numbers are the node's, and the group has said enough.
    renumbered = {"GPU-a": 0, "GPU-b": 1}
    assert job_gpus(renumbered, {"SLURM_JOB_GPUS": "6,7"}) == ("GPU-a", "GPU-b")
