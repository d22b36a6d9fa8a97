"""``gipfel export``: the samples of a run in one file for other programs."""

from pathlib import Path

import click

from .live_table import examples, tell

_UNREADABLE = 2
_FORMATS = (".parquet", ".csv")


@click.command(
    epilog=examples(
        "gipfel export alps-48812 -o samples.parquet",
        "gipfel export gssr_report/daint_123456 -o samples.csv",
    )
)
@click.argument("recording", metavar="RUN|FILE")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the samples go; its name ends with .parquet or .csv.",
)
def export(recording: str, *, output: Path) -> int:
    """Write all samples of a run into one file: a row per device and time, a column per metric.

    Names and units are those of DCGM's fields, fractions from 0 to 1, rates in bytes per second, time_ns is
    UTC, clock_ns its lead over the monotonic clock. A missing value is null in Parquet, empty in CSV; Parquet
    names the devices in its metadata, and gipfel reads it back. RUN and FILE are as for gipfel score.

    Exit status: 0 it was written, 1 it couldn't be, 2 nothing could be read.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    from ..telemetry.imports import open_recording  # noqa: PLC0415
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from ..telemetry.store.parquet import write_export  # noqa: PLC0415
    from .scored_run import path_of  # noqa: PLC0415

    if output.suffix not in _FORMATS:
        raise click.UsageError(f"{output.name!r} ends with neither {' nor '.join(_FORMATS)}.")
    try:
        found = open_recording(path_of(recording))
    except SourceError as error:
        tell(str(error))
        return _UNREADABLE
    for note in found.notes:
        tell(f"note: {note}")
    try:
        rows = write_export(found.table, output)
    except OSError as error:
        raise GipfelError(
            f"{output} can't be written: {error.strerror or error}.", "Name another with -o."
        ) from error
    click.echo(f"{output}: {rows} samples of {len(found.table.devices)} devices")
    return 0
