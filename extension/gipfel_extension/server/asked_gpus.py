"""Why a job that asked for GPUs shows none."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..telemetry.sample import Device

_DRIVERS = ("nvidia[0-9]*", "kfd")


def missing_gpus(
    record: Mapping[str, Any], devices: Iterable[Device], node: str, dev: Path = Path("/dev")
) -> str:
    """Return a sentence where GPUs were asked for and none is here, else nothing.

    Parameters
    ----------
    record
        The run's ``record.json``; its options hold the GPUs per node.
    devices
        What is recorded; simulated GPUs don't count.
    """
    options = record.get("options")
    asked = options.get("gpus") if isinstance(options, dict) else None
    here = any(device.kind == "gpu" and not device.simulated for device in devices)
    if not isinstance(asked, int) or asked < 1 or here:
        return ""
    there = any(any(dev.glob(pattern)) for pattern in _DRIVERS)
    reason = (
        f"{node} has GPUs whose driver does not answer in this environment. Run nvidia-smi in a terminal."
        if there
        else f"{node} has none, or gave this job none. Start it again on a node with GPUs."
    )
    return f"You asked for {asked} GPU{'' if asked == 1 else 's'} and got none, because {reason}"
