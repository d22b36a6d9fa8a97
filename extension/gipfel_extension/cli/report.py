"""``gipfel report``: a scored run as one HTML file."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .live_table import examples, tell
from .score import weights_of

if TYPE_CHECKING:
    from ..saturation.report import ReportContent

_UNREADABLE = 2


@click.command(
    epilog=examples(
        "gipfel report alps-48812 -o report.html",
        "gipfel report trace.parquet -o report.html --gpu H100",
        "gipfel report alps-48812 -o report.html --static",
    )
)
@click.argument("recording", metavar="[RUN|FILE]", default="")
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the page goes.",
)
@click.option(
    "--weight",
    "weights",
    callback=weights_of,
    multiple=True,
    metavar="RESOURCE=W",
    help="As for gipfel score.",
)
@click.option("--gpu", default="", metavar="MODEL", help="The model of GPUs whose recording doesn't name it.")
@click.option("--static", is_flag=True, help="Images in place of figures that answer to the mouse.")
def report(recording: str, *, output: Path, weights: dict[str, float], gpu: str, static: bool) -> int:
    """Write score, losses, advice with its evidence, figures, events and record into one HTML file.

    It needs no network and no other file; with plotly here its figures zoom and say their values. RUN and
    FILE are as for gipfel score.

    Exit status: 0 it was written, 1 it couldn't be, 2 nothing could be read.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without
    from gipfel_cluster.runs import write_atomically  # noqa: PLC0415

    from ..saturation.report import report_page  # noqa: PLC0415
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from .report_content import content_of  # noqa: PLC0415
    from .scored_run import ScoredRun, path_of  # noqa: PLC0415

    try:
        content = content_of(ScoredRun.of(path_of(recording), weights=weights, gpu=gpu))
    except SourceError as error:
        tell(str(error))
        return _UNREADABLE
    plotly = None if static else _plotly()
    images = _images(content) if plotly is None else None
    page = report_page(content, plotly=plotly, images=images)
    try:
        write_atomically(output, page.encode(errors="replace"))
    except OSError as error:
        raise GipfelError(
            f"{output} can't be written: {error.strerror or error}.", "Name another with -o."
        ) from error
    click.echo(f"{output}: {len(page) / 1e6:.1f} MB")
    return 0


def _plotly() -> bytes | None:
    """plotly.js as Python's plotly brings it; without importing that, which takes a while."""
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
