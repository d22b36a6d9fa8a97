"""``gipfel diagnose``: who keeps a job waiting, why, and what changed in it."""

import json
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .completion import complete_runs
from .terminal import examples, report_line

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis

_UNREADABLE = 2


@click.command(
    epilog=examples(
        "gipfel diagnose",
        "gipfel diagnose alps-48812 --roles roles.json",
        "gipfel diagnose steps.jsonl --json",
        """echo '{"0": {"dp": 0, "pp": 0}, "1": {"dp": 1, "pp": 0}}' > roles.json""",
    )
)
@click.argument("recording", metavar="[RUN|FILE]", default="", shell_complete=complete_runs(or_files=True))
@click.option(
    "--roles",
    "roles_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='JSON: rank to its coordinates, {"0": {"dp": 0, "pp": 1}}, and if you like to its "switch", "node", '
    '"nic" and "gpu". By default roles.json of the run.',
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def diagnose(recording: str, *, roles_file: Path | None, as_document: bool) -> int:
    """Name what keeps a job waiting: slow ranks, uneven stages or samples, and changes of its pace.

    RUN is a run folder or its name, by default that of this job, else your newest. Its ranks have logged
    their steps: log(step=…, step_s=…, work_s=…), where work_s is the time that a rank did not wait for
    others. FILE holds JSON lines: {"rank": 0, "step": 1, "time_ns": 0, "step_s": 1.0, "work_s": 0.9}.

    A rank is only accused beside at least three others of equal role. Where a cause can't be determined, the
    verdict is "unknown" and says why.

    Exit status: 0 it could be read, regardless of the verdicts, 2 it couldn't.
    """
    from ..job.run_roles import diagnose_run  # noqa: PLC0415 - numpy, which --help can do without
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    try:
        path = resolve_recording(recording)
        found = diagnose_run(path, roles_file=roles_file) if path.is_dir() else _of_file(path, roles_file)
    except SourceError as error:
        report_line(str(error))
        return _UNREADABLE
    for note in found.notes:
        report_line(note)
    if as_document:
        click.echo(json.dumps(found.to_json()))
    else:
        _print(found)
    return 0


def _of_file(path: Path, roles_file: Path | None) -> "Diagnosis":
    from ..diagnosis import Roles, diagnose  # noqa: PLC0415
    from ..diagnosis.roles import read_roles  # noqa: PLC0415
    from ..diagnosis.step_file import read_step_file  # noqa: PLC0415

    roles = read_roles(roles_file) if roles_file else Roles()
    steps, notes = read_step_file(path)
    roles.check(int(rank) for rank in steps.ranks)
    return _with_notes(diagnose(steps, roles), notes)


def _with_notes(found: "Diagnosis", notes: tuple[str, ...]) -> "Diagnosis":
    from dataclasses import replace  # noqa: PLC0415

    return replace(found, notes=(*notes, *found.notes))


def _print(found: "Diagnosis") -> None:
    for verdict in found.verdicts:
        where = verdict.unit or ("" if verdict.stage is None else f"stage {verdict.stage}")
        head = [verdict.kind.replace("_", " "), *([where] if where else [])]
        if verdict.since:
            head.append(f"since {time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(verdict.since / 1e9))}")
        if verdict.confidence:
            head.append(f"confidence {verdict.confidence:.2f}")
        click.echo(", ".join(head))
        for line in textwrap.wrap(verdict.evidence, 96):
            click.echo(f"  {line}")
    limits = [
        f"a {name.replace('_', ' ')} below {value:.1%}" for name, value in found.resolution.items() if value
    ]
    if not found.verdicts:
        click.echo("Nothing stands out.")
    if found.phases is not None:
        for sentence in found.phases.sentences():
            click.echo(sentence)
    if limits:
        click.echo(f"What these steps can't show: {', '.join(limits)}.")
