"""``gipfel launch``: distributed training on free GPUs of this job, or in a new job."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError
from gipfel_cluster.process.fork import allow_forks

from .data_stage import stage_of_options, stage_options
from .terminal import current_directory, examples, report_line

if TYPE_CHECKING:
    from ..training.record.spec import LaunchSpec

_KILL_HOLDERS = (
    "End your other processes in this job that hold its GPUs, such as kernels; each is listed first."
)


class _LaunchGroup(click.Group):
    """Group whose default command is ``start``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``launch --nodes 2 -- train.py`` for ``launch start --nodes 2 -- train.py``."""
        if not args or args[0] not in self.commands:
            args = ["start", *args] if args else ["start", "--help"]
        return super().parse_args(ctx, args)


@click.group(cls=_LaunchGroup)
def launch() -> None:
    """Run distributed training: a script, module or notebook, one rank per GPU, in an EDF's container."""


class _StartContext(click.Context):
    @property
    def command_path(self) -> str:
        """Command path of the group, because ``start`` is its default command."""
        return self.parent.command_path if self.parent else super().command_path


class _StartCommand(click.Command):
    context_class = _StartContext


@launch.command(
    cls=_StartCommand,
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "gipfel launch --nodes 2 --gpus-per-node 4 --edf pytorch --wait -- train.py --lr 0.1",
        "gipfel launch --nodes 1:4 --restarts 3 --time 12:00:00 --new-job -- train.py",
        "gipfel launch -m mypackage.train -- --epochs 3      a module",
        "gipfel launch -p lr 0.1 -- train.ipynb              a notebook; every rank runs its cells",
        "gipfel launch list | show 3 | logs 3 -f | stop 3",
        "gipfel rerun 3                                      the same again",
        "gipfel flight-recorder 3                            which rank hangs, and where",
    ),
)
@click.argument("words", metavar="-- SCRIPT ARGS...", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "--module", default="", metavar="M", help="Run a module; all arguments are passed to it.")
@click.option(
    "-p", "parameters", type=(str, str), multiple=True, metavar="K V", help="A notebook's parameter."
)
@click.option(
    "--kernel", default="", metavar="NAME", help="A notebook's kernel; by default its own, else python3."
)
@click.option(
    "--launcher",
    type=click.Choice(["torchrun", "srun", "accelerate"]),
    default="torchrun",
    show_default=True,
    help="Program that starts the ranks.",
)
@click.option("--nodes", default="1", show_default=True, metavar="N|MIN:MAX", help="MIN:MAX is elastic.")
@click.option(
    "--gpus-per-node",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1024),
    metavar="G",
    help="Ranks per node; without GPUs they run on CPUs.",
)
@click.option("--edf", default="", metavar="FILE|NAME", help="Environment; in a job by default the job's.")
@click.option(
    "--in-job/--new-job",
    default=None,
    help="Run on free GPUs of the current job, or in a new job. Default: in the current job if there is one.",
)
@click.option(
    "--restarts",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1000),
    metavar="N",
    help="Maximum number of restarts of failed ranks. Restarted ranks have GIPFEL_RESUME=1.",
)
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="A variable of the ranks.")
@click.option("--time", default="", metavar="T", help="Time limit of the job in Slurm's syntax.")
@click.option("--partition", default="", metavar="P", help="By default the cluster's.")
@click.option("--account", default="", metavar="A", help="By default yours.")
@click.option("--qos", default="", metavar="Q", help="By default your account's.")
@click.option("--reservation", default="", metavar="R", help="Slurm reservation of the job.")
@click.option("--exclude", default="", metavar="NODES", help="Nodes to exclude from the job.")
@click.option(
    "--vet",
    "vetting",
    default="",
    metavar="PROTOCOL",
    help="Use only nodes that pass this protocol; new jobs also exclude nodes that failed recently.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="DIR",
    help="Checkpoint directory, which ranks find in $GIPFEL_CHECKPOINT; keep:runs/7 is in the site's storage "
    "class keep.",
)
@click.option(
    "--min-free",
    "min_free_gib",
    default=0.0,
    type=click.FloatRange(0),
    metavar="GIB",
    help="Free space that the checkpoint directory needs.",
)
@click.option(
    "--on-preempt",
    type=click.Choice(["requeue", "end"]),
    default="requeue",
    show_default=True,
    help="After a preemption warning (SIGUSR1 to the ranks): requeue the job, or end it.",
)
@click.option(
    "--grace",
    "grace_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="S",
    help="Seconds that ranks have to end after SIGUSR1, which they also get before the job's time limit.",
)
@click.option(
    "--join-timeout",
    "join_timeout_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    metavar="S",
    help="Elastic: how long to wait for more nodes.",
)
@click.option(
    "--layout",
    default="",
    metavar="SIZES",
    help="Parallel layout for the job page and `gipfel diagnose`, such as pp=2,dp=4; the last axis changes "
    "fastest from rank to rank.",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Profile a few steps of every rank; the traces are in profile/ of its folder.",
)
@click.option(
    "--step-hooks/--no-step-hooks",
    default=True,
    help="Log the duration of each rank's optimizer steps, with and without waiting for other ranks, for "
    "`gipfel diagnose`. Default: on.",
)
@click.option(
    "--metrics",
    "metrics_pattern",
    default="",
    metavar="REGEX",
    help="Named groups in the lines of the ranks' logs are metrics of the run: 'step (?P<step>\\d+) .*loss "
    "(?P<loss>\\S+)'. See `gipfel metrics --help`.",
)
@click.option(
    "--hang-after",
    "hang_after_s",
    default=300.0,
    show_default=True,
    type=click.FloatRange(0, 86_400),
    metavar="S",
    help="Seconds without a step after which the launch counts as hung (5 times the longest step, if that is "
    "more): dumps and stacks are collected, and the cause is reported. 0: no alarm.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="HOST",
    help="Put the ranks behind a gate, so that they reach only the hosts given with this option (repeat it "
    "for more), such as example.org, *.hf.co or db.site:5432. Destinations are logged, see `gipfel net`.",
)
@click.option("--no-network", is_flag=True, help="Put the ranks behind a gate that allows no host.")
@click.option(
    "--gate-mode",
    type=click.Choice(["refuse", "warn"]),
    default="refuse",
    show_default=True,
    help="If a launch can't run behind its gate, such as one on several nodes: refuse to start it, or run it "
    "outside the gate and print a warning with the ranks.",
)
@stage_options
@click.option("--name", default="", metavar="NAME", help="Name of the launch and its job.")
@click.option(
    "--scheduler", default="", metavar="S", help="slurm or local; by default slurm where it is configured."
)
@click.option("--engine", default="", metavar="E", help="By default $GIPFEL_ENGINE, else bubblewrap.")
@click.option("--runtime", default="", metavar="DIR|FILE.sqsh", help="By default $GIPFEL_RUNTIME.")
@click.option(
    "--cluster", default="", metavar="C", help="First part of the run's name; by default $GIPFEL_CLUSTER."
)
@click.option("--no-preflight", is_flag=True, help="Start without the pre-flight checks.")
@click.option("--kill-holders", "kill_holders", is_flag=True, help=_KILL_HOLDERS)
@click.option("--dry-run", is_flag=True, help="Show the exact command and the pre-flight; start nothing.")
@click.option("--wait", is_flag=True, help="Follow the ranks' logs and return the exit status.")
def start(**options: Any) -> int:
    """Start SCRIPT on every rank, with ARGS unchanged, and print the launch's number.

    The launch keeps running when this terminal, the kernel or the notebook server ends. Rank and address are
    in RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Ctrl-C with --wait leaves it running;
    `gipfel launch stop` ends it. Its folder contains the spec, the logs of all ranks and the exit status.
    """
    allow_forks()
    from ..training.launch import DryRun  # noqa: PLC0415 - pydantic, which --help can do without
    from ..training.launch import launch as start_launch  # noqa: PLC0415

    wait, dry_run, kill_holders = (options.pop(name) for name in ("wait", "dry_run", "kill_holders"))
    made = start_launch(
        build_spec(options),
        os.environ,
        directory=current_directory(),
        dry_run=dry_run,
        on_outcome=lambda outcome: report_line(outcome.line),
        kill_holders=kill_holders,
    )
    if isinstance(made, DryRun):
        click.echo(made.command, nl=False)
        return 1 if any(each.verdict == "fail" for each in made.preflight) else 0
    click.echo(made.folder.name)
    report_line(f"launch {made.folder.name} is started; its folder is {made.folder}")
    if not wait:
        return 0
    from .launch_view import follow  # noqa: PLC0415

    return follow(made)


def build_spec(options: dict[str, Any], *, code: str = "") -> "LaunchSpec":
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
    from pydantic import ValidationError  # noqa: PLC0415 - --help can do without it

    from gipfel_cluster.model import first_problem  # noqa: PLC0415

    from ..training.record.spec import LaunchSpec, nodes_range, parameter_value  # noqa: PLC0415

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
        why = ": ".join(filter(None, first_problem(error)))
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


@launch.command("list", epilog=examples("gipfel launch list --all --json"))
@click.option("--all", "all_runs", is_flag=True, help="Launches of all runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def list_(*, all_runs: bool, as_json: bool) -> int:
    """List the launches of this job; outside of jobs, all of yours."""
    from .launch_view import show_list  # noqa: PLC0415

    return show_list(all_runs=all_runs, as_json=as_json)


@launch.command(
    epilog=examples(
        "gipfel launch show               the newest",
        "gipfel launch show 3 --json",
        "gipfel launch show alps-48812/3  of another run",
    )
)
@click.argument("which", default="")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def show(*, which: str, as_json: bool) -> int:
    """Show one launch: its command, its nodes and ranks, and the rank that failed first."""
    from .launch_view import show_one  # noqa: PLC0415

    return show_one(which, as_json=as_json)


@launch.command(
    epilog=examples("gipfel launch logs -f          of the newest", "gipfel launch logs 3 --rank 0 -n 100")
)
@click.argument("which", default="")
@click.option("--rank", "ranks", multiple=True, type=click.IntRange(0), metavar="R", help="Only these ranks.")
@click.option("-n", "--lines", "last", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", "follow", is_flag=True, help="Keep printing until it ends.")
def logs(*, which: str, ranks: tuple[int, ...], last: int | None, follow: bool) -> int:
    """Print the output of the ranks, merged by time, each line prefixed with its rank."""
    from .launch_view import show_logs  # noqa: PLC0415

    return show_logs(which, ranks=ranks, follow_log=follow, last=last)


@launch.command(epilog=examples("gipfel launch stop 3", "gipfel launch stop    the newest"))
@click.argument("which", default="")
def stop(*, which: str) -> int:
    """Stop the ranks of a launch."""
    from .launch_view import stop_one  # noqa: PLC0415

    return stop_one(which)
