"""``gipfel completion``: completion of commands, options and runs in bash, zsh and fish.

The shell's function, which `completion_script` returns, runs ``gipfel`` with a variable that holds the typed
words; `print_completions` answers it.
"""

import os
from collections.abc import Callable, Iterable, Mapping
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
    # Not `source()`: for bash, it would run the one of this machine to ask for its version.
    return made.source_template % made.source_vars()


def print_completions(group: click.Group, environment: Mapping[str, str]) -> int | None:
    """Print the completions that a shell's function asks for; returns None if it is not one that asks."""
    asked = environment.get(_VARIABLE, "")
    return shell_complete(group, {}, _PROGRAM, _VARIABLE, asked) if asked else None


def complete_runs(*, or_files: bool = False) -> _Completer:
    """Return a completer of runs by folder and by the user's name, the newest first, or else of files."""

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
