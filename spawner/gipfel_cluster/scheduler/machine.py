"""Detect whether Slurm is configured on this machine, and its CPUs, memory and GPUs.

Installed commands of Slurm are not sufficient: `slurm_presence` looks for their configuration.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..model import Frozen, GipfelError
from .command import run_command
from .notation import GpuCount

#: Variables with which Slurm's commands find their cluster.
SLURM_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
# The paths of distributions' packages, and that where slurmd and sackd of a configless cluster store the
# file.
_FILES = ("etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf", "run/slurm/conf/slurm.conf")
# The options of the two daemons that fetch a configuration: `--conf-server HOST`.
_DAEMON_OPTIONS = ("etc/default/slurmd", "etc/default/sackd", "etc/sysconfig/slurmd", "etc/sysconfig/sackd")
_MAX_BYTES = 1 << 16
_VERSION_S = 10.0
# The message of Slurm 20.02 or newer if it finds no configuration, not even an SRV record.
_FOUND_NOTHING = "DNS SRV lookup failed"
_UNCONFIGURED = "Slurm's commands are installed but not configured (no slurm.conf, SLURM_CONF or DNS record)."
_NVIDIA_SMI_S = 10.0


class SlurmPresence(Frozen):
    """Slurm on this machine: its commands, and the source of its configuration.

    ``source`` is a file, a variable or a program; empty without a configuration, and then ``problem`` is a
    sentence.
    """

    commands: bool
    source: str = ""
    problem: str = ""

    @property
    def configured(self) -> bool:
        """Return whether Slurm is configured, even if its controller does not answer."""
        return self.commands and bool(self.source)


def slurm_presence(environment: Mapping[str, str], *, root: Path = Path("/")) -> SlurmPresence:
    """Return whether Slurm is configured on this machine, without contacting its controller.

    If neither variables nor the usual files configure it, run ``sbatch --version``. It reads the
    configuration first, knows the path that it was built with, and looks for the SRV record of a configless
    cluster. A broken configuration, or one whose controller does not answer, counts as configured: using it
    must be an error, and not fall back to this machine.

    Parameters
    ----------
    environment
        Provides ``PATH``, ``LD_LIBRARY_PATH`` and `SLURM_VARIABLES`.
    root
        Root of the file system, for tests.
    """
    program = shutil.which("sbatch", path=environment.get("PATH", os.defpath))
    if program is None:
        return SlurmPresence(commands=False, problem="Slurm's commands are not on PATH.")
    for name in SLURM_VARIABLES:
        if environment.get(name):
            return SlurmPresence(commands=True, source=name)
    found = next((str(root / name) for name in _FILES if (root / name).exists()), "")
    found = found or next((str(root / name) for name in _DAEMON_OPTIONS if _names_server(root / name)), "")
    if found:
        return SlurmPresence(commands=True, source=found)
    return _ask_sbatch(program, environment)


def scheduler_of(environment: Mapping[str, str]) -> str:
    """Return the name of the scheduler of this process's job: ``slurm`` or ``local``."""
    return "slurm" if "SLURM_JOB_ID" in environment else "local"


def default_scheduler(environment: Mapping[str, str]) -> str:
    """Return the scheduler to use by default: ``slurm`` if it is configured, else ``local``."""
    return "slurm" if slurm_presence(environment).configured else "local"


def _ask_sbatch(program: str, environment: Mapping[str, str]) -> SlurmPresence:
    variables = {name: environment[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in environment}
    try:
        answer = subprocess.run(
            (program, "--version"),
            # Without a network, the DNS lookup would take many seconds.
            env={**variables, "LC_ALL": "C", "RES_OPTIONS": "timeout:2 attempts:1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        # It may be a wrapper that forwards to another machine. Using the scheduler will report the problem.
        return SlurmPresence(commands=True, source=f"{program}, which does not answer")
    except OSError as error:
        return SlurmPresence(commands=True, problem=f"{program} can't be run: {error.strerror}.")
    errors = answer.stderr[:_MAX_BYTES].decode(errors="replace")
    if answer.returncode != 0 and _FOUND_NOTHING in errors:
        return SlurmPresence(commands=True, problem=_UNCONFIGURED)
    return SlurmPresence(commands=True, source=program)


def _names_server(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError:
        return False
    return any(b"--conf-server" in line and not line.lstrip().startswith(b"#") for line in lines)


class LocalGpu(Frozen):
    """A GPU as listed by the driver; ``busy`` if a process computes on it."""

    index: str
    type: str = ""
    busy: bool = False


async def local_gpus(environment: Mapping[str, str]) -> tuple[LocalGpu, ...]:
    """Return the GPUs of this machine; none without a driver."""
    rows = await _ask_nvidia_smi("--query-gpu=index,uuid,name", environment)
    if not rows:
        return ()
    busy = {row[0] for row in await _ask_nvidia_smi("--query-compute-apps=gpu_uuid,pid", environment)}
    cells = [(*row, "", "")[:3] for row in rows]
    return tuple(
        LocalGpu(index=index, type=short_gpu_name(name), busy=uuid in busy)
        for index, uuid, name in cells
        if index.isdecimal()
    )


def gpus_are_known(gpus: Sequence[LocalGpu], *, devices: Path = Path("/dev")) -> bool:
    """Return whether the list of GPUs is complete.

    It is not if ``nvidia-smi`` listed none although a driver is loaded: a broken one, or AMD's.
    """
    return bool(gpus) or not any((devices / name).exists() for name in ("nvidiactl", "kfd"))


def count_gpus(gpus: Sequence[LocalGpu]) -> tuple[GpuCount, ...]:
    """Count the GPUs of each type."""
    types = list(dict.fromkeys(each.type for each in gpus))
    return tuple(GpuCount(type=kind, count=sum(each.type == kind for each in gpus)) for kind in types)


def short_gpu_name(product: str) -> str:
    """Return the usual short name of a product: ``h200`` for ``NVIDIA H200``."""
    words = product.lower().replace("/", " ").split()
    brands = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"}
    return next((word for word in words if word not in brands), "")


def local_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def local_memory() -> int:
    """Return the memory of this machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


async def _ask_nvidia_smi(query: str, environment: Mapping[str, str]) -> list[list[str]]:
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return []
    try:
        argv = (program, query, "--format=csv,noheader")
        result = await run_command(argv, environment=environment, limit=_NVIDIA_SMI_S)
    except (GipfelError, TimeoutError):
        return []
    if result.code:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in result.output.splitlines() if line.strip()]
