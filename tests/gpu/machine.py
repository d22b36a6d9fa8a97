"""Helpers of the GPU tests: detection of a GPU, a recorder process, and work for the GPU."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

EXTENSION = Path(__file__).resolve().parents[2] / "extension"


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """A test that this GPU or this user can't run; says why."""


def missing() -> str:
    """Return why the tests can't run here; empty where they can."""
    try:
        import pynvml  # noqa: PLC0415 - may be missing

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception as error:
        return f"no NVIDIA GPU: {error}"
    return "" if count else "no NVIDIA GPU"


def driver_version() -> str:
    """The version of NVIDIA's driver."""
    import pynvml  # noqa: PLC0415 - may be missing

    pynvml.nvmlInit()
    version = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)


def environment() -> dict[str, str]:
    """This process's environment with our packages on the path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXTENSION), *filter(None, sys.path)])}


@contextlib.contextmanager
def recorder(
    folder: Path, *, interval: float, sources: tuple[str, ...] = ("nvml",), root_pid: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder that writes into the folder, ended by SIGTERM at the end."""
    command = [sys.executable, "-m", "gipfel_extension.recorder", "--telemetry", str(folder)]
    command += ["--node", "gpu-node", "--interval", str(interval), "--flush", "0.5"]
    command += [word for source in sources for word in ("--source", source)]
    command += ["--root-pid", str(root_pid)] if root_pid is not None else []
    process = subprocess.Popen(command, env=environment())
    try:
        # Its imports must not count as sampling.
        deadline = time.monotonic() + 60
        while not list(folder.glob("*.arrows")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def torch():
    """The torch module with CUDA, or Skipped."""
    try:
        import torch as module  # noqa: PLC0415 - may be missing
    except ImportError as error:
        raise Skipped("torch is not installed") from error
    if not module.cuda.is_available():
        raise Skipped("torch sees no GPU")
    return module


def multiply(seconds: float, size: int = 8192) -> int:
    """Matrix products in bf16, back to back; how many were finished."""
    module = torch()
    left = module.randn(size, size, device="cuda", dtype=module.bfloat16)
    right = module.randn(size, size, device="cuda", dtype=module.bfloat16)
    result = left @ right
    module.cuda.synchronize()
    done, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        for _ in range(10):
            module.mm(left, right, out=result)
        module.cuda.synchronize()
        done += 10
    return done


def copy(seconds: float) -> None:
    """Copies within the GPU's memory, 2 GiB each."""
    module = torch()
    source = module.empty(2**31, dtype=module.uint8, device="cuda")
    target = module.empty_like(source)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for _ in range(20):
            target.copy_(source)
        module.cuda.synchronize()


def tiny_kernels(seconds: float) -> None:
    """Kernels on 32 numbers, one after the other: launching takes longer than running."""
    module = torch()
    values = module.zeros(32, device="cuda")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for _ in range(2000):
            values.add_(1)
        module.cuda.synchronize()
