"""``gipfel compare``: is a run slower or faster than another, and how sure is that."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .live_table import examples, tell

if TYPE_CHECKING:
    from ..diagnosis import StepTable

_CANNOT_TELL, _UNREADABLE = 1, 2


@click.command(
    epilog=examples(
        "gipfel compare alps-48812 alps-48901",
        "gipfel compare alps-48812 alps-48901 --earlier alps-48770 --earlier alps-48785 --json",
        "gipfel compare before.jsonl after.jsonl",
    )
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--earlier",
    multiple=True,
    metavar="RUN|FILE",
    help="A further earlier run of the same script: from five on, how much runs differ is measured.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def compare(first: str, second: str, *, earlier: tuple[str, ...], as_document: bool) -> int:
    """Compare the pace of run B with run A: are its steps longer, by how much, and how sure is that.

    A and B are run folders, their names, or files of steps, as for `gipfel diagnose`. They should be of the
    same script and size on the same kind of GPU. A difference counts above 5 % and three standard errors;
    where none is found, the smallest is named that would have been.

    Exit status: 0 compared, 1 can't be told, 2 one can't be read.
    """
    from ..diagnosis.run_comparison import compare_paces, pace_of  # noqa: PLC0415 - numpy, as above
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from .scored_run import path_of  # noqa: PLC0415

    names = (second, first, *earlier)
    try:
        tables = [_steps(path_of(name)) for name in names]
    except SourceError as error:
        tell(str(error))
        return _UNREADABLE
    sizes = {len(table.ranks) for table in tables}
    if len(sizes) > 1:
        counts = " and ".join(map(str, sorted(sizes)))
        tell(f"The runs have {counts} ranks: a step is not the same work in them.")
    paces = [pace_of(table, name) for table, name in zip(tables, names, strict=True)]
    found = compare_paces(paces[0], [pace for pace in paces[1:] if pace is not None])
    if as_document:
        click.echo(json.dumps({"first": first, "second": second, "steps": found.to_json()}))
    else:
        click.echo(found.sentence)
        if found.share is not None and found.least is not None and found.most is not None:
            sure = f", confidence {found.confidence:.2f}" if found.confidence else ""
            click.echo(
                f"A step takes {found.share:+.1%} (95 %: {found.least:+.1%} to {found.most:+.1%}{sure})."
            )
    return _CANNOT_TELL if found.verdict == "cannot tell" else 0


def _steps(path: Path) -> "StepTable":
    """Return the steps of a run or file.

    Raises
    ------
    SourceError
        It can't be read, or logged none.
    """
    from ..diagnosis.step_file import read_step_file, steps_of_run  # noqa: PLC0415
    from ..telemetry.sample import SourceError  # noqa: PLC0415

    found, notes = steps_of_run(path) if path.is_dir() else read_step_file(path)
    for note in notes:
        tell(note)
    if found is None:
        raise SourceError(f"{path} has no steps.", "Log them: log(step=…, step_s=…, work_s=…).")
    return found
