"""``gipfel edf``: checks, shows and renders environment definition files."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from gipfel_cluster.edf import Dialect, Resolution

    from ..gate.scan.verdict import SecurityVerdict

_dialect = click.option(
    "--dialect",
    type=click.Choice(["ce", "sarus", "pyxis"]),
    default="ce",
    show_default=True,
    help="Program that reads the EDF: the Container Engine, the Sarus Suite, or upstream Pyxis.",
)


@click.group(
    epilog=examples(
        "gipfel edf check my-env --here",
        "gipfel edf show my-env --origin",
        "gipfel edf render my-env --engine bubblewrap -- python train.py",
    )
)
def edf() -> None:
    """Check, show and render environment definition files (EDF).

    A name is searched for in EDF_PATH, else in ~/.edf; a path begins with '/', './' or '~/'.
    """


@edf.command(
    epilog=examples(
        "gipfel edf check ./my-env.toml",
        "gipfel edf check ~/.edf --here --json",
        "gipfel edf check my-env --dialect sarus",
    )
)
@click.argument("names", metavar="FILE|NAME|DIR...", nargs=-1, required=True)
@click.option("--here", is_flag=True, help="Image and mount sources must exist on this machine.")
@_dialect
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def check(names: tuple[str, ...], *, here: bool, dialect: "Dialect", as_document: bool) -> int:
    """Check environments; a directory stands for its .toml files.

    With --here it also says what is known of the image: vulnerabilities by the mirror of advisories that
    GIPFEL_ADVISORIES names, their age, and what was excepted (see `gipfel scan`).

    Exit status: 0 all are valid, 1 at least one is not, 2 wrong command line.
    """
    from gipfel_cluster.edf import as_json, check_edfs, is_edf_directory  # noqa: PLC0415
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    checked = check_edfs(
        _expanded(names), environment=os.environ, directory=_directory(), here=here, dialect=dialect
    )
    verdicts = [_image_verdict(each) if here else None for each in checked]
    if as_document:
        answers = [
            as_json(each) | ({} if verdict is None else {"security": verdict.to_json()})
            for each, verdict in zip(checked, verdicts, strict=True)
        ]
        (first, *others) = _expanded(names)
        single = not others and not is_edf_directory(first, environment=os.environ, directory=_directory())
        click.echo(json.dumps(answers[0] if single else answers))
    for each, verdict in () if as_document else zip(checked, verdicts, strict=True):
        for diagnostic in each.diagnostics:
            click.echo(str(diagnostic))
        if summary := each.summary:
            click.echo(summary)
        if verdict:
            for line in (f"{verdict.image}: {verdict.line} {verdict.fix}".strip(), *verdict.worst):
                click.echo(line)
    refused = any(each is not None and each.level == "fail" for each in verdicts)
    if not checked:
        raise GipfelError(f"There is no .toml file in {', '.join(names)}.", "Give a file or a name.")
    return 0 if all(each.valid for each in checked) and not refused else 1


def _image_verdict(checked: "Resolution") -> "SecurityVerdict | None":
    """Return what is known of the image of an EDF that is valid; None without an image."""
    from ..gate.scan.verdict import image_verdict  # noqa: PLC0415

    return image_verdict(checked.edf.image) if checked.edf and checked.edf.image else None


@edf.command(
    epilog=examples(
        "gipfel edf show my-env --origin",
    )
)
@click.argument("name", metavar="FILE|NAME")
@click.option("--origin", is_flag=True, help="Also show the file of each value.")
@_dialect
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def show(name: str, *, origin: bool, dialect: "Dialect", as_document: bool) -> int:
    """Show the resolved environment, with bases merged and variables expanded."""
    from gipfel_cluster.edf import EdfError, as_json, check_edf, show_edf  # noqa: PLC0415

    resolution = check_edf(
        *_expanded((name,)), environment=os.environ, directory=_directory(), dialect=dialect
    )
    if as_document:
        click.echo(json.dumps(as_json(resolution, origin=origin)))
        return 0 if resolution.edf else 1
    if resolution.edf is None:
        raise EdfError(resolution.diagnostics, resolution.file)
    click.echo("\n".join(show_edf(resolution, origin=origin)))
    return 0


@edf.command(epilog=examples("gipfel edf schema > edf.schema.json"))
def schema() -> int:
    """Print the JSON Schema of an EDF, for editors and forms."""
    from gipfel_cluster.edf.model import schema_text  # noqa: PLC0415

    click.echo(schema_text(), nl=False)
    return 0


@edf.command(
    epilog=examples(
        "gipfel edf render my-env --engine bubblewrap --json -- python train.py",
        "gipfel edf render my-env --engine ce -- python train.py",
        "gipfel edf render my-env --engine podman -- nvidia-smi",
    )
)
@click.argument("name", metavar="FILE|NAME")
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--engine",
    default="",
    metavar="E",
    help="bubblewrap, podman, apptainer, ce, pyxis, host or an installed one; by default a suitable one.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def render(name: str, command: tuple[str, ...], *, engine: str, as_document: bool) -> int:
    """Show the command that would run CMD in an environment, without running it.

    It shows only added or changed variables. Settings that the engine does not support are listed on stderr.
    """
    from gipfel_cluster.edf import load_edf  # noqa: PLC0415
    from gipfel_cluster.engines import ContainerRequest, engine_exists, engine_names, engine_to_render  # noqa: PLC0415
    from gipfel_cluster.environment import PROTECTED_VARIABLES  # noqa: PLC0415
    from gipfel_cluster.hooks import engine_invocation  # noqa: PLC0415

    if engine and not engine_exists(engine):
        known = " or ".join(engine_names())
        raise click.BadParameter(f"{engine!r} is not an engine; choose {known}.", param_hint="--engine")
    resolved = load_edf(*_expanded((name,)), environment=os.environ, directory=_directory())
    request = ContainerRequest(
        edf=resolved,
        command=command,
        environment=dict(os.environ),
        protected=PROTECTED_VARIABLES,
        scratch=f"/tmp/gipfel-{os.getuid()}",  # noqa: S108 - only shown
        render_only=True,
    )
    chosen = engine_to_render(resolved, engine)
    invocation = engine_invocation(request, chosen, python=sys.executable)
    notes = invocation.notes
    if chosen.name == "host" != engine:
        notes = ("The EDF has no image: no container is entered, and the command runs on the host.", *notes)
    added = {name: value for name, value in invocation.environment.items() if os.environ.get(name) != value}
    if as_document:
        document = {"argv": invocation.argv, "environment": added, "notes": notes}
        click.echo(json.dumps(document))
        return 0
    for note in notes:
        report_line(note)
    variables = [f"{name}={shlex.quote(value)}" for name, value in added.items()]
    click.echo(" ".join([*variables, shlex.join(invocation.argv)]))
    return 0


def _expanded(names: tuple[str, ...]) -> list[str]:
    """Return the paths with ``~`` expanded, which `check_edfs` does not do for directories."""
    return [os.path.expanduser(name) for name in names]  # noqa: PTH111 - leaves what it does not know


def _directory() -> Path:
    try:
        return Path.cwd()
    except OSError:
        return Path("/")
