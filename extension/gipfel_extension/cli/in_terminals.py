"""The ``gipfel`` command in terminals of a server, and the EDF's own variables in those of a container."""

import os
import shlex
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

_COMMAND = "gipfel"
#: Shells that run the lines below; in others a terminal is as Jupyter starts it.
_SHELLS = frozenset(("bash", "dash", "sh", "zsh", "ksh", "ash"))
#: Takes SHELL FOLDER MARK HINT: what a login shell's files made of PATH is extended, and the first terminal
#: gets the hint.
_START = (
    'if [ "$1" ]; then PATH="$PATH:$1"; export PATH; fi; '
    'if (set -C; : >"$2") 2>/dev/null; then printf "%s\\n" "$3"; fi; exec "$0"'
)
_HINT = "Gipfel: `gipfel doctor` says what works here, `gipfel --help` what there is."


def prepare_terminals(environment: MutableMapping[str, str], *, prefix: Path | None = None) -> list[str]:
    """Put ``gipfel`` at the end of the PATH of what this process starts, and say how shells are started.

    In a container a terminal's login shell would read the image's ``/etc/profile``, which on Debian sets PATH
    to a list of its own: an environment's own PATH would hold in notebooks only. On the host users expect
    their login shell, whose files do the same to ours: the command's folder is added when they have run.

    Parameters
    ----------
    prefix
        Whose ``bin`` has the command; this interpreter's when not given.

    Returns
    -------
    list[str]
        Arguments for Jupyter's server.
    """
    own = Path(prefix or sys.prefix, "bin")
    folder = environment.get("JUPYTER_RUNTIME_DIR", "")
    if environment.get("GIPFEL_ENGINE", "host") == "host":
        return _on_host(environment, own, folder)
    if not folder:
        return []
    path = environment.get("PATH", os.defpath)
    command, alone = own / _COMMAND, Path(folder, "bin")
    if shutil.which(_COMMAND, path=path) is None and command.is_file():
        # A folder for it alone: beside it is the runtime's python3, which is not the image's.
        try:
            alone.mkdir(mode=0o700, parents=True, exist_ok=True)
            (alone / _COMMAND).unlink(missing_ok=True)
            (alone / _COMMAND).symlink_to(command)
        except OSError as error:
            sys.stderr.write(f"gipfel: the command {_COMMAND} is missing in terminals: {error.strerror}\n")
        else:
            environment["PATH"] = f"{path}{os.pathsep}{alone}"
    wanted = (environment.get("SHELL", ""), "bash", "sh")
    shell = next((found for each in wanted if each and (found := shutil.which(each, path=path))), "")
    return _shell_command(shell, (), "", folder)


def _on_host(environment: MutableMapping[str, str], own: Path, folder: str) -> list[str]:
    """The interpreter's own folder, where the kernels' python3 is, too."""
    path = environment.get("PATH", os.defpath)
    if not (own / _COMMAND).is_file():
        return []
    if shutil.which(_COMMAND, path=path) is None:
        environment["PATH"] = f"{path}{os.pathsep}{own}"
    shell = shutil.which(environment.get("SHELL") or "sh", path=path) or ""
    if not folder or Path(shell).name not in _SHELLS:
        return []
    return _shell_command(shell, ("-l",), str(own), folder)


def _shell_command(shell: str, options: tuple[str, ...], added: str, folder: str) -> list[str]:
    if not shell:
        return []
    words = [shell]
    if Path(shell).name in _SHELLS:
        words = [shell, *options, "-c", _START, shell, added, str(Path(folder, "terminal-hint")), _HINT]
    return [f"--ServerApp.terminado_settings=shell_command={shlex.join(words)}"]
