"""Options of a launch cell: those of ``gipfel launch``, and a few only for notebooks."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import click

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.launch import build_spec, start
from gipfel_extension.training.record.spec import LaunchSpec

_MAX_DEPTH = 32
_MAX_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class LaunchRequest:
    """A launch as a cell requests it.

    Parameters
    ----------
    dry_run
        Check the launch without starting it.
    wait
        Whether the cell runs until the launch ends; None for the default of the session.
    new
        Start another launch even if the same one is running.
    kill_holders
        Stop processes of this user in this job that hold its GPUs.
    """

    spec: LaunchSpec
    dry_run: bool = False
    wait: bool | None = None
    new: bool = False
    kill_holders: bool = False


@cache
def launch_command() -> click.Command:
    """Return the command of ``%%launch``: the options of ``gipfel launch`` and those for notebooks."""
    more = [
        click.Option(["--script"], default="", metavar="FILE", help="The same as -- FILE."),
        click.Option(["--notebook"], default="", metavar="FILE", help="The same as -- FILE."),
        click.Option(
            ["--param", "params"],
            multiple=True,
            metavar="NAME=VALUE",
            help="A parameter of a notebook or of the cell; JSON, else text.",
        ),
        click.Option(
            ["--pass", "passed"],
            multiple=True,
            metavar="A,B",
            help="Variables of this kernel as parameters; only values that JSON supports.",
        ),
        click.Option(
            ["--using"],
            default="",
            metavar="NAME",
            help="A dictionary of this kernel with more options; options on the line take precedence.",
        ),
        click.Option(
            ["--wait/--no-wait"],
            default=None,
            help="Wait in the cell for the end of the launch; the default without a frontend (papermill).",
        ),
        click.Option(["--new"], is_flag=True, help="Start another one even if the same is running."),
    ]
    return click.Command(
        "%%launch",
        params=[*(each for each in start.params if each.name != "wait"), *more],
        context_settings={"allow_interspersed_args": False, "max_content_width": 100},
        help="Launch the cell's own code, a script, a module or a notebook on many GPUs.\n\n"
        "The launch keeps running when the kernel, the tab or the notebook server ends. Run the cell again, "
        "and it shows the running launch; --new starts another one.",
    )


def parse_line(line: str, code: str = "", variables: Mapping[str, Any] | None = None) -> LaunchRequest | None:
    """Parse the line of ``%%launch``; return None after ``--help``, which prints the help.

    ``code`` is the rest of the cell, ``variables`` are those of the kernel, for ``--pass`` and ``--using``.

    Raises
    ------
    GipfelError
        The line is not valid.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise GipfelError(f"The line can't be read: {error}.", "Check its quotes.") from None
    return parse_arguments(words, code, variables)


def parse_arguments(
    words: Sequence[str], code: str = "", variables: Mapping[str, Any] | None = None
) -> LaunchRequest | None:
    """Parse the arguments of ``%%launch``, as `parse_line` does; return None after ``--help``.

    Raises
    ------
    GipfelError
        The arguments are not valid.
    """
    try:
        options = launch_command().make_context("%%launch", list(words)).params
        if using := options["using"]:
            more = _options_of_dictionary(using, variables or {})
            options = launch_command().make_context("%%launch", [*more, *words]).params
        del options["using"]
        script, notebook = options.pop("script"), options.pop("notebook")
        if bool(script) + bool(notebook) + bool(options["module"]) > 1:
            raise click.UsageError("Use only one of --script, --module and --notebook.")
        options["words"] = (*((script or notebook,) if script or notebook else ()), *options["words"])
        names = tuple(name for each in options.pop("passed") for name in each.split(",") if name.strip())
        options["parameters"] = (*options["parameters"], *(_pair(each) for each in options.pop("params")))
        options["values"] = {name.strip(): _variable_as_json(name.strip(), variables or {}) for name in names}
        own = {name: options.pop(name) for name in ("dry_run", "wait", "new", "kill_holders")}
        return LaunchRequest(build_spec(options, code=code), **own)
    except click.exceptions.Exit:
        return None
    except click.ClickException as error:
        raise GipfelError(error.format_message(), "See `%launch --help`.") from None


def equivalent(words: Sequence[str], code: str = "") -> str:
    """Return the magic line with these arguments: ``%%launch`` if `code` follows it, else ``%launch``."""
    return shlex.join(("%%launch" if code else "%launch", *words))


def json_value(value: Any, name: str = "it", depth: int = 0) -> Any:
    """Return a kernel's value as JSON values: numbers, text, booleans, None, lists and dictionaries.

    ``name`` is the value's name in errors, ``depth`` the number of lists and dictionaries around it.

    Raises
    ------
    GipfelError
        JSON can't represent the value.
    """
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        value = item()  # NumPy's and torch's scalars
    if depth > _MAX_DEPTH:
        raise GipfelError(f"{name} is nested too deeply to be passed.", "Write it into a file.")
    if isinstance(value, list | tuple):
        return [json_value(each, name, depth + 1) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: json_value(each, name, depth + 1) for key, each in value.items()}
    plain = value is None or isinstance(value, bool | int | str)
    if plain or (isinstance(value, float) and math.isfinite(value)):
        return value
    kind = "it is not finite" if isinstance(value, float) else f"it is a {type(value).__name__}"
    raise GipfelError(
        f"{name} can't be passed: {kind}, and only numbers, text, lists and dictionaries of these are.",
        "Write it into a file and pass the path.",
    )


def _variable_as_json(name: str, variables: Mapping[str, Any]) -> Any:
    if not name.isidentifier() or name not in variables:
        raise GipfelError(
            f"There is no variable {name[:80]!r} in this kernel.", "Check the name after --pass."
        )
    found = json_value(variables[name], name)
    if len(json.dumps(found)) > _MAX_CHARACTERS:
        raise GipfelError(f"{name} is too long to be passed.", "Write it into a file and pass the path.")
    return found


def _options_of_dictionary(name: str, variables: Mapping[str, Any]) -> list[str]:
    """Return a dictionary of options as arguments; None, False and empty strings are left out."""
    options = variables.get(name)
    if not isinstance(options, dict):
        raise GipfelError(
            f"{name[:80]!r} is not a dictionary of this kernel.", "Check the name after --using."
        )
    known = {word for each in launch_command().params for word in (*each.opts, *each.secondary_opts)} - {
        "--using"
    }
    words = []
    for option, value in options.items():
        word = f"--{str(option).replace('_', '-')}"
        if word not in known:
            raise GipfelError(
                f"{str(option)[:80]!r} in {name} is not a valid option.", "See `%launch --help`."
            )
        if value is None or value is False or value == "":
            continue
        values = value if isinstance(value, list | tuple) else [value]
        words += [word] if value is True else [f"{word}={each}" for each in values]
    return words


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise click.UsageError(f"--param takes NAME=VALUE, not {text[:80]!r}.")
    return name, value
