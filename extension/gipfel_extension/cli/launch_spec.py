"""Launch spec from the options of ``gipfel launch`` and of a notebook's launch cell."""

import re
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from gipfel_cluster.model import GipfelError

from ..training.record.spec import LaunchSpec, nodes_range, parameter_value
from .data_stage import stage_of_options


def build_spec(options: dict[str, Any], *, code: str = "") -> LaunchSpec:
    """Return the spec of a launch.

    Parameters
    ----------
    options
        Values by the names of the command's parameters; ``parameters`` has pairs of a name and a text or a
        JSON value.
    code
        Source of a cell, if no script, module or notebook is given.

    Raises
    ------
    GipfelError
        The options contradict each other.
    click.UsageError
        No program is given, or the value of an option is not valid.
    """
    options = dict(options)
    words, module = options.pop("words"), options.pop("module")
    if not words and not module and not code.strip():
        raise click.UsageError("There is nothing to run. Give -- SCRIPT ARGS.")
    if (words or module) and code.strip():
        raise click.UsageError("Both the cell's code and a program are given. Remove one of them.")
    parameters = {
        name: parameter_value(value) if isinstance(value, str) else value
        for name, value in options.pop("parameters")
    }
    parameters |= options.pop("values", {})
    options["network"] = gate_of_options(options)
    options["stage"] = stage_of_options(options)
    variables = {}
    for each in options.pop("environment"):
        name, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--env takes NAME=VALUE, not {each!r}.")
        variables[name] = value
    try:
        nodes, min_nodes = nodes_range(options.pop("nodes"))
        what = _what(words, module, code, parameters)
        name = options.pop("name") or Path(what.get("target", "cell")).stem[:60] or "launch"
        kept = re.sub(r"[^A-Za-z0-9._-]", "-", name)
        return LaunchSpec(
            **what,
            name=kept.lstrip("._-") or "launch",
            nodes=nodes,
            nodes_min=min_nodes,
            environment=variables,
            preflight=not options.pop("no_preflight"),
            **options,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        why = f"{where}: " if where else ""
        why += first["msg"].removeprefix("Value error, ")
        raise GipfelError(f"The launch is not valid: {why}.", "See `gipfel launch --help`.") from None
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


def gate_of_options(options: dict[str, Any]) -> dict[str, Any] | None:
    """Remove the gate options from a command's options and return them; None if they declare no gate."""
    hosts = tuple(options.pop("allowed_hosts", ()))
    closed, mode = options.pop("no_network", False), options.pop("gate_mode", "refuse")
    if closed and hosts:
        raise click.UsageError("--no-network allows no host. Leave out --allow-host.")
    return {"allow": hosts, "mode": mode} if hosts or closed else None


def _what(words: tuple[str, ...], module: str, code: str, parameters: dict[str, Any]) -> dict[str, Any]:
    if module:
        return {"kind": "module", "target": module, "arguments": words, "parameters": parameters}
    if not words:
        return {"kind": "cell", "code": code, "parameters": parameters}
    first, *others = words
    kind = "notebook" if first.endswith(".ipynb") else "script"
    return {"kind": kind, "target": first, "arguments": tuple(others), "parameters": parameters}
