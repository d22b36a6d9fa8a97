"""Detection of a configured Slurm: its commands alone do not make a cluster."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ..model import Frozen

#: What Slurm's commands need of the environment to find their cluster.
SLURM_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
# Where packages look, and where slurmd and sackd keep what the controller of a configless cluster sent them.
_FILES = ("etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf", "run/slurm/conf/slurm.conf")
# The options of the two daemons that fetch a configuration: `--conf-server HOST`.
_DAEMON_OPTIONS = ("etc/default/slurmd", "etc/default/sackd", "etc/sysconfig/slurmd", "etc/sysconfig/sackd")
_MOST_BYTES = 1 << 16
_LIMIT_S = 10.0
# What a command of Slurm 20.02 or newer says when it has looked everywhere, at last for an SRV record.
_FOUND_NOTHING = "DNS SRV lookup failed"
_UNCONFIGURED = "Slurm's commands are installed but not configured (no slurm.conf, SLURM_CONF or DNS record)."


class SlurmPresence(Frozen):
    """Presence of Slurm's commands, and the source of their configuration.

    ``source`` is a file, a variable or a word for it, empty where there is no configuration. ``problem`` is
    then one sentence that says so.
    """

    commands: bool
    source: str = ""
    problem: str = ""

    @property
    def configured(self) -> bool:
        """Return whether there is a cluster to ask, be it silent."""
        return self.commands and bool(self.source)


def slurm_presence(environment: Mapping[str, str], *, root: Path = Path("/")) -> SlurmPresence:
    """Tell whether Slurm is configured here, without asking its controller.

    Where neither variables nor the usual files say so, ``sbatch --version`` is run: it reads its
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
    return _asked(program, environment)


def default_scheduler(environment: Mapping[str, str]) -> str:
    """Name the scheduler to use where none was chosen: ``slurm`` where it is configured, else ``local``."""
    return "slurm" if slurm_presence(environment).configured else "local"


def _asked(program: str, environment: Mapping[str, str]) -> SlurmPresence:
    kept = {name: environment[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in environment}
    try:
        answer = subprocess.run(
            (program, "--version"),
            # Without a network a name server would keep it waiting for many seconds.
            env={**kept, "LC_ALL": "C", "RES_OPTIONS": "timeout:2 attempts:1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        # A command that only forwards to another machine may hang so: the scheduler's own call reports it.
        return SlurmPresence(commands=True, source=f"{program}, which does not answer")
    except OSError as error:
        return SlurmPresence(commands=True, problem=f"{program} can't be run: {error.strerror}.")
    said = answer.stderr[:_MOST_BYTES].decode(errors="replace")
    if answer.returncode != 0 and _FOUND_NOTHING in said:
        return SlurmPresence(commands=True, problem=_UNCONFIGURED)
    return SlurmPresence(commands=True, source=program)


def _names_server(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_BYTES).splitlines()
    except OSError:
        return False
    return any(b"--conf-server" in line and not line.lstrip().startswith(b"#") for line in lines)
