"""``gipfel diagnose``, ``rules`` and ``compare``: what recorded runs show, and how they differ."""

import json
import os
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gipfel_cluster.messages import GipfelError

from .completion import complete_runs
from .terminal import (
    examples,
    exit_2_if_unreadable,
    print_json,
    print_lines,
    report_checked,
    report_line,
    report_lines,
    table_lines,
)

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis
    from ..diagnosis.pace import PaceComparison
    from ..diagnosis.rules import Hit, Rule
    from ..server.run_comparison import GitRow, RunComparison

_EXAMPLE = """\
\b
A file of rules:
  rules:
    - name: slow-steps
      metric: step_s                  # recorded (`gipfel catalogue`), or logged by the program
      condition: mean above 1.5       # mean, lowest, highest, increase, rate, missing, bits 0x60
      window: 5m
      where: pp=0 & dp=0-3            # optional: only these ranks
      sentence: Steps of stage 0 are slow. Check the data loader.
      link: https://wiki.example.org/slow-steps
"""
_WIDEST_CELL, _WIDTH = 40, 96
_SHOWN_COMMITS, _SHOWN_FILES = 5, 10


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

    Dumps of the flight recorder in the run's newest launch show which ranks call collectives late.
    A rank is only accused beside at least three others of equal role. Where a cause can't be determined, the
    verdict is "unknown" and says why.

    Exit status: 0 it could be read, regardless of the verdicts, 2 it couldn't.
    """
    from ..job.run_diagnosis import diagnose_dumps, diagnose_run  # noqa: PLC0415 - numpy, not for --help
    from .scored_run import resolve_recording  # noqa: PLC0415

    path = resolve_recording(recording)
    if path.is_dir():
        found = diagnose_run(path, roles_file=roles_file)
        late = diagnose_dumps(path, roles_file=roles_file)
        found = replace(found, verdicts=(*found.verdicts, *late))
    else:
        found = _of_file(path, roles_file)
    report_lines(found.notes)
    if as_document:
        click.echo(json.dumps(found.to_json()))
    else:
        _print_verdicts(found)
    return 0


def _of_file(path: Path, roles_file: Path | None) -> "Diagnosis":
    from ..diagnosis import Roles, diagnose  # noqa: PLC0415
    from ..diagnosis.roles import read_roles  # noqa: PLC0415
    from ..diagnosis.steps import read_step_file  # noqa: PLC0415

    roles = read_roles(roles_file) if roles_file else Roles()
    steps, notes = read_step_file(path)
    roles.check(int(rank) for rank in steps.ranks)
    found = diagnose(steps, roles)
    return replace(found, notes=(*notes, *found.notes))


def _print_verdicts(found: "Diagnosis") -> None:
    for verdict in found.verdicts:
        where = verdict.unit or ("" if verdict.stage is None else f"stage {verdict.stage}")
        head = [verdict.kind.replace("_", " "), *([where] if where else [])]
        if verdict.since:
            head.append(f"since {time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(verdict.since / 1e9))}")
        if verdict.confidence:
            head.append(f"confidence {verdict.confidence:.2f}")
        click.echo(", ".join(head))
        print_lines(f"  {line}" for line in textwrap.wrap(verdict.evidence, 96))
    limits = [
        f"a {name.replace('_', ' ')} below {value:.1%}" for name, value in found.resolution.items() if value
    ]
    if not found.verdicts:
        click.echo("Nothing stands out.")
    if found.phases is not None:
        print_lines(found.phases.sentences())
    if limits:
        click.echo(f"What these steps can't show: {', '.join(limits)}.")


@click.group(
    epilog=_EXAMPLE
    + "\n"
    + examples(
        "gipfel rules list",
        "gipfel rules check ~/.gipfel/rules/mine.yaml",
        "gipfel rules run alps-48812",
        "gipfel rules schema > rules.schema.json",
    )
)
def rules() -> None:
    """Apply rules to what is recorded: a metric, a condition on a window of time, and what to say.

    Rules are YAML files in ~/.gipfel/rules, in the directories of $GIPFEL_RULES, in installed packages, and
    Gipfel's own; the first one with a name counts, so a file of yours changes a rule of Gipfel, or disables
    it with `enabled: false`. Every recorder applies them live to the GPUs, the host and the logged metrics of
    its node, and each hit is an event of the run.
    """


@rules.command("list", epilog=examples("gipfel rules list", "gipfel rules list --json"))
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def list_rules(*, as_document: bool) -> int:
    """List the rules that are applied, and where each is from. Exit status: 0; 1 if a file can't be used."""
    from ..rules import known_rules  # noqa: PLC0415 - pydantic, which --help can do without

    known, problems = known_rules(os.environ)
    if as_document:
        listed = [{"origin": e.origin, "file": e.file, **e.entry.model_dump()} for e in known.values()]
        click.echo(json.dumps({"rules": listed, "problems": [each.model_dump() for each in problems]}))
        return 1 if problems else 0
    for each in known.values():
        rule = each.entry
        state = "" if rule.enabled else ", disabled"
        where = f", {rule.where}" if rule.where else ""
        click.echo(f"{rule.name}  ({each.origin}{state})")
        click.echo(f"  {rule.metric}: {rule.condition}, over {rule.window}{where}")
        click.echo(f"  {rule.sentence}")
    for problem in problems:
        report_line(str(problem))
        report_line(f"  {problem.fix}")
    return 1 if problems else 0


@rules.command(epilog=examples("gipfel rules check mine.yaml", "gipfel rules check *.yaml --json"))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def check(*, files: tuple[Path, ...], as_document: bool) -> int:
    """Check files of rules: each mistake is one line with its line number, and the fix on the next.

    Exit status: 0 all can be used; 1 otherwise.
    """
    from ..rules import FILE  # noqa: PLC0415

    return report_checked([(path, *FILE.check(path)) for path in files], as_document=as_document)


@rules.command(epilog=examples("gipfel rules schema > rules.schema.json"))
def schema() -> int:
    """Print the JSON Schema of rules, for editors."""
    from ..rules import FILE  # noqa: PLC0415

    click.echo(json.dumps(FILE.json_schema("Rules of Gipfel"), indent=2))
    return 0


@rules.command(
    "run",
    epilog=examples(
        "gipfel rules run",
        "gipfel rules run alps-48812 --save",
        "gipfel rules run alps-48812 --file mine.yaml",
    ),
)
@click.argument("run", metavar="[RUN]", default="")
@click.option(
    "--file",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Apply the rules of this file instead of all that `gipfel rules list` shows.",
)
@click.option("--save", is_flag=True, help="Add the hits to the events of the run.")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
@exit_2_if_unreadable
def run_rules(run: str, *, files: tuple[Path, ...], save: bool, as_document: bool) -> int:
    """Apply the rules to a run: by default this job's, else your newest.

    A hit names the GPU or host, its ranks, the measured value, the bound, and when it began and ended. The
    window is the same as live; a run that was recorded before a rule was written can be judged too.

    Exit status: 0 the run could be judged, whatever was found; 2 it can't be read, or a file has a mistake.
    """
    from ..rules import run_hits, save_hits  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    chosen = _chosen(files)
    path = resolve_recording(run)
    if not path.is_dir():
        raise GipfelError(f"{path} is not a run folder.", "`gipfel runs` lists yours.")
    hits, notes = run_hits(path, chosen)
    if save:
        added = save_hits(path, hits)
        notes = (*notes, f"{added} of {len(hits)} hits were added to the events of {path.name}.")
    report_lines(notes)
    if as_document:
        return print_json({"rules": len(chosen), "hits": [hit.to_json() for hit in hits]})
    for hit in hits:
        _print_hit(hit)
    if not hits:
        click.echo(f"None of {len(chosen)} rules had a hit.")
    return 0


def _chosen(files: tuple[Path, ...]) -> list["Rule"]:
    from ..rules import FILE, enabled_rules, known_rules  # noqa: PLC0415

    if files:
        return [each.compiled() for path in files for each in FILE.read(path).rules]
    known, problems = known_rules(os.environ)
    report_lines(f"{problem} {problem.fix}" for problem in problems)
    return enabled_rules(known)


def _print_hit(hit: "Hit") -> None:
    began, ended = (time.localtime(each / 1e9) for each in (hit.since_ns, hit.until_ns))
    where = hit.device or (f"rank {hit.ranks[0]}" if hit.ranks else "")
    head = " ".join(part for part in (hit.node, where) if part)
    click.echo(
        f"{time.strftime('%Y-%m-%d %H:%M:%S', began)} to {time.strftime('%H:%M:%S %Z', ended)}  {head}"
    )
    click.echo(f"  {hit.message()}")


@click.command(
    epilog=examples(
        "gipfel compare alps-48812 alps-48910",
        "gipfel compare alps-48910",
        "gipfel compare baseline fused --json",
    )
)
@click.argument("names", metavar="RUN [RUN...]", nargs=-1, required=True, shell_complete=complete_runs())
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def compare(*, names: tuple[str, ...], as_json: bool) -> int:
    """Compare runs with the first one: configuration, commits, score, losses, energy and your metrics.

    RUN is a run's folder or the name that you gave it. Metrics that programs logged, such as tokens_per_s,
    are compared by their means. A difference may be noise: one run of each kind can't show more. With one
    RUN, its steps are compared with those of earlier runs of the same script, size, image and arguments.

    Where ranks logged their steps, log(step=…, step_s=…), a sentence on each run says whether its steps are
    longer than the first run's, how sure that is, and the smallest difference that these runs could show.
    STEPS lists what interrupts them (set-up, checkpoints, evaluations, pauses) with its cost, and changes of
    the pace within a run with the hardware series that moved with them.

    Exit status: 0 compared, 1 there is no such run, 2 wrong usage.
    """
    from ..server.run_comparison import MAX_RUNS, compare_runs  # noqa: PLC0415 - pydantic and numpy

    if len(names) == 1:
        from ..server.earlier_runs import earlier_text  # noqa: PLC0415

        click.echo(earlier_text(names[0], as_json=as_json))
        return 0
    names = tuple(dict.fromkeys(names))
    if not 2 <= len(names) <= MAX_RUNS:
        raise click.UsageError(f"Give 2 to {MAX_RUNS} different runs.")
    found = compare_runs(names)
    if as_json:
        click.echo(found.model_dump_json())
        return 0
    print_lines(comparison_lines(found))
    return 0


def comparison_lines(comparison: "RunComparison") -> Iterator[str]:
    """Yield the text of a comparison: tables of what differs, and the commits of each run."""
    titles = [run.display_name or run.name for run in comparison.runs]
    measured = [
        (
            f"{row.name} ({row.unit})" if row.unit else row.name,
            [_measured(value, change) for value, change in zip(row.values, row.changes, strict=True)],
        )
        for row in comparison.measurements
    ]
    yield from _table("MEASURED", titles, measured)
    yield ""
    paces = [(title, pace) for title, pace in zip(titles, comparison.pace, strict=True) if pace is not None]
    if paces:
        for title, pace in paces:
            yield _pace_line(title, pace)
        yield ""
    for title, steps in zip(titles, comparison.steps, strict=False):
        if sentences := steps.sentences():
            yield f"STEPS  {title}"
            yield from (f"  {line}" for text in sentences for line in textwrap.wrap(text, _WIDTH))
            yield ""
    changed = [
        (row.key, ["-" if value is None else value for value in row.values])
        for row in comparison.configuration
    ]
    if changed:
        yield from _table("CONFIGURATION", titles, changed)
        if comparison.more:
            yield f"{comparison.more} more differences: --json has no more than these, see record.json"
    else:
        yield "CONFIGURATION  no difference"
    yield ""
    for title, row in zip(titles, comparison.git, strict=True):
        yield from _git_lines(title, row)


def _table(heading: str, titles: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    table = [(heading, [*titles]), *((name, [*cells]) for name, cells in rows)]
    cut = [[_cut(name), *(_cut(cell) for cell in cells)] for name, cells in table]
    return table_lines(cut)


def _git_lines(title: str, row: "GitRow") -> Iterator[str]:
    if not row.commit:
        yield f"COMMIT  {title}: not recorded"
        return
    branch = f" on {row.branch}" if row.branch else ""
    changes = f", changed files: {row.changed_files}" if row.changed_files else ""
    if changes and row.same_changes is not None:
        changes += ", the same changes" if row.same_changes else ", other changes"
    yield f"COMMIT  {title}: {row.commit[:12]}{branch}{changes}"
    difference = row.difference
    if difference is None:
        return
    if difference.reason:
        yield f"  {difference.reason}"
    for sign, commits in (("+", difference.commits), ("-", difference.missing_commits)):
        yield from (f"  {sign} {commit}" for commit in commits[:_SHOWN_COMMITS])
        if len(commits) > _SHOWN_COMMITS:
            yield f"  {sign} {len(commits) - _SHOWN_COMMITS} more commits"
    yield from (f"    {file}" for file in difference.files[:_SHOWN_FILES])
    if len(difference.files) > _SHOWN_FILES:
        yield f"    {len(difference.files) - _SHOWN_FILES} more files"


def _pace_line(title: str, pace: "PaceComparison") -> str:
    line = f"PACE  {title}: {pace.sentence}"
    if pace.least is not None and pace.most is not None:
        line += f" 95 %: {pace.least:+.1%} to {pace.most:+.1%}"
        line += f", confidence {pace.confidence:.2f}." if pace.confidence else "."
    return line


def _measured(value: float | None, change: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g} ({change:+.3g})" if change else f"{value:.4g}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST_CELL else f"{text[: _WIDEST_CELL - 1]}\u2026"
