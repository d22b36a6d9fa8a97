"""Setup of JupyterLab's terminals: the ``gipfel`` command on PATH and its completion, and the EDF's PATH."""

import os
import shlex
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path

from .completion import completion_script

_COMMAND = "gipfel"
#: Shells that can run the script below; terminals with other shells are started as Jupyter does.
_SHELLS = frozenset(("bash", "dash", "sh", "zsh", "ksh", "ash"))
#: Arguments: shell, directory to append to PATH after the login files, file that marks the first terminal,
#: hint for the first terminal, directory of completions.
_START = (
    'if [ "$1" ]; then PATH="$PATH:$1"; export PATH; fi; '
    'if (set -C; : >"$2") 2>/dev/null; then printf "%s\\n" "$3"; fi; '
    'case "${0##*/}" in '
    'bash) [ -r "$4/bashrc" ] && exec "$0" --rcfile "$4/bashrc";; '
    'zsh) FPATH="$4:$FPATH"; export FPATH;; '
    'esac; exec "$0"'
)
#: Read in place of ~/.bashrc, which it reads first.
_BASHRC = "[ -r ~/.bashrc ] && . ~/.bashrc\n"
_COMPLETIONS = "completions"
_HINT = "Gipfel: `gipfel doctor` checks this environment, `gipfel --help` lists all commands."


def prepare_terminals(environment: MutableMapping[str, str], *, prefix: Path | None = None) -> list[str]:
    """Append the directory of ``gipfel`` to PATH, and return the server arguments for starting terminals.

    In a container, terminals use no login shell: it would read the image's ``/etc/profile``, which on Debian
    overwrites PATH, and the EDF's PATH would apply to notebooks only. On the host users expect their login
    shell; the command's directory is appended after its startup files have run.

    Parameters
    ----------
    prefix
        The prefix whose ``bin`` contains the command; by default this interpreter's.

    Returns
    -------
    list[str]
        Arguments for Jupyter's server.
    """
    own = Path(prefix or sys.prefix, "bin")
    folder = environment.get("JUPYTER_RUNTIME_DIR", "")
    if folder and (own / _COMMAND).is_file():
        _write_completions(environment, Path(folder, _COMPLETIONS))
    if environment.get("GIPFEL_ENGINE", "host") == "host":
        return _on_host(environment, own, folder)
    if not folder:
        return []
    path = environment.get("PATH", os.defpath)
    command, alone = own / _COMMAND, Path(folder, "bin")
    if shutil.which(_COMMAND, path=path) is None and command.is_file():
        # A separate directory, because the command's own also has the runtime's python3.
        try:
            alone.mkdir(mode=0o700, parents=True, exist_ok=True)
            (alone / _COMMAND).unlink(missing_ok=True)
            (alone / _COMMAND).symlink_to(command)
        except OSError as error:
            sys.stderr.write(f"gipfel: the command {_COMMAND} can't be added to PATH: {error.strerror}\n")
        else:
            environment["PATH"] = f"{path}{os.pathsep}{alone}"
    candidates = (environment.get("SHELL", ""), "bash", "sh")
    shell = next((found for each in candidates if each and (found := shutil.which(each, path=path))), "")
    return _shell_command(shell, (), "", folder)


def _write_completions(environment: MutableMapping[str, str], folder: Path) -> None:
    """Write a file for each shell; bash and zsh get theirs from `_START`, fish by ``XDG_DATA_DIRS``."""
    files = {
        "bashrc": _BASHRC + completion_script("bash"),
        f"_{_COMMAND}": completion_script("zsh").lstrip(),
        f"fish/vendor_completions.d/{_COMMAND}.fish": completion_script("fish"),
    }
    try:
        for name, text in files.items():
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / name).write_text(text)
    except OSError:
        # Terminals work without it.
        return
    data = environment.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    environment["XDG_DATA_DIRS"] = f"{data}{os.pathsep}{folder}"


def _on_host(environment: MutableMapping[str, str], own: Path, folder: str) -> list[str]:
    """Return the arguments on the host, where the interpreter's own ``bin`` is appended to PATH."""
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
        paths = str(Path(folder, "terminal-hint")), _HINT, str(Path(folder, _COMPLETIONS))
        words = [shell, *options, "-c", _START, shell, added, *paths]
    return [f"--ServerApp.terminado_settings=shell_command={shlex.join(words)}"]
