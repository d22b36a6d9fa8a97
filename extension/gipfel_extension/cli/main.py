"""The group of all commands, and how any of them ends: one line on stderr and an exit status."""

import os
import sys
from collections.abc import Sequence

import click

from .doctor import doctor
from .edf import edf
from .export import export
from .kernel import kernel
from .launch import flight_recorder, launch
from .live_table import examples, tell
from .plan import plan
from .record import record
from .report import report
from .runs import runs
from .runtime import runtime
from .score import score
from .submit import submit
from .vet import vet
from .workloads import logs, ps, rerun, stop

_INTERRUPTED = 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "gipfel doctor                            what this machine can do, and what is missing",
        "gipfel edf check my-env --here           what is wrong with an environment",
        "gipfel runtime build ~/.gipfel/runtime   the interpreter and server for images",
        "gipfel kernel add my-env                 a kernel in another environment's container",
        "gipfel submit in.ipynb out.ipynb --wait  a notebook as a batch job",
        "gipfel ps                                what runs or waits: launches, batch notebooks",
        "gipfel record -- python train.py         a command, with a recorder beside it",
        "gipfel plan --model 7B --gpus 16         how a model would be laid out on GPUs",
        "gipfel score alps-48812                  how well a run used its GPUs",
        "gipfel vet quick                         is every node of this job fit",
    ),
)
@click.version_option(package_name="gipfel", message="gipfel %(version)s")
def gipfel() -> None:
    """Notebooks on a GPU cluster: environments (EDF), the runtime that is mounted into them, batch jobs."""


gipfel.add_command(doctor)
gipfel.add_command(edf)
gipfel.add_command(export)
gipfel.add_command(flight_recorder)
gipfel.add_command(kernel)
gipfel.add_command(launch)
gipfel.add_command(logs)
gipfel.add_command(plan)
gipfel.add_command(ps)
gipfel.add_command(record)
gipfel.add_command(report)
gipfel.add_command(rerun)
gipfel.add_command(runs)
gipfel.add_command(runtime)
gipfel.add_command(score)
gipfel.add_command(stop)
gipfel.add_command(submit)
gipfel.add_command(vet)


def _tell_whole_sentences(group: click.Group) -> None:
    """Let the list of a group's commands show first sentences whole, which click cuts at the line's end."""
    for command in group.commands.values():
        if command.help and not command.short_help:
            text = " ".join(command.help.partition("\n\n")[0].split())
            command.short_help = text.partition(". ")[0].rstrip(".")
        if isinstance(command, click.Group):
            _tell_whole_sentences(command)


_tell_whole_sentences(gipfel)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 2 for a wrong command line, 1 for anything that a person must put right."""
    try:
        with gipfel.make_context("gipfel", list(sys.argv[1:] if arguments is None else arguments)) as context:
            return int(gipfel.invoke(context) or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _refused(error)
    except (KeyboardInterrupt, click.Abort):
        tell("interrupted.")
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone.
        return 1
    except Exception as error:  # noqa: BLE001 - the last place before a person
        return _problem(error)
    finally:
        _let_go_of_output()


def _let_go_of_output() -> None:
    """Write what is left; where nobody takes it, Python must not complain once more at its end."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "gipfel"
    tell(f"{error.format_message()} See `{path} --help`.")
    return error.exit_code


def _problem(error: Exception) -> int:
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    if os.environ.get("GIPFEL_DEBUG"):
        raise error
    if isinstance(error, GipfelError):
        tell(str(error))
    elif isinstance(error, RuntimeError) and "home directory" in str(error):
        # pathlib's word for a user without HOME whom the machine has no entry of.
        tell("This machine knows no home folder of yours. Set HOME.")
    elif isinstance(error, UnicodeEncodeError):
        tell("Your locale can't write what is to be shown. Set LC_ALL=C.UTF-8, or take --json.")
    elif isinstance(error, OSError) and error.strerror:
        tell(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    else:
        tell(f"{type(error).__name__}: {error} This is a mistake in gipfel; GIPFEL_DEBUG=1 shows where.")
    return 1
