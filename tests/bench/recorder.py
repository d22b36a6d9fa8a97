"""Cost of recording for a node: CPU of the recorder per GPU, at a sample per second, at ten, and by default.

Prints rows as JSON; the ratio is ours over a limit that its name says. On a machine with GPUs their driver is
measured, else the NVML stand-in, whose calls take no time: then a row is our own code alone, and says so.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nvml_stand_in

_SECONDS = 20.0
_READY_S = 60.0
#: Interval, None by default, to share of one core for each GPU. Where GPUs count so fast, as the stand-in's,
#: the default is ten samples a second, of which one is streamed.
_BOUNDS = {1.0: 0.001, 0.1: 0.01, None: 0.01}


def main() -> int:
    """Measure; 1 where a bound does not hold."""
    holds = True
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        environment, gpus, source = _driver(folder)
        for interval, bound in _BOUNDS.items():
            ours = _recorder(folder / f"t{interval}", interval, environment) / gpus
            pace = f"{1 / interval:g} Hz" if interval else "by default"
            row = {
                "name": f"recorder {pace} of {bound:.1%} of a core per GPU ({source})",
                "ours": ours,
                "peer": bound,
                "unit": "core",
                "ratio": ours / bound,
                "bound": 1.0,
                "holds": ours <= bound,
                "gpus": gpus,
                "source": source,
            }
            print(json.dumps(row), flush=True)
            holds &= bool(row["holds"])
    return 0 if holds else 1


def _driver(folder: Path) -> tuple[dict[str, str], int, str]:
    """Environment, number of GPUs and name of what is measured."""
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount(), n.nvmlSystemGetDriverVersion())"
    own = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    asked = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=False)
    words = asked.stdout.split()
    if asked.returncode == 0 and int(words[0]):
        return own, int(words[0]), f"driver {words[1]}"
    return nvml_stand_in.environment(nvml_stand_in.build(folder)), 16, nvml_stand_in.NAME


def _recorder(telemetry: Path, interval: float | None, environment: dict[str, str]) -> float:
    argv = [sys.executable, "-I", "-m", "gipfel_extension.recorder", "--telemetry", str(telemetry)]
    sockets = telemetry.with_name(f"s{interval}")
    sockets.mkdir()
    argv += ["--node", "bench", "--sockets", str(sockets), "--source", "nvml"]
    argv += ["--interval", str(interval)] if interval else []
    return _share(argv, environment, lambda: any(telemetry.glob("*.arrows")))


def _share(argv: list[str], environment: dict[str, str], ready: Callable[[], bool]) -> float:
    """CPU seconds per second of a process, after it has begun its work."""
    process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _READY_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{argv[2]} did not begin")
            time.sleep(0.1)
        # Its imports don't count as sampling.
        time.sleep(2.0)
        before, began = _cpu(process.pid), time.monotonic()
        time.sleep(_SECONDS)
        return (_cpu(process.pid) - before) / (time.monotonic() - began)
    finally:
        process.terminate()
        process.wait(20)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
