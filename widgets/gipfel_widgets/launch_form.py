"""Form of a launch cell: fields with defaults, and the arguments of ``%%launch`` for their values."""

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any

import click
import ipywidgets as ipw

from gipfel_cluster.edf.lookup import list_edfs
from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launches.allocation import granted_gpus
from gipfel_extension.vetting.protocol_files import known_protocols

from .launch_options import json_value, launch_command

_MAX_NODES = 65536
_KINDS = {"script": "Script", "module": "Module", "notebook": "Notebook", "code": "Code below"}
_WIDE, _LABEL = {"width": "calc(100% - 8px)"}, {"description_width": "9em"}
#: Of short fields: one column in a narrow window, without cutting their labels.
_COLUMNS = "repeat(auto-fill, minmax(min(100%, 280px), 1fr))"


class LaunchForm:
    """Fields for the most used options; the other options of ``%%launch`` can be given as text.

    Parameters
    ----------
    options
        Initial values by the names of the options, such as ``script``, ``nodes`` and ``gpus_per_node``;
        ``args`` and ``params`` are passed to the program, and ``code`` is run if no program is named.
    environment
        Environment variables that describe the job; by default this process's.

    Raises
    ------
    GipfelError
        An option does not exist, or a value does not fit its field.
    """

    def __init__(self, options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        #: The whole form.
        self.widget = ipw.VBox()
        options = dict(options)
        kind = next((each for each in ("script", "module", "notebook") if options.get(each)), None)
        kind = kind or ("code" if options.get("code") else "script")
        arguments, params = options.pop("args", ()), options.pop("params", {})
        text = arguments if isinstance(arguments, str) else shlex.join(map(str, arguments))
        if not isinstance(params, str):
            params = "\n".join(f"{name}={_typed(value)}" for name, value in params.items())
        nodes = str(options.pop("nodes", environment.get("SLURM_JOB_NUM_NODES", "1")))
        min_nodes, _, most = nodes.rpartition(":")
        try:
            self._make_program(options, kind, text, params)
            self._make_fields(options, min_nodes, most, environment)
        except (ValueError, TypeError) as error:
            raise GipfelError(f"A value does not fit its field: {error}.", "See `%launch --help`.") from None
        self._given = {name: value for name, value in options.items() if name not in self.fields}
        self._more = _arguments_of(self._given)
        self.more = ipw.Checkbox(
            value=False,
            description="More fields",
            tooltip="Show the fields for less used options",
            indent=False,
        )
        self._update_fields()
        for each in (self.kind, self.more):
            each.observe(lambda _: self._update_fields(), names="value")

    def _make_program(self, options: dict[str, Any], kind: str, arguments: str, params: str) -> None:
        named = [str(options.pop(each, "")) for each in ("script", "module", "notebook")]
        target = next((each for each in named if each), "")
        kinds = [(text, name) for name, text in _KINDS.items()]
        self.kind = ipw.Dropdown(options=kinds, value=kind, **_layout("What", typed=False))
        self.target = ipw.Text(target, placeholder="train.py", **_layout("File"))
        self.code = ipw.Textarea(str(options.pop("code", "")), rows=6, **_layout("Code"))
        self.arguments = ipw.Text(arguments, placeholder="--lr 0.1", **_layout("Arguments"))
        self.params = ipw.Textarea(params, rows=2, placeholder="lr=0.1\nsteps=100", **_layout("Parameters"))

    def _make_fields(
        self, options: dict[str, Any], min_nodes: str, max_nodes: str, environment: Mapping[str, str]
    ) -> None:
        self.nodes = _count(int(max_nodes), 1, "Nodes", "How many nodes the launch runs on")
        self.min_nodes = _count(
            int(min_nodes) if min_nodes else int(max_nodes),
            1,
            "Minimum nodes",
            "The fewest nodes it starts with, or continues with",
        )
        gpus = int(options.pop("gpus_per_node", 0)) or granted_gpus(environment) or 1
        self.gpus = _count(gpus, 1, "GPUs per node", "Ranks per node; without GPUs they compute on CPUs")
        choices = {each.name: each.type for each in launch_command().params}
        self.fields: dict[str, ipw.Widget] = {
            "edf": ipw.Combobox(
                value=str(options.get("edf", "")), options=list_edfs(environment=environment),
                placeholder="the job's own", ensure_option=False, **_layout("Environment"),
            ),
            "launcher": _choice(choices["launcher"], options.get("launcher", "torchrun"), "Launcher"),
            "restarts": _count(
                int(options.get("restarts", 0)), 0, "Restarts", "How often failed ranks are started again"
            ),
            "vetting": ipw.Combobox(
                value=str(options.get("vetting", "")), options=tuple(known_protocols(environment)),
                placeholder="none", ensure_option=False, **_layout("Vet first"),
            ),
            "checkpoint": ipw.Text(
                str(options.get("checkpoint", "")), placeholder="none", **_layout("Checkpoints in")
            ),
            "in_job": _job_choice(options.get("in_job")),
            "time": ipw.Text(str(options.get("time", "")), placeholder="1:00:00", **_layout("Time")),
            "on_preempt": _choice(
                choices["on_preempt"], options.get("on_preempt", "requeue"), "If preempted"
            ),
        }  # fmt: skip

    def command_line(self) -> tuple[list[str], str]:
        """Return the arguments of ``%%launch`` for the form's values, and the code of the form (empty: none).

        Raises
        ------
        GipfelError
            The program is missing, or a quote in the arguments is not closed.
        """
        kind = self.kind.value
        self._check_program(kind)
        nodes, min_nodes = self.nodes.value, min(self.min_nodes.value, self.nodes.value)
        words = [
            f"--nodes={nodes if min_nodes == nodes else f'{min_nodes}:{nodes}'}",
            f"--gpus-per-node={self.gpus.value}",
        ]
        flags = {each.name: each.opts[-1] for each in launch_command().params}
        for name, field in self.fields.items():
            value = str(field.value)
            if name == "in_job":
                words += [value] if value else []
            elif value and value != _default(name):
                words.append(f"{flags[name]}={value}")
        words += self._more
        if kind in {"notebook", "code"}:
            words += [f"--param={each}" for each in self.params.value.splitlines() if each.strip()]
            return [*words, *([f"--notebook={self.target.value}"] if kind == "notebook" else ())], (
                self.code.value if kind == "code" else ""
            )
        try:
            arguments = shlex.split(self.arguments.value)
        except ValueError as error:
            raise GipfelError(f"The arguments can't be read: {error}.", "Check their quotes.") from None
        return [*words, f"--{kind}={self.target.value}", "--", *arguments], ""

    def _check_program(self, kind: str) -> None:
        field = self.code if kind == "code" else self.target
        if not field.value.strip():
            fix = {
                "script": "Name the script that every rank runs, such as train.py.",
                "module": "Name the module that every rank runs, such as package.train.",
                "notebook": "Name the notebook that every rank runs, such as train.ipynb.",
                "code": "Type the code that every rank runs.",
            }[kind]
            raise GipfelError(f"The field {field.description!r} is empty.", fix)

    def _update_fields(self) -> None:
        kind = self.kind.value
        own = {"code": [self.code, self.params], "notebook": [self.target, self.params]}
        what = own.get(kind, [self.target, self.arguments])
        self.target.description = {"module": "Name", "notebook": "Notebook"}.get(kind, "File")
        main_fields = [self.nodes, self.min_nodes, self.gpus, self.fields["edf"]]
        more_fields = [self.fields[name] for name in self.fields if name != "edf"]
        grid = ipw.Layout(grid_template_columns=_COLUMNS, width="100%")
        # Not an Accordion: its header can't be reached by keyboard.
        rest = [ipw.GridBox(more_fields, layout=grid)] if self.more.value else []
        self.widget.children = [self.kind, *what, ipw.GridBox(main_fields, layout=grid), self.more, *rest]


def _layout(text: str, *, typed: bool = True) -> dict[str, Any]:
    # Without a tooltip, the page shows "null" for some of the fields.
    look = {"description": text, "tooltip": text, "layout": dict(_WIDE), "style": dict(_LABEL)}
    return {**look, "continuous_update": False} if typed else look


def _count(value: int, minimum: int, text: str, tooltip: str) -> ipw.Widget:
    look = {**_layout(text), "tooltip": tooltip}
    return ipw.BoundedIntText(value, min=minimum, max=_MAX_NODES, **look)


def _choice(kind: click.ParamType, value: Any, text: str) -> ipw.Widget:  # type: ignore[type-arg,unused-ignore]
    look = _layout(text, typed=False)
    return ipw.Dropdown(options=list(getattr(kind, "choices", ())), value=str(value), **look)


def _job_choice(in_job: object) -> ipw.Widget:
    options = [("Current job, if any", ""), ("Current job", "--in-job"), ("New job", "--new-job")]
    value = "" if in_job is None else "--in-job" if in_job else "--new-job"
    return ipw.Dropdown(options=options, value=value, **_layout("Run in", typed=False))


def _default(name: str) -> str:
    found = next(each.default for each in launch_command().params if each.name == name)
    return "" if found is None else str(found)


def _arguments_of(options: Mapping[str, Any]) -> list[str]:
    """Return options that have no field, as arguments."""
    known = {each.name: each for each in launch_command().params}
    words = []
    for name, value in options.items():
        option = known.get(name)
        if not isinstance(option, click.Option):
            raise GipfelError(f"A launch has no option {name[:80]!r}.", "See `%launch --help`.")
        flag = option.opts[-1]
        if option.is_flag:
            words += [flag] if value else list(option.secondary_opts[:1])
        else:
            several = isinstance(value, list | tuple) and option.multiple
            words += [f"{flag}={each}" for each in (value if several else (value,))]
    return words


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(json_value(value))
