"""Probes of GPUs and of the libraries that read their metrics.

``python -m gipfel_extension.doctor.gpus SOURCE`` opens one source of GPU samples and prints one JSON
document. It runs as a separate process because a driver may hang or crash.
"""

import json
import sys
from collections import Counter

from pydantic import ValidationError

from gipfel_cluster.model import Frozen
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import open_source

from .cluster import read_record
from .examine import Finding, Machine, fix_of, missing, not_applicable, ok, warning

_NONE = "There is no NVIDIA GPU here. The saturation panel can show simulated GPUs."


#: Words in NVML's error messages, and what to do about them.
_DRIVER_FIXES = (
    (
        ("mismatch",),
        (
            "sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia"
            "  # or reboot: the driver was updated while it was loaded"
        ),
    ),
    (
        ("shared library not found",),
        "sudo apt install libnvidia-ml1  # in a container: NVIDIA_DRIVER_CAPABILITIES=all",
    ),
)


class _Opened(Frozen):
    """Output of the process that opens a source."""

    name: str = ""
    gpus: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


def nvml(machine: Machine) -> Finding:
    """Count the NVIDIA GPUs that are visible to this process."""
    if not _has_nvidia(machine):
        requested = _requested_gpus(machine)
        if requested and not machine.path("/dev/kfd").exists():
            return missing(
                f"This job requested {requested} GPU{'' if requested == 1 else 's'}, but no GPU is visible.",
                "Start it again on a node with GPUs, where nvidia-smi lists them.",
            )
        return not_applicable(_NONE)
    if machine.environment.get("CUDA_VISIBLE_DEVICES") == "":
        return not_applicable(
            "This server was started without a GPU (CUDA_VISIBLE_DEVICES is empty).",
            "Request one in the spawn form.",
        )
    opened = _open(machine, "nvml")
    if opened.problem:
        return missing(opened.problem, fix_of(opened.problem, _DRIVER_FIXES, opened.fix or "nvidia-smi"))
    models = Counter(opened.gpus)
    return ok(", ".join(f"{count} x {model}" for model, count in models.items()) + ".")


def _requested_gpus(machine: Machine) -> int:
    options = read_record(machine).get("options")
    count = options.get("gpus") if isinstance(options, dict) else None
    return count if isinstance(count, int) else 0


def profiling(machine: Machine) -> Finding:
    """Check for profiling metrics, by NVML's GPM or by DCGM."""
    if not _has_nvidia(machine) or machine.environment.get("CUDA_VISIBLE_DEVICES") == "":
        return not_applicable("There is no NVIDIA GPU to measure.")
    opened = _open(machine, "nvml")
    if opened.problem:
        return not_applicable("NVML can't be opened.")
    if "gpm" in opened.name:
        return ok("Measured by GPM, a part of NVML.")
    dcgm = _open(machine, "dcgm")
    if not dcgm.problem:
        return ok("Measured by DCGM, which is running here.")
    return warning(
        f"Only utilization can be measured: these GPUs have no GPM (it needs Hopper). DCGM: {dcgm.problem}",
        "sudo apt install datacenter-gpu-manager && sudo systemctl enable --now nvidia-dcgm",
    )


def amd(machine: Machine) -> Finding:
    """Count the AMD GPUs that are visible to this process."""
    if not machine.path("/dev/kfd").exists():
        return not_applicable("There is no AMD GPU here.")
    opened = _open(machine, "amdsmi")
    if opened.problem:
        return warning(opened.problem, opened.fix or "pip install amdsmi  # the version of your ROCm")
    return ok(", ".join(f"{n} x {model}" for model, n in Counter(opened.gpus).items()) + ".")


def _has_nvidia(machine: Machine) -> bool:
    nodes = machine.path("/dev")
    # /dev/dxg is the single GPU device of Windows Subsystem for Linux.
    return any(nodes.glob("nvidia[0-9]*")) or (nodes / "dxg").exists()


def _open(machine: Machine, source: str) -> _Opened:
    answer = machine.run((machine.python, "-m", "gipfel_extension.doctor.gpus", source))
    if not answer.ok:
        return _Opened(problem=f"The source {source} can't be opened: {answer.error}.")
    try:
        return _Opened.model_validate(json.loads(answer.output.strip().splitlines()[-1]))
    except (ValueError, IndexError, ValidationError):
        return _Opened(problem=f"The output of the source {source} is not valid.")


def main(name: str) -> int:
    """Print the source's full name and its GPUs, or the error."""
    try:
        source = open_source(name)
        answer: dict[str, object] = {
            "name": source.name,
            "gpus": [each.name for each in source.devices if each.kind == "gpu"],
        }
        source.close()
    except SourceError as error:
        answer = {"problem": error.problem, "fix": error.fix}
    print(json.dumps(answer))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
