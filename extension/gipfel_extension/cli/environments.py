"""``gipfel edf`` and ``kernel``: environment definition files, and kernels in their containers."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gipfel_cluster.messages import GipfelError

from .terminal import examples, print_json, report_line, report_lines

if TYPE_CHECKING:
    from gipfel_cluster.edf import Dialect, Resolution
    from gipfel_cluster.image_verdict import SecurityVerdict

    from .kernelspec import KernelPython, KernelSpec

_dialect = click.option(
    "--dialect",
    type=click.Choice(["ce", "sarus", "pyxis"]),
    default="ce",
    show_default=True,
    help="Program that reads the EDF: the Container Engine, the Sarus Suite, or upstream Pyxis.",
)
_MAX_NAME = 200


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

    Set-up steps, requirements that they name or that lie beside, and mounted settings of pip, uv and npm are
    read as by `gipfel scan`: several or unauthenticated indexes, names of the site's own packages
    (GIPFEL_OWN_PACKAGES), withdrawn releases (GIPFEL_PACKAGE_INDEX), code that runs at installation.

    With --here it also says what is known of the image: vulnerabilities by the mirror of advisories that
    GIPFEL_ADVISORIES names, their age, the line of the Containerfile or EDF to change for each, and what was
    excepted (see `gipfel scan`).

    Exit status: 0 all are valid, 1 at least one is not, 2 wrong command line.
    """
    from gipfel_cluster.edf import as_json, check_edfs, is_edf_directory  # noqa: PLC0415

    from ..gate.edf_dependencies import with_dependencies  # noqa: PLC0415

    checked = with_dependencies(
        check_edfs(
            _expanded(names), environment=os.environ, directory=_directory(), here=here, dialect=dialect
        ),
        os.environ,
        here=here,
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
            click.echo(f"{verdict.image}: {verdict.line}")
            for line, fix in zip(verdict.worst, verdict.fixes, strict=False):
                click.echo(f"{line}\n  {fix}")
            if not verdict.fixes and verdict.fix:
                click.echo(verdict.fix)
    refused = any(each is not None and each.level == "fail" for each in verdicts)
    if not checked:
        raise GipfelError(f"There is no .toml file in {', '.join(names)}.", "Give a file or a name.")
    return 0 if all(each.valid for each in checked) and not refused else 1


def _image_verdict(checked: "Resolution") -> "SecurityVerdict | None":
    """Return the verdict on the image of a valid EDF; None without an image."""
    from ..gate.scan.verdict import image_verdict  # noqa: PLC0415

    if not checked.edf or not checked.edf.image:
        return None
    entry = checked.entries_by_key.get("image")
    declared = f"{entry.source.file}:{entry.line}" if entry and entry.line else ""
    return image_verdict(checked.edf.image, declared=declared)


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
        return print_json(document)
    report_lines(notes)
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


@click.group(
    epilog=examples(
        "gipfel kernel add pytorch                  a kernel in the container of another EDF",
        "gipfel kernel add --venv ~/venvs/analysis  a kernel of a virtual environment",
        "gipfel kernel list",
        "gipfel kernel remove pytorch",
    )
)
def kernel() -> None:
    """Register additional kernels, in another EDF's container or of a virtual environment."""


@kernel.command(
    epilog=examples(
        "gipfel kernel add pytorch",
        "gipfel kernel add ./my-env.toml --name mine --display-name 'My environment'",
        "gipfel kernel add pytorch --python /opt/conda/bin/python",
        "gipfel kernel add --venv ~/venvs/analysis",
    )
)
@click.argument("edf", metavar="[FILE|NAME]", default="")
@click.option(
    "--venv", metavar="DIR", help="A virtual environment that is mounted where the server runs.", default=""
)
@click.option(
    "--python",
    default="",
    metavar="P",
    help="Python of the kernel: image, runtime, or a path there; by default the image's, if it is suitable.",
)
@click.option("--name", default="", metavar="N", help="By default the name of the EDF or the directory.")
@click.option("--display-name", default="", metavar="TEXT", help="Name in JupyterLab's launcher.")
@click.option("--no-check", is_flag=True, help="Don't check that its Python can run a kernel.")
def add(*, edf: str, venv: str, python: str, name: str, display_name: str, no_check: bool) -> int:
    """Register a kernel in the container of an EDF, or of a virtual environment.

    The kernel runs on the server's node in a separate container, with the server's engine and runtime, and
    ends with the server. The image does not need Jupyter, which the runtime provides. With --venv and an EDF,
    the EDF must mount the virtual environment.
    """
    from .kernelspec import kernel_folders, name_for, write_kernel  # noqa: PLC0415

    problems = (
        (not edf and not venv, click.UsageError("Give an EDF or --venv.")),
        (
            python not in {"", "image", "runtime"} and not python.startswith("/"),
            click.BadParameter(f"{python!r} is not image, runtime or a path.", param_hint="--python"),
        ),
        (venv and python, click.UsageError("--venv already determines the Python. Remove --python.")),
        (
            len(display_name) > _MAX_NAME or (display_name and not display_name.isprintable()),
            click.BadParameter("give one line of at most 200 characters.", param_hint="--display-name"),
        ),
    )
    for is_wrong, error in problems:
        if is_wrong:
            raise error
    if edf:
        python = f"{Path(venv).expanduser().absolute()}/bin/python" if venv else python
        default, spec = _of_edf(edf, python, display_name, check=not no_check)
    else:
        default, spec = _of_venv(venv, display_name, check=not no_check)
    name = name or name_for(default)
    places = write_kernel(name, spec, kernel_folders(os.environ))
    report_line(f"the kernel {name} is {spec.display_name!r} in the launcher ({places[0]})")
    click.echo(name)
    return 0


@kernel.command(name="list", epilog=examples("gipfel kernel list", "gipfel kernel list --json"))
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def list_kernels(*, as_document: bool) -> int:
    """List the kernels that `gipfel kernel add` registered."""
    from .kernelspec import kernel_folders, registered_kernels  # noqa: PLC0415

    found = list(registered_kernels(kernel_folders(os.environ)))
    if as_document:
        rows = [
            {"name": name, "display_name": spec.display_name, **spec.origin.model_dump()}
            for name, spec in found
        ]
        return print_json(rows)
    for name, spec in found:
        click.echo(f"{name}\t{spec.display_name}\t{spec.origin}")
    if not found:
        report_line("no kernel is registered; see `gipfel kernel add --help`")
    return 0


@kernel.command(epilog=examples("gipfel kernel remove pytorch"))
@click.argument("name", metavar="NAME")
def remove(name: str) -> int:
    """Remove a kernel that `gipfel kernel add` registered; running ones keep running."""
    from .kernelspec import kernel_folders, remove_kernel  # noqa: PLC0415

    remove_kernel(name, kernel_folders(os.environ))
    report_line(f"the kernel {name} is removed")
    return 0


def _of_edf(edf: str, python: str, display_name: str, *, check: bool) -> tuple[str, "KernelSpec"]:
    from gipfel_cluster.workloads.submission import submission_context  # noqa: PLC0415

    from .kernelspec import edf_kernel  # noqa: PLC0415

    here = submission_context(os.environ)
    found = here.edf(edf, here.default_setting("engine"), _directory())
    # A name is resolved at each start of the kernel; a path refers to the host.
    named = edf if not edf.startswith(("/", ".", "~/")) else found.file
    kind = Path(found.file).stem
    version = ""
    if check:
        python, version = _checked(named, python)
    python = python or "image"
    whose = {"image": f"Python {version}".strip(), "runtime": "Gipfel's Python"}.get(
        python, Path(python).name
    )
    return kind, edf_kernel(named, python, display_name or f"{kind} ({whose})")


def _checked(edf: str, python: str) -> tuple[str, str]:
    """Return the Python to use, and its version."""
    from .kernelspec import probe_container  # noqa: PLC0415

    if python == "runtime":
        return python, ""
    found = probe_container(edf, "python3" if python in {"", "image"} else python)
    if found is not None and found.usable:
        report_lines(found.messages)
        return python or "image", found.version
    why = _why_not(found, python)
    if python:
        raise GipfelError(why, "Give --python runtime, or another Python of the image.")
    report_line(f"{why} The kernel runs with the runtime's Python.")
    return "runtime", ""


def _why_not(kernel_python: "KernelPython | None", python: str) -> str:
    if kernel_python is None:
        whose = "The image has no Python on its PATH." if python in {"", "image"} else ""
        return whose or f"There is no {python} in the container."
    reason = " ".join(kernel_python.messages) or "it has no ipykernel."
    version = f"Python {kernel_python.version}".removesuffix(" ?")
    return f"The {version} of the image can't be a kernel: {reason}"


def _of_venv(venv: str, display_name: str, *, check: bool) -> tuple[str, "KernelSpec"]:
    from gipfel_cluster.broker.container import IMAGE_KERNEL_PROGRAM  # noqa: PLC0415

    from .kernelspec import (  # noqa: PLC0415
        probe_local,
        venv_kernel,
    )

    folder = _directory() / Path(venv).expanduser()
    folder = Path(os.path.normpath(folder))
    python = folder / "bin" / "python"
    if not folder.is_dir():
        raise GipfelError(f"There is no directory {folder}.", "Give the path of a virtual environment.")
    if python.is_symlink() and not python.exists():
        raise GipfelError(
            f"The Python of {folder} does not exist here: {python.readlink()}.",
            "Create the environment with a Python of the image that the server runs in.",
        )
    if not python.exists():
        raise GipfelError(f"{folder} is not a virtual environment: it has no bin/python.", "Check the path.")
    version = ""
    if check:
        found = probe_local(python)
        if not found.usable:
            reason = " ".join(found.messages) or "it has no ipykernel."
            raise GipfelError(
                f"The Python {found.version} of {folder} can't be a kernel: {reason}",
                f"Install ipykernel into it: {python} -m pip install ipykernel.",
            )
        report_lines(found.messages)
        version = found.version
    kind = folder.name if folder.name.strip(".") not in {"venv", "env"} else folder.parent.name
    shown = display_name or f"{kind} (Python {version})".replace("Python )", "venv)")
    return kind, venv_kernel(folder, shown, started=Path(sys.prefix, IMAGE_KERNEL_PROGRAM).is_file())
