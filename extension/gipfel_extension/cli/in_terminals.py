"""The ``gipfel`` command and the EDF's own variables in the terminals of a server in a container."""

import os
import shlex
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

_COMMAND = "gipfel"


def prepare_terminals(environment: MutableMapping[str, str], *, prefix: Path | None = None) -> list[str]:
    """Put ``gipfel`` at the end of the PATH of what this process starts, and say how shells are started.

    A terminal's login shell would read the image's ``/etc/profile``, which on Debian sets PATH anew: an
    environment's own PATH would hold in notebooks only. On the host, where users expect their login shell,
    nothing changes.

    Parameters
    ----------
    prefix
        Whose ``bin`` has the command; this interpreter's when not given.

    Returns
    -------
    list[str]
        Arguments for Jupyter's server.
    """
    folder = environment.get("JUPYTER_RUNTIME_DIR", "")
    if environment.get("GIPFEL_ENGINE", "host") == "host" or not folder:
        return []
    path = environment.get("PATH", os.defpath)
    command = Path(prefix or sys.prefix, "bin", _COMMAND)
    own = Path(folder, "bin")
    if shutil.which(_COMMAND, path=path) is None and command.is_file():
        # A folder for it alone: beside it is the runtime's python3, which is not the image's.
        try:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            (own / _COMMAND).unlink(missing_ok=True)
            (own / _COMMAND).symlink_to(command)
        except OSError as error:
            sys.stderr.write(f"gipfel: the command {_COMMAND} is missing in terminals: {error.strerror}\n")
        else:
            environment["PATH"] = f"{path}{os.pathsep}{own}"
    wanted = (environment.get("SHELL", ""), "bash", "sh")
    shell = next((found for each in wanted if each and (found := shutil.which(each, path=path))), "")
    return [f"--ServerApp.terminado_settings=shell_command={shlex.quote(shell)}"] if shell else []
