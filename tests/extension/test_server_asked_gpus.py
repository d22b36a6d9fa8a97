"""Reason why a job that requested GPUs has none."""

import pytest

from gipfel_extension.server.runs import missing_gpus
from gipfel_extension.telemetry.sample import Device

HOST = Device("host:vm", "host", "vm", None, node="vm")
REAL = Device("GPU-1", "gpu", "NVIDIA H100", 0, node="vm")
SIMULATED = Device("GPU-2", "gpu", "simulated GPU", 0, node="vm", simulated=True)


def test_missing_gpus_are_reported_with_a_reason(tmp_path):
    requested = {"options": {"gpus": 1}}
    message = missing_gpus(requested, (HOST, SIMULATED), "vm", tmp_path)
    assert message == (
        "You requested 1 GPU, but this server has none: vm has no GPUs, or the job was not given any. "
        "Start the server on a node with GPUs."
    )
    (tmp_path / "nvidia0").touch()
    message = missing_gpus({"options": {"gpus": 4}}, (HOST,), "vm", tmp_path)
    assert message.startswith(
        "You requested 4 GPUs, but this server has none: vm has GPUs, but their driver does not respond"
    )


@pytest.mark.parametrize(
    "record", [{}, {"options": None}, {"options": {"gpus": 0}}, {"options": {"gpus": "1"}}]
)
def test_nothing_is_reported_without_a_request_for_gpus(record, tmp_path):
    assert missing_gpus(record, (HOST,), "vm", tmp_path) == ""
    assert missing_gpus({"options": {"gpus": 1}}, (HOST, REAL), "vm", tmp_path) == ""
