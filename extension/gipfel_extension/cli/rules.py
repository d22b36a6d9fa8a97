"""``gipfel rules``: rules of one's own about what is recorded."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_checked, report_line

if TYPE_CHECKING:
    from ..diagnosis.rules import Hit, Rule

_UNREADABLE = 2
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
    from ..rules.rule_file import known_rules  # noqa: PLC0415 - pydantic, which --help can do without

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
    from ..rules.rule_file import FILE  # noqa: PLC0415

    return report_checked([(path, *FILE.check(path)) for path in files], as_document=as_document)


@rules.command(epilog=examples("gipfel rules schema > rules.schema.json"))
def schema() -> int:
    """Print the JSON Schema of rules, for editors."""
    from ..rules.rule_file import FILE  # noqa: PLC0415

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
def run_rules(run: str, *, files: tuple[Path, ...], save: bool, as_document: bool) -> int:
    """Apply the rules to a run: by default this job's, else your newest.

    A hit names the GPU or host, its ranks, the measured value, the bound, and when it began and ended. The
    window is the same as live; a run that was recorded before a rule was written can be judged too.

    Exit status: 0 the run could be judged, whatever was found; 2 it can't be read, or a file has a mistake.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    from ..rules.rule_file import run_hits, save_hits  # noqa: PLC0415
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    try:
        chosen = _chosen(files)
        path = resolve_recording(run)
        if not path.is_dir():
            raise SourceError(f"{path} is not a run folder.", "`gipfel runs` lists yours.")  # noqa: TRY301
        hits, notes = run_hits(path, chosen)
        if save:
            added = save_hits(path, hits)
            notes = (*notes, f"{added} of {len(hits)} hits were added to the events of {path.name}.")
    except (SourceError, GipfelError) as error:
        report_line(str(error))
        return _UNREADABLE
    for note in notes:
        report_line(note)
    if as_document:
        click.echo(json.dumps({"rules": len(chosen), "hits": [hit.to_json() for hit in hits]}))
        return 0
    for hit in hits:
        _print(hit)
    if not hits:
        click.echo(f"None of {len(chosen)} rules had a hit.")
    return 0


def _chosen(files: tuple[Path, ...]) -> list["Rule"]:
    from ..rules.rule_file import FILE, enabled_rules, known_rules  # noqa: PLC0415

    if files:
        return [each.compiled() for path in files for each in FILE.read(path).rules]
    known, problems = known_rules(os.environ)
    for problem in problems:
        report_line(f"{problem} {problem.fix}")
    return enabled_rules(known)


def _print(hit: "Hit") -> None:
    began, ended = (time.localtime(each / 1e9) for each in (hit.since_ns, hit.until_ns))
    where = hit.device or (f"rank {hit.ranks[0]}" if hit.ranks else "")
    head = " ".join(part for part in (hit.node, where) if part)
    click.echo(
        f"{time.strftime('%Y-%m-%d %H:%M:%S', began)} to {time.strftime('%H:%M:%S %Z', ended)}  {head}"
    )
    click.echo(f"  {hit.message()}")
