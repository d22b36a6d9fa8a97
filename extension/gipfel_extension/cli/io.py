"""``gipfel io``: input and output of a run by file system and access pattern, and file system latency."""

import textwrap
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from .completion import complete_runs
from .terminal import (
    UNREADABLE,
    examples,
    print_json,
    print_lines,
    replace_unprintable,
    report_line,
    report_lines,
    table_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..job.run_storage import StorageReport
    from ..storage import FilesRow, Period

_WIDEST = 96


@click.command(
    epilog=examples(
        "gipfel io",
        "gipfel io alps-48812",
        "gipfel io alps-48812 --json | jq -r '.files[] | select(.tier == \"shared\")'",
    )
)
@click.argument("recording", metavar="[RUN]", default="", shell_complete=complete_runs())
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def io(recording: str, *, as_document: bool) -> int:
    """Show what a run read and wrote: files by tier and access pattern, rates by rank, slow file systems.

    RUN is a run folder or its name, by default that of this job, else your newest. Recorders look at the
    open files of the job's own processes every two seconds, count opened files in their directories, and on
    the job's first node run a few small operations on its file systems every 20 seconds.

    "Your job opens many files" and "the file system is slow for everybody" are told apart by the times
    without a heavy load of the job; where there are none, the verdict is "cannot tell". Opened files are
    counted by directory, so that their number is a lower bound. Files that are opened and closed between two
    looks are mostly missed.

    Exit status: 0; 1 nothing was recorded; 2 the run can't be read.
    """
    from ..job.run_storage import storage_report  # noqa: PLC0415 - numpy, which --help can do without
    from .scored_run import resolve_recording  # noqa: PLC0415

    run = resolve_recording(recording)
    if not run.is_dir():
        report_line(f"{run} is not a run folder. `gipfel runs` lists yours.")
        return UNREADABLE
    report = storage_report(run)
    if report is None:
        report_line("This run has no record of its files. It is made while a job runs, on Linux.")
        return 1
    if as_document:
        return print_json(_document(report))
    print_lines(_lines(report))
    report_lines(report.notes)
    return 0


def _document(report: "StorageReport") -> dict[str, object]:
    return {
        "verdicts": [each.to_json() for each in report.verdicts],
        "advice": list(report.advice),
        "files": [dict(vars(each)) for each in report.record.files],
        "ranks": _ranks(report.record.periods),
        "mounts": [
            {"mount": each.mount, "probes": each.probes, "slow": each.slow, "opens": each.opens,
             "light_ms": each.light_ms, "heavy_ms": each.heavy_ms}
            for each in report.judgements
        ],
        "notes": list(report.notes),
    }  # fmt: skip


def _lines(report: "StorageReport") -> "Iterable[str]":
    for verdict in report.verdicts:
        yield from textwrap.wrap(verdict.evidence, _WIDEST)
    for each in report.advice:
        yield from textwrap.wrap(
            each, _WIDEST, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    if report.verdicts or report.advice:
        yield ""
    if report.record.files:
        yield from _file_lines(report.record.files)
        yield ""
    rows = [
        [
            "" if each["rank"] is None else str(each["rank"]),
            f"{each['read'] / 1e6:,.1f}",
            f"{each['written'] / 1e6:,.1f}",
            f"{each['reads']:,.0f}",
            f"{each['writes']:,.0f}",
            f"{each['blocked']:.0%}",
        ]
        for each in _ranks(report.record.periods)
    ]
    if rows:
        titles = ["RANK", "READ MB/s", "WRITTEN MB/s", "READS/s", "WRITES/s", "WAITING"]
        yield from table_lines([titles, *rows], (0, 1, 2, 3, 4, 5))
        yield ""
    probed = [
        [
            each.mount,
            str(each.probes),
            "-" if each.light_ms is None else f"{each.light_ms:.3g}",
            "-" if each.heavy_ms is None else f"{each.heavy_ms:.3g}",
            "-" if each.opens is None else f"{each.opens:,.0f}",
        ]
        for each in report.judgements
    ]
    if probed:
        titles = ["FILE SYSTEM", "PROBES", "ANSWERS IN ms", "UNDER LOAD ms", "OPENS/s UNDER LOAD"]
        yield from table_lines([titles, *probed], (1, 2, 3, 4))


def _file_lines(files: "Sequence[FilesRow]") -> list[str]:
    from ..telemetry.sources.file_systems import CLASSES  # noqa: PLC0415
    from .runs import size_text  # noqa: PLC0415

    rows = [
        [
            replace_unprintable(each.directory),
            CLASSES.get(each.kind, each.kind),
            f"{each.tier} ({each.filesystem})",
            each.pattern + (", written" if each.written else ""),
            str(each.files),
            size_text(each.bytes),
            size_text(each.largest),
            "-" if each.stripes is None else "all" if each.stripes < 0 else str(each.stripes),
            ",".join(map(str, each.ranks[:4])) + ("…" if len(each.ranks) > 4 else ""),
            each.node,
        ]
        for each in files
    ]
    titles = ["DIRECTORY", "CLASS", "TIER", "ACCESS", "SEEN", "SIZE", "LARGEST", "STRIPES", "RANKS", "NODE"]
    return table_lines([titles, *rows], (4, 5, 6, 7))


def _ranks(periods: "Sequence[Period]") -> list[dict[str, Any]]:
    """Return the mean rates of each rank over the time in which it was recorded."""
    names = ("read", "written", "storage_read", "storage_written", "reads", "writes", "blocked")
    sums: dict[int | None, dict[str, float]] = defaultdict(lambda: dict.fromkeys(names, 0.0))
    seconds: dict[int | None, float] = defaultdict(float)
    for period in periods:
        for each in period.ranks:
            seconds[each.rank] += period.seconds
            for name in names:
                sums[each.rank][name] += getattr(each, name) * period.seconds
    ordered = sorted(sums, key=lambda rank: (rank is None, rank or 0))
    return [
        {"rank": rank, **{name: round(value / seconds[rank], 3) for name, value in sums[rank].items()}}
        for rank in ordered
    ]
