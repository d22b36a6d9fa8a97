"""A fake ``libnvidia-ml.so.1``: many GPUs with GPM, whose calls take no time.

What is measured on it is the cost of our own code, never that of a GPU's driver: a row says so in its name.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

#: Name of the source in a bench row.
NAME = "NVML stand-in, calls take no time"

_HERE = Path(__file__).parent


def build(folder: Path) -> Path:
    """Compile the library into a folder; its path."""
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-w", "-o", str(library), str(_HERE / "nvml.c")]
    subprocess.run(command, check=True, timeout=120)
    return library


def environment(library: Path, *, gpus: int = 16, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that finds the library in place of the driver's, and sees all its GPUs."""
    path = os.pathsep.join(filter(None, (str(library.parent), own.get("LD_LIBRARY_PATH", ""))))
    hidden = {"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"}
    kept = {name: value for name, value in own.items() if name not in hidden}
    return {**kept, "LD_LIBRARY_PATH": path, "NVML_STAND_IN_GPUS": str(gpus)}
