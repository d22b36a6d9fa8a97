"""``gipfel scan`` judges models and packages before they are loaded.

``gipfel model`` converts checkpoints to files that can't hold code.
"""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gipfel_cluster.messages import GipfelError, one_line, pluralize

from .terminal import examples, report_line, report_lines

if TYPE_CHECKING:
    from ..gate.kept import KeptScan
    from ..gate.model import ScanDocument, Severity

_DAY_S = 86400.0


@click.command(
    epilog=examples(
        "gipfel scan model.pt",
        "gipfel scan ~/models --fail-on critical",
        "gipfel scan image.sqsh --advisories /shared/osv --json",
        "gipfel scan --advisories /shared/osv --update-advisories https://osv-vulnerabilities.storage.googleapis.com",
    )
)
@click.argument("targets", metavar="MODEL|IMAGE|DIR...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--fail-on",
    type=click.Choice(["low", "medium", "high", "critical"]),
    default="high",
    show_default=True,
    help="Lowest severity for which the exit status is 1.",
)
@click.option(
    "--advisories",
    type=click.Path(path_type=Path),
    envvar="GIPFEL_ADVISORIES",
    help="Local mirror of OSV, <dir>/<ecosystem>/all.zip; default: GIPFEL_ADVISORIES.",
)
@click.option(
    "--update-advisories",
    "source",
    metavar="DIR|URL",
    help="Update the mirror from <source>/<ecosystem>/all.zip first.",
)
@click.option(
    "--ecosystem",
    "ecosystems",
    multiple=True,
    metavar="NAME",
    help="Update only this ecosystem of OSV, such as PyPI; may be repeated.",
)
@click.option(
    "--max-age", "max_age_days", type=click.FloatRange(min=0), default=7.0, show_default=True, metavar="DAYS",
    help="Maximum age of the advisories; if they are older, packages are not judged.",
)  # fmt: skip
@click.option(
    "--exceptions",
    "exceptions_file",
    type=click.Path(path_type=Path),
    envvar="GIPFEL_SCAN_EXCEPTIONS",
    help="TOML file of accepted findings, each with reason and last day; default: GIPFEL_SCAN_EXCEPTIONS.",
)
@click.option(
    "--index",
    "index_root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    envvar="GIPFEL_PACKAGE_INDEX",
    help="Local mirror of a public package index, DIR/simple/NAME/index.json or .html, for withdrawn "
    "releases; default: GIPFEL_PACKAGE_INDEX.",
)
@click.option(
    "--own",
    metavar="NAMES",
    default="",
    envvar="GIPFEL_OWN_PACKAGES",
    help="Names of packages that only the site publishes, such as 'acme-* @acme/*'; they are reported "
    "where they may come from a public index; default: GIPFEL_OWN_PACKAGES.",
)
@click.option(
    "--packages-only",
    is_flag=True,
    help="In directories and images, judge only installed packages; skip models, notebooks and other files.",
)
@click.option("--no-cache", is_flag=True, help="Scan again what has not changed since the last scan.")
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def scan(
    targets: tuple[Path, ...],
    *,
    fail_on: "Severity",
    advisories: Path | None,
    source: str | None,
    ecosystems: tuple[str, ...],
    max_age_days: float,
    exceptions_file: Path | None,
    index_root: Path | None,
    own: str,
    packages_only: bool,
    no_cache: bool,
    as_document: bool,
) -> int:
    """Scan models, notebooks and images for code that loading them would run, and for known vulnerabilities.

    Nothing is loaded or executed. Each file gets a verdict: plain (values only), needs code (loading it
    runs code of the named libraries), malicious, or not understood. Packages are read
    out of directories, SquashFS images and OCI archives, and compared with a local mirror of OSV.
    All files are searched for keys, tokens, set-uid programs and files that every user can change, and it
    is looked up whether the image's Linux distribution is still supported. What was not scanned is listed.

    Results of files are kept in ~/.cache/gipfel/scans until the file or the rules change.

    Exit status: 0 nothing at or above --fail-on, 1 found, 2 something could not be judged.
    """
    from gipfel_cluster.image_digest import DIGESTS  # noqa: PLC0415
    from gipfel_cluster.runs import user_cache  # noqa: PLC0415

    from ..gate.kept import KeptScan, KeptScans  # noqa: PLC0415

    if not targets and source is None:
        raise click.UsageError("Missing argument 'MODEL|IMAGE|DIR...'.")
    kept_scans, folder = None if no_cache else KeptScans(user_cache("scans")), user_cache("scans")
    words = ("packages" if packages_only else "all", str(index_root), own, str(max_age_days))
    key = kept_scans.key(targets, advisories, exceptions_file, words) if kept_scans and not source else ""
    kept = kept_scans.read(key, max_age_days * _DAY_S) if kept_scans and key else None
    if kept is not None:
        _print_kept(kept, as_document=as_document)
        return kept.statuses[fail_on]

    # The rest imports pydantic, which a kept result can do without.
    from ..gate.model import SEVERITIES  # noqa: PLC0415
    from ..gate.package_index import PackageIndex  # noqa: PLC0415
    from ..gate.scan.cache import ScanCache  # noqa: PLC0415
    from ..gate.scan.targets import Exceptions, read_exceptions, scan_targets  # noqa: PLC0415

    try:
        updated = source is None or _update(advisories, source, ecosystems)
        if not targets:
            return 0 if updated else 2
        today = datetime.now(UTC).date()
        exceptions = (
            read_exceptions(exceptions_file, today=today) if exceptions_file else Exceptions(today=today)
        )
        cache = ScanCache(None) if no_cache else ScanCache(folder, user_cache(DIGESTS))
        document = scan_targets(
            targets,
            advisories=advisories,
            max_age_s=max_age_days * _DAY_S,
            exceptions=exceptions,
            cache=cache,
            packages_only=packages_only,
            index=PackageIndex(index_root, own.replace(",", " ").split()),
        )
    except (GipfelError, OSError) as error:
        report_line(str(error))
        return 2
    age_s = document.advisories_age_s
    found = KeptScan(
        lines=(*((True, line) for line in exceptions.notes), *_lines(document)),
        document=document.model_dump_json(),
        statuses={bound: document.exit_status(bound) for bound in SEVERITIES},
        newest_s=None if age_s is None else time.time() - age_s,
    )
    if kept_scans and key and cache.complete:
        kept_scans.keep(key, found)
    _print_kept(found, as_document=as_document)
    return found.statuses[fail_on]


def _print_kept(found: "KeptScan", *, as_document: bool) -> None:
    if as_document:
        click.echo(found.to_json())
        return
    *lines, (_, summary) = found.lines
    for error, line in lines:
        if error:
            report_line(line)
        else:
            click.echo(line)
    age = "" if found.age_s is None else f"; advisories {found.age_s / _DAY_S:.1f} days old"
    click.echo(f"{summary}{age}.")


def _update(advisories: Path | None, source: str, ecosystems: tuple[str, ...]) -> bool:
    """Update the mirror; return whether every ecosystem was updated."""
    from ..gate.advisories.update import update_mirror  # noqa: PLC0415

    if advisories is None:
        raise GipfelError(
            "There is no mirror to update.", "Name its directory: --advisories DIR or GIPFEL_ADVISORIES."
        )
    updated, problems = update_mirror(advisories, source, ecosystems)
    for each in updated:
        age = max(0.0, time.time() - each.newest_s) / _DAY_S
        report_line(f"{each.ecosystem}: {pluralize(each.records, 'record')}, the newest {age:.1f} days old.")
    report_lines(problems)
    return not problems


def _lines(document: "ScanDocument") -> Iterator[tuple[bool, str]]:
    """Yield the lines of a result, each with whether it goes to stderr; the last one is the summary."""

    def line(text: str, indent: str = "") -> tuple[bool, str]:
        # A file name must not add lines or control the terminal.
        return False, f"{indent}{one_line(text)}"

    for item in document.items:
        if item.verdict != "plain" or item.findings:
            yield line(f"{item.path}: {item.verdict}")
        for finding in item.findings:
            yield line(f"{finding.severity}: {finding.message}", "  ")
            if finding.fix:
                yield line(finding.fix, "    ")
    for each in document.vulnerabilities:
        fix = f"fixed in {each.fixed}" if each.fixed else "no fixed version"
        yield line(f"{each.package} {each.version}: {each.severity}: {each.id}, {fix}. {each.summary}")
        yield line(each.fix, "  ")
    for entry in document.excepted:
        yield line(
            f"excepted by {entry.by} until {entry.until}: {entry.rule} of {entry.path}: {entry.reason}"
        )
    for text in document.not_judged:
        yield True, f"could not be judged: {text}"
    for text in document.not_scanned:
        yield line(f"not scanned: {text}")
    yield line(_summary(document))


def _summary(document: "ScanDocument") -> str:
    plain = sum(item.verdict == "plain" for item in document.items)
    parts = [f"{pluralize(len(document.items), 'file')} judged, {plain} of them plain"]
    if document.other_files:
        parts.append(f"{pluralize(document.other_files, 'file')} of other kinds")
    if document.packages:
        found = len(document.vulnerabilities)
        vulnerabilities = f", {found} {'vulnerability' if found == 1 else 'vulnerabilities'}"
        if not document.advisories_complete:
            # Never "0 vulnerabilities" where nothing, or not everything, could be compared.
            others = ", and others could not be judged"
            vulnerabilities = (
                vulnerabilities + others if found else ", whose vulnerabilities could not be judged"
            )
        parts.append(f"{pluralize(len(document.packages), 'package')}{vulnerabilities}")
    return "; ".join(parts)


@click.group(epilog=examples("gipfel model convert checkpoint.pt -o weights.safetensors"))
def model() -> None:
    """Convert checkpoints of others, so that loading them can't run code; see also `gipfel scan`."""


@model.command(
    epilog=examples(
        "gipfel model convert pytorch_model.bin",
        "gipfel model convert checkpoint.pt -o weights.safetensors",
    )
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="By default FILE with the ending .safetensors; it must not exist.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def convert(source: Path, *, output: Path | None, as_document: bool) -> int:
    """Convert a checkpoint of torch or NumPy to safetensors, which holds tensors and nothing else.

    It is scanned first; a malicious one is not opened. It is read in a sandbox (bubblewrap) without network,
    without writable files and without your home directory, by torch's loader for weights only. Values that
    are not tensors, such as a step number, are counted and left out.

    Exit status: 0 converted, 1 not.
    """
    from ..gate.models.convert import convert as convert_model  # noqa: PLC0415 - --help can do without

    target = output or source.with_suffix(".safetensors")
    made = convert_model(source, target, os.environ)
    if as_document:
        click.echo(made.model_dump_json())
        return 0
    report_line(f"{made.path}: {pluralize(made.tensors, 'tensor')}, {made.size / 1e6:.1f} MB.")
    if made.not_tensors:
        report_line(
            f"Left out, since they are not tensors: {made.not_tensors}, such as {made.examples[:100]}."
        )
    return 0
