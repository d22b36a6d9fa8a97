"""``gipfel completion``: completion in bash, zsh and fish, and the set-up of JupyterLab's terminals."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    shell_complete,
)

from .terminal import examples

_PROGRAM = "gipfel"
_VARIABLE = "_GIPFEL_COMPLETE"
_CLASSES: Mapping[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_MAX_ITEMS = 200
_Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
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
#: Beginning of the file that bash reads instead of ~/.bashrc; it reads ~/.bashrc first.
_BASHRC = "[ -r ~/.bashrc ] && . ~/.bashrc\n"
_COMPLETIONS = "completions"
_HINT = "Gipfel: `gipfel doctor` checks this environment, `gipfel --help` lists all commands."


@click.command(
    epilog=examples(
        'eval "$(gipfel completion bash)"    in ~/.bashrc',
        'eval "$(gipfel completion zsh)"     in ~/.zshrc, after compinit',
        "gipfel completion fish > ~/.config/fish/completions/gipfel.fish",
    )
)
@click.argument("shell", type=click.Choice(tuple(_CLASSES)))
def completion(*, shell: str) -> int:
    """Print the code that makes a shell complete gipfel's commands, options and runs.

    JupyterLab's terminals have it already.
    """
    click.echo(completion_script(shell))
    return 0


def completion_script(shell: str) -> str:
    """Return a shell's code for completion; `shell` is bash, zsh or fish."""
    made = _CLASSES[shell](click.Group(), {}, _PROGRAM, _VARIABLE)
    # Not `source()`, which runs this machine's bash to find its version.
    return made.source_template % made.source_vars()


def print_completions(group: click.Group, environment: Mapping[str, str]) -> int | None:
    """Print the completions that a shell's function requests; return None if this call requests none."""
    asked = environment.get(_VARIABLE, "")
    return shell_complete(group, {}, _PROGRAM, _VARIABLE, asked) if asked else None


def complete_runs(*, or_files: bool = False) -> _Completer:
    """Return a completer of runs by folder and by name, newest first.

    With `or_files`, it completes files if no run matches.
    """

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        from gipfel_cluster.runs import runs_root  # noqa: PLC0415

        return _matching(_run_names(runs_root(dict(os.environ))), typed, or_files=or_files)

    return complete


def _run_names(root: Path) -> Iterable[CompletionItem]:
    from gipfel_cluster.workloads.run_folders import is_run_folder, read_notes  # noqa: PLC0415

    try:
        folders = sorted(root.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    except OSError:
        return
    for folder in folders[:_MAX_ITEMS]:
        if is_run_folder(folder):
            name = read_notes(folder).display_name
            if name and " " not in name:
                yield CompletionItem(name, help=folder.name)
            yield CompletionItem(folder.name, help=name or None)


def _matching(found: Iterable[CompletionItem], typed: str, *, or_files: bool) -> list[CompletionItem]:
    shown = [each for each in found if str(each.value).startswith(typed)]
    return shown or ([CompletionItem(typed, type="file")] if or_files else [])


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
        # Terminals also work without completion.
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
