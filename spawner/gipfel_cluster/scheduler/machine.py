"""The machine's Slurm configuration, CPUs, memory and GPUs.

Slurm's commands alone do not make a cluster: `slurm_presence` looks for its configuration.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..model import Frozen, GipfelError
from .command import run_command
from .notation import GpuCount

#: What Slurm's commands need of the environment to find their cluster.
SLURM_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
# Where packages look, and where slurmd and sackd keep what the controller of a configless cluster sent them.
_FILES = ("etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf", "run/slurm/conf/slurm.conf")
# The options of the two daemons that fetch a configuration: `--conf-server HOST`.
_DAEMON_OPTIONS = ("etc/default/slurmd", "etc/default/sackd", "etc/sysconfig/slurmd", "etc/sysconfig/sackd")
_MOST_BYTES = 1 << 16
_VERSION_S = 10.0
# The message of Slurm 20.02 or newer after searching everywhere, at last for an SRV record.
_FOUND_NOTHING = "DNS SRV lookup failed"
_UNCONFIGURED = "Slurm's commands are installed but not configured (no slurm.conf, SLURM_CONF or DNS record)."
_NVIDIA_SMI_S = 10.0


class SlurmPresence(Frozen):
    """Presence of Slurm's commands, and the source of their configuration.

    ``source`` is a file, a variable or a word for it, empty where there is no configuration. ``problem`` is
    then one sentence.
    """

    commands: bool
    source: str = ""
    problem: str = ""

    @property
    def configured(self) -> bool:
        """Return whether there is a cluster to ask, even one that does not answer."""
        return self.commands and bool(self.source)


def slurm_presence(environment: Mapping[str, str], *, root: Path = Path("/")) -> SlurmPresence:
    """Find out whether Slurm is configured here, without asking its controller.

    Where neither variables nor the usual files configure it, ``sbatch --version`` is run: it reads its
    configuration first, knows the path that it was built with, and looks for the SRV record of a configless
    cluster. A configuration that is broken, or whose controller does not answer, is one all the same: using
    it is an error, not a reason to go elsewhere.

    Parameters
    ----------
    environment
        ``PATH``, ``LD_LIBRARY_PATH`` and `SLURM_VARIABLES` are taken from it.
    root
        The file system's root.
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
    """Return the name of the scheduler that runs this process's job: ``slurm`` or ``local``."""
    return "slurm" if "SLURM_JOB_ID" in environment else "local"


def default_scheduler(environment: Mapping[str, str]) -> str:
    """Return the scheduler to use where none was chosen: ``slurm`` where it is configured, else ``local``."""
    return "slurm" if slurm_presence(environment).configured else "local"


def _ask_sbatch(program: str, environment: Mapping[str, str]) -> SlurmPresence:
    kept = {name: environment[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in environment}
    try:
        answer = subprocess.run(
            (program, "--version"),
            # Without a network a name server would keep it waiting for many seconds.
            env={**kept, "LC_ALL": "C", "RES_OPTIONS": "timeout:2 attempts:1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        # A command that only forwards to another machine may hang so: the scheduler's own call reports it.
        return SlurmPresence(commands=True, source=f"{program}, which does not answer")
    except OSError as error:
        return SlurmPresence(commands=True, problem=f"{program} can't be run: {error.strerror}.")
    errors = answer.stderr[:_MOST_BYTES].decode(errors="replace")
    if answer.returncode != 0 and _FOUND_NOTHING in errors:
        return SlurmPresence(commands=True, problem=_UNCONFIGURED)
    return SlurmPresence(commands=True, source=program)


def _names_server(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError:
        return False
    return any(b"--conf-server" in line and not line.lstrip().startswith(b"#") for line in lines)


class LocalGpu(Frozen):
    """A GPU as the driver lists it; ``busy`` when a process computes on it."""

    index: str
    type: str = ""
    busy: bool = False


async def local_gpus(environment: Mapping[str, str]) -> tuple[LocalGpu, ...]:
    """Return the GPUs of this machine; none where there is no driver."""
    rows = await _ask_nvidia_smi("--query-gpu=index,uuid,name", environment)
    if not rows:
        return ()
    busy = {row[0] for row in await _ask_nvidia_smi("--query-compute-apps=gpu_uuid,pid", environment)}
    cells = [(*row, "", "")[:3] for row in rows]
    return tuple(
        LocalGpu(index=index, type=short_name(name), busy=uuid in busy)
        for index, uuid, name in cells
        if index.isdecimal()
    )


def gpus_are_known(gpus: Sequence[LocalGpu], *, devices: Path = Path("/dev")) -> bool:
    """Return whether these are all GPUs of this machine.

    They are not where a driver is loaded that ``nvidia-smi`` did not speak for: a broken one, or AMD's.
    """
    return bool(gpus) or not any((devices / name).exists() for name in ("nvidiactl", "kfd"))


def count_gpus(gpus: Sequence[LocalGpu]) -> tuple[GpuCount, ...]:
    """Count the GPUs of each type."""
    types = list(dict.fromkeys(each.type for each in gpus))
    return tuple(GpuCount(type=kind, count=sum(each.type == kind for each in gpus)) for kind in types)


def short_name(product: str) -> str:
    """Return the usual short name of a product: ``h200`` for ``NVIDIA H200``."""
    words = product.lower().replace("/", " ").split()
    ordinary = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"}
    return next((word for word in words if word not in ordinary), "")


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
