"""Why there is no GPU in a job that asked for some."""

import pytest

from gipfel_extension.server.runs import missing_gpus
from gipfel_extension.telemetry.sample import Device

HOST = Device("host:vm", "host", "vm", None, node="vm")
REAL = Device("GPU-1", "gpu", "NVIDIA H100", 0, node="vm")
MADE_UP = Device("GPU-2", "gpu", "simulated GPU", 0, node="vm", simulated=True)


def test_gpus_that_were_asked_for_and_are_not_there_have_a_reason(tmp_path):
    asked = {"options": {"gpus": 1}}
    said = missing_gpus(asked, (HOST, MADE_UP), "vm", tmp_path)
    assert said == (
        "You asked for 1 GPU and got none, because vm has none, or gave this job none. "
        "Start it again on a node with GPUs."
    )
    (tmp_path / "nvidia0").touch()
    said = missing_gpus({"options": {"gpus": 4}}, (HOST,), "vm", tmp_path)
    assert said.startswith(
        "You asked for 4 GPUs and got none, because vm has GPUs whose driver does not answer"
    )


@pytest.mark.parametrize(
    "record", [{}, {"options": None}, {"options": {"gpus": 0}}, {"options": {"gpus": "1"}}]
)
def test_who_asked_for_none_is_told_nothing(record, tmp_path):
    assert missing_gpus(record, (HOST,), "vm", tmp_path) == ""
    assert missing_gpus({"options": {"gpus": 1}}, (HOST, REAL), "vm", tmp_path) == ""
