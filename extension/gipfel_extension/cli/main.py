"""Group of all commands, and the conversion of errors to one line on stderr and an exit status."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from gipfel_cluster.messages import GipfelError

from .completion import print_completions
from .terminal import INTERRUPTED, examples, report_line

#: Names of the variables that hold commands, by module.
_MODULES = {
    "account": (
        "doctor",
        "quota",
        "runtime",
    ),
    "completion": ("completion",),
    "connections": (
        "communication",
        "net",
        "topology",
    ),
    "data": ("data",),
    "environments": (
        "edf",
        "kernel",
    ),
    "findings": (
        "compare",
        "diagnose",
        "rules",
    ),
    "image": ("image",),
    "io": ("io",),
    "launch": ("launch",),
    "looks": (
        "flight_recorder",
        "memory",
        "stacks",
        "trace",
    ),
    "metrics": (
        "catalogue",
        "metrics",
    ),
    "publish": (
        "notify",
        "track",
    ),
    "record": ("record",),
    "report": (
        "export",
        "open_run",
        "report",
    ),
    "runs": (
        "run_alias",
        "runs",
    ),
    "scan": (
        "model",
        "scan",
    ),
    "score": ("score",),
    "service": ("service",),
    "training": (
        "checkpoints",
        "plan",
    ),
    "vet": ("vet",),
    "workloads": (
        "logs",
        "ps",
        "rerun",
        "stop",
        "submit",
    ),
}
#: Commands whose names are not those of their variables.
_NAMES = {"open_run": "open", "run_alias": "run"}
_PLACES = {
    _NAMES.get(variable, variable.replace("_", "-")): (module, variable)
    for module, variables in _MODULES.items()
    for variable in variables
}


class _Commands(click.Group):
    """A group that imports a command when it is needed: importing all takes longer than many commands run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _PLACES and cmd_name not in self.commands:
            module, variable = _PLACES[cmd_name]
            command: click.Command = getattr(import_module(f".{module}", __package__), variable)
            _set_short_help(command)
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


def _set_short_help(command: click.Command) -> None:
    """Set a command's short help to the full first sentence, which click would otherwise truncate."""
    if command.help and not command.short_help:
        text = " ".join(command.help.partition("\n\n")[0].split())
        command.short_help = text.partition(". ")[0].rstrip(".")
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _set_short_help(each)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "gipfel doctor                            check machine, cluster, account and environment",
        "gipfel edf check my-env --here           check an environment definition file",
        "gipfel runtime build ~/.gipfel/runtime   build the runtime for images",
        "gipfel kernel add my-env                 add a kernel in another environment's container",
        "gipfel image build . -o my.sqsh          build an image from a Containerfile",
        "gipfel submit in.ipynb out.ipynb --wait  run a notebook as a batch job",
        "gipfel ps                                list running and waiting workloads",
        "gipfel notify                            send messages about jobs by e-mail, Slack or ntfy",
        "gipfel data pack DIR data.sqsh           pack many small files into one file",
        "gipfel checkpoints DIR --verify          check a training program's checkpoints",
        "gipfel record -- python train.py         run a command and record GPU metrics",
        "gipfel plan --model 7B --gpus 16         plan a model's parallel layout",
        "gipfel score alps-48812                  score how well a run used its GPUs",
        "gipfel quota                             show limits of your jobs, and what is left",
        "gipfel runs                              list runs with score, GPU hours and energy",
        "gipfel compare alps-48812 alps-48910     compare runs",
        "gipfel diagnose alps-48812               find slow ranks and changes of speed",
        "gipfel stacks 3 --ranks all              print where the ranks of a launch are now",
        "gipfel trace 3 --steps 5                 trace steps of a running launch",
        "gipfel communication ./dumps             find slow collectives, and who sends to whom",
        "gipfel rules list                        list rules about what is recorded",
        "gipfel catalogue                         list everything that a run records",
        "gipfel track alps-48812 --to URI         make a run an MLflow run",
        "gipfel metrics runs/llama-7b             list metrics of TensorBoard, Lightning and others",
        "gipfel net alps-48812                    list connections of a run, and ports it opened",
        "gipfel io alps-48812                     show a run's files, and how file systems answered",
        "gipfel vet quick                         test every node of this job",
    ),
)
@click.version_option(package_name="gipfel", message="gipfel %(version)s")
def gipfel() -> None:
    """Run notebooks and training on a GPU cluster, in containers defined by EDFs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 2 for a wrong command line, 1 for any other error."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _print_usage_error(error)
    except (KeyboardInterrupt, click.Abort):
        report_line("interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has closed the pipe.
        return 1
    except Exception as error:  # noqa: BLE001 - any exception becomes one line and an exit status
        return _print_error(error)
    finally:
        _flush_stdout()


def _run(arguments: list[str]) -> int:
    completed = print_completions(gipfel, os.environ)
    if completed is not None:
        return completed
    with gipfel.make_context("gipfel", arguments) as context:
        return int(gipfel.invoke(context) or 0)


def _flush_stdout() -> None:
    """Flush stdout; if that fails, redirect it, so that Python prints no error at its exit."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_usage_error(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "gipfel"
    message = error.format_message()
    # Some of click's messages have no full stop.
    report_line(f"{message}{'' if message.endswith(('.', '?', '!')) else '.'} See `{path} --help`.")
    return error.exit_code


def _print_error(error: Exception) -> int:
    if os.environ.get("GIPFEL_DEBUG"):
        raise error
    if isinstance(error, GipfelError):
        report_line(str(error))
        return error.exit_status
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        # pathlib raises this for a user without HOME and without an entry in the password database.
        report_line("Your home directory is unknown. Set HOME.")
    elif isinstance(error, UnicodeEncodeError):
        report_line("Your locale can't print this output. Set LC_ALL=C.UTF-8, or use --json.")
    elif isinstance(error, OSError) and error.strerror:
        report_line(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    else:
        report_line(f"{type(error).__name__}: {error} This is a bug in gipfel. GIPFEL_DEBUG=1 shows where.")
    return 1
