"""Probes of GPUs: whether there are any, and by what they are measured."""

import json
from collections import Counter
from collections.abc import Callable

from pydantic import ValidationError

from gipfel_cluster.model import Frozen

from .examine import Finding, Subject
from .job import record_of
from .machine import Machine

NVML = Subject(name="NVIDIA (NVML)", group="GPUs")
PROFILING = Subject(name="SM and tensor activity", group="GPUs")
AMD = Subject(name="AMD", group="GPUs")

_NONE = "There is no NVIDIA GPU here; the panel offers a simulated source."


class _Opened(Frozen):
    """Output of `gpu_sources`."""

    name: str = ""
    gpus: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""


def nvml(machine: Machine) -> Finding:
    """Count the GPUs that NVIDIA's driver shows this process."""
    if not _has_nvidia(machine):
        asked = _asked_gpus(machine)
        if asked and not machine.path("/dev/kfd").exists():
            return NVML.missing(
                f"This job asked for {asked} GPU{'' if asked == 1 else 's'}, and no driver shows one here.",
                "Start it again on a node with GPUs; there, nvidia-smi lists them.",
            )
        return NVML.not_applicable(_NONE)
    if machine.environment.get("CUDA_VISIBLE_DEVICES") == "":
        return NVML.not_applicable(
            "This job was given no GPU (CUDA_VISIBLE_DEVICES is empty).", "Ask for one when you start it."
        )
    opened = _open(machine, "nvml")
    if opened.problem:
        return NVML.missing(opened.problem, _driver_fix(opened))
    models = Counter(opened.gpus)
    return NVML.ok(", ".join(f"{count} x {model}" for model, count in models.items()) + ".")


def _asked_gpus(machine: Machine) -> int:
    options = record_of(machine).get("options")
    asked = options.get("gpus") if isinstance(options, dict) else None
    return asked if isinstance(asked, int) else 0


def profiling(machine: Machine) -> Finding:
    """Look for what measures more than utilization: GPM in NVML, else DCGM."""
    if not _has_nvidia(machine) or machine.environment.get("CUDA_VISIBLE_DEVICES") == "":
        return PROFILING.not_applicable("There is no NVIDIA GPU to measure.")
    opened = _open(machine, "nvml")
    if opened.problem:
        return PROFILING.not_applicable("NVML can't be opened.")
    if "gpm" in opened.name:
        return PROFILING.ok("By GPM, of NVML itself.")
    dcgm = _open(machine, "dcgm")
    if not dcgm.problem:
        return PROFILING.ok("By DCGM, which runs here.")
    return PROFILING.warning(
        f"These GPUs have no GPM (it came with Hopper), and DCGM: {dcgm.problem} Utilization only.",
        "sudo apt install datacenter-gpu-manager && sudo systemctl enable --now nvidia-dcgm",
    )


def amd(machine: Machine) -> Finding:
    """Count the GPUs that AMD's driver shows this process."""
    if not machine.path("/dev/kfd").exists():
        return AMD.not_applicable("There is no AMD GPU here.")
    opened = _open(machine, "amdsmi")
    if opened.problem:
        refuse: Callable[[str, str], Finding] = AMD.warning
        return refuse(opened.problem, opened.fix or "pip install amdsmi  # the version of your ROCm")
    return AMD.ok(", ".join(f"{n} x {model}" for model, n in Counter(opened.gpus).items()) + ".")


def _has_nvidia(machine: Machine) -> bool:
    nodes = machine.path("/dev")
    # Of Windows' subsystem for Linux, which has no node for each GPU.
    return any(nodes.glob("nvidia[0-9]*")) or (nodes / "dxg").exists()


def _driver_fix(opened: _Opened) -> str:
    if "mismatch" in opened.problem.lower():
        return "Reboot, or sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia: it was updated"
    if "shared library not found" in opened.problem.lower():
        return "sudo apt install libnvidia-ml1  # in a container: NVIDIA_DRIVER_CAPABILITIES=all"
    return opened.fix or "nvidia-smi"


def _open(machine: Machine, source: str) -> _Opened:
    answer = machine.run((machine.python, "-m", "gipfel_extension.doctor.gpu_sources", source))
    if not answer.ok:
        return _Opened(problem=f"The source {source} can't be opened: {answer.why}.")
    try:
        return _Opened.model_validate(json.loads(answer.output.strip().splitlines()[-1]))
    except (ValueError, IndexError, ValidationError):
        return _Opened(problem=f"The source {source} gave an answer that can't be read.")
