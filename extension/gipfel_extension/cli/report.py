"""``gipfel report``: a scored run as one HTML file.

``gipfel open``: the link to that page or to the job page, on the notebook server that can read the run.
``gipfel export``: the samples of a run in one file for other programs.
"""

import importlib.util
import os
import webbrowser
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click

from gipfel_cluster.messages import GipfelError, pluralize

from .completion import complete_runs
from .score import parse_weights
from .terminal import examples, report_line, report_lines

if TYPE_CHECKING:
    from ..saturation.report import ReportContent


@click.command(
    epilog=examples(
        "gipfel report alps-48812 -o report.html",
        "gipfel report trace.parquet -o report.html --gpu H100",
        "gipfel report alps-48812 -o report.html --static",
    )
)
@click.argument("recording", metavar="[RUN|FILE]", default="", shell_complete=complete_runs(or_files=True))
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write.",
)
@click.option(
    "--weight",
    "weights",
    callback=parse_weights,
    multiple=True,
    metavar="RESOURCE=W",
    help="As for gipfel score.",
)
@click.option("--gpu", default="", metavar="MODEL", help="The model of GPUs whose recording doesn't name it.")
@click.option("--static", is_flag=True, help="Static images instead of interactive figures.")
def report(recording: str, *, output: Path, weights: dict[str, float], gpu: str, static: bool) -> int:
    """Write score, losses, advice with its evidence, figures, events and record into one HTML file.

    The file needs no network and no other files; its figures are interactive if plotly is installed. RUN and
    FILE are as for gipfel score.

    Exit status: 0 written, 1 the file can't be written, 2 the recording can't be read.
    """
    from gipfel_cluster.runs import write_atomically  # noqa: PLC0415

    from .scored_run import ScoredRun, build_content, resolve_recording  # noqa: PLC0415 - numpy

    path = resolve_recording(recording)
    content = build_content(ScoredRun.of(path, weights=weights, gpu=gpu))
    # Don't link to a server on this machine, since the file may be read elsewhere.
    base = server_url(os.environ, ()) if (path / "telemetry").is_dir() else ""
    page = _page(replace(content, job_page=job_link(base, path.name) if base else ""), static=static)
    try:
        write_atomically(output, page.encode(errors="replace"))
    except OSError as error:
        raise _write_error(output, error) from error
    click.echo(f"{output}: {len(page) / 1e6:.1f} MB")
    return 0


def static_report(run: Path) -> bytes:
    """Return the page of ``gipfel report --static`` of a run folder.

    Raises
    ------
    SourceError
        The run has no samples, or they can't be read.
    """
    from .scored_run import ScoredRun, build_content  # noqa: PLC0415

    return _page(build_content(ScoredRun.of(run)), static=True).encode(errors="replace")


def _page(content: "ReportContent", *, static: bool) -> str:
    from ..saturation.report import report_page  # noqa: PLC0415

    plotly = None if static else _plotly()
    return report_page(content, plotly=plotly, images=_images(content) if plotly is None else None)


def _write_error(output: Path, error: OSError) -> "GipfelError":
    return GipfelError(f"{output} can't be written: {error.strerror or error}.", "Give another file with -o.")


def _plotly() -> bytes | None:
    """Return plotly.js of the Python package, without importing that package, which is slow."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        return None
    script = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return script.read_bytes() if script.is_file() else None


def _images(content: "ReportContent") -> list[bytes] | None:
    if importlib.util.find_spec("matplotlib") is None:
        return None
    from ..telemetry.figures.image import static_image  # noqa: PLC0415 - slow to import

    figures: list[dict[str, Any]] = [dict(each.figure) for each in content.figures]
    return [static_image(figure) for figure in figures]


@click.command(
    "open",
    epilog=examples(
        "gipfel open alps-48812",
        "gipfel open alps-48812 --job-page",
        "gipfel open baseline --browser",
    ),
)
@click.argument("run", metavar="RUN", shell_complete=complete_runs())
@click.option("--job-page", is_flag=True, help="The job page of the run: all ranks, live.")
@click.option("--browser", is_flag=True, help="Open the link in a browser on this machine, too.")
def open_run(*, run: str, job_page: bool, browser: bool) -> int:
    """Print the link to a run's report: score, losses, advice, figures, events and record.

    Your notebook server renders the page when the link is opened, so it must be running. On a hub, a
    colleague needs the scope access:servers for your server to open it.

    Exit status: 0 printed, 1 there is no such run or no server.
    """
    from gipfel_cluster.workloads.run_folders import find_run  # noqa: PLC0415

    name = find_run(run, os.environ).name
    base = server_url(os.environ, _local_servers())
    if not base:
        raise GipfelError(
            "No notebook server of yours can be found from here.",
            f"Run this in JupyterLab's terminal, or write the page into a file: gipfel report {name}",
        )
    link = job_link(base, name) if job_page else report_link(base, name)
    click.echo(link)
    if link.startswith("/"):
        report_line("Write your hub's address before it, as in your browser: this server does not know that.")
        report_line("Terminals know it that are opened after the lab's page; or set JupyterHub.public_url.")
    elif browser and not webbrowser.open(link):
        report_line("No browser can be opened here.")
    return 0


def report_link(base: str, name: str) -> str:
    """Return the link to the report of a run on the server with this URL or prefix."""
    return f"{base.rstrip('/')}/gipfel/runs/{quote(name, safe='')}/report"


def job_link(base: str, name: str) -> str:
    """Return the link to the job page of a run on the server with this URL or prefix."""
    place = urlencode({"gipfel-job": urlencode({"tab": "overview", "run": name})})
    return f"{base.rstrip('/')}/lab?{place}"


def server_url(environment: Mapping[str, str], local_servers: Iterable[Mapping[str, Any]]) -> str:
    """Return the URL of the server in whose terminal this command runs, else of the newest on this machine.

    On a hub without a configured public URL, the URL starts with the address in the user's browser; if that
    is unknown, too, it is only the server's path. The URL has no token.
    """
    prefix = environment.get("JUPYTERHUB_SERVICE_PREFIX", "")
    if prefix:
        host = environment.get("JUPYTERHUB_HOST") or environment.get("GIPFEL_BROWSER_ORIGIN", "")
        return environment.get("JUPYTERHUB_PUBLIC_URL") or f"{host}{prefix}"
    urls = [str(each.get("url", "")) for each in local_servers]
    return next((url for url in reversed(urls) if url.startswith(("http://", "https://"))), "")


def _local_servers() -> list[Mapping[str, Any]]:
    """Return the running notebook servers of this user on this machine."""
    from jupyter_server.serverapp import list_running_servers  # noqa: PLC0415 - slow to import

    return list(list_running_servers())


_FORMATS = (".parquet", ".csv")


@click.command(
    epilog=examples(
        "gipfel export alps-48812 -o samples.parquet",
        "gipfel export gssr_report/daint_123456 -o samples.csv",
        "gipfel export alps-48812 -o run.zip --to rocrate",
    )
)
@click.argument("recording", metavar="RUN|FILE", shell_complete=complete_runs(or_files=True))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write; its name ends with .parquet or .csv, that of an RO-Crate with .zip.",
)
@click.option(
    "--to",
    "form",
    type=click.Choice(["samples", "rocrate"]),
    default="samples",
    show_default=True,
    help="Samples as a table, or the whole run except its samples as an RO-Crate.",
)
def export(recording: str, *, output: Path, form: str) -> int:
    """Write all samples of a run into one file, with a row per device and time and a column per metric.

    Names and units are those of DCGM's fields: fractions from 0 to 1, rates in bytes per second. time_ns is
    UTC, clock_ns its difference from the monotonic clock. A missing value is null in Parquet and empty in
    CSV. Parquet has the devices in its metadata, and gipfel can read it again. RUN and FILE are as for
    gipfel score.

    With --to rocrate, write a Process Run Crate: record, EDF, score, vetting, metrics, launches with the ends
    of their logs, and their description as linked data. Secrets in parameters are hidden.

    Exit status: 0 written, 1 the file can't be written, 2 the recording can't be read.
    """
    if form == "rocrate":
        return _export_crate(recording, output)
    from ..telemetry.imports import open_recording  # noqa: PLC0415 - numpy, which --help can do without
    from ..telemetry.store.parquet import write_export  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    if output.suffix not in _FORMATS:
        raise click.UsageError(f"{output.name!r} ends with neither {' nor '.join(_FORMATS)}.")
    found = open_recording(resolve_recording(recording))
    report_lines(f"note: {note}" for note in found.notes)
    try:
        rows = write_export(found.table, output)
    except OSError as error:
        raise _write_error(output, error) from error
    click.echo(f"{output}: {pluralize(rows, 'sample')} of {pluralize(len(found.table.devices), 'device')}")
    return 0


def _export_crate(recording: str, output: Path) -> int:
    from gipfel_cluster.workloads.run_folders import typed_run  # noqa: PLC0415 - pydantic

    from ..exporters.rocrate import write_crate  # noqa: PLC0415
    from ..exporters.run_document import describe, user_name  # noqa: PLC0415

    if output.suffix != ".zip":
        raise click.UsageError(f"{output.name!r} does not end with .zip.")
    document = describe(typed_run(recording, os.environ))
    try:
        skipped = write_crate(document, output, user=user_name())
    except OSError as error:
        raise _write_error(output, error) from error
    report_lines(f"left out: {each}" for each in skipped)
    click.echo(f"{output}: {document.key} with {pluralize(len(document.children), 'launch')}")
    return 0
