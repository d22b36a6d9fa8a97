"""``gipfel scan``: models, notebooks and packages, before they are loaded or started."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from ..gate.model import ScanDocument, Severity

_DAY_S = 86400.0


@click.command(
    epilog=examples(
        "gipfel scan model.pt",
        "gipfel scan ~/models --fail-on critical",
        "gipfel scan image.sqsh --advisories /shared/osv --json",
    )
)
@click.argument(
    "targets", metavar="MODEL|IMAGE|DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--fail-on",
    "bound",
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
    "--max-age", "days", type=click.FloatRange(min=0), default=7.0, show_default=True, metavar="DAYS",
    help="Maximum age of the advisories; with older ones, packages are not judged.",
)  # fmt: skip
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def scan(
    targets: tuple[Path, ...], *, bound: "Severity", advisories: Path | None, days: float, as_document: bool
) -> int:
    """Scan models, notebooks and images for code that loading runs, and known vulnerabilities.

    Nothing is loaded or executed. Each file gets a verdict: plain (values only), needs code (loading it
    runs code of the named libraries), malicious, or not understood. Packages are read
    out of directories, SquashFS images and OCI archives, and compared with a local mirror of OSV.

    Exit status: 0 nothing at or above --fail-on, 1 found, 2 something could not be judged.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    from ..gate.scan.targets import scan_targets  # noqa: PLC0415

    try:
        document = scan_targets(targets, advisories=advisories, max_age_s=days * _DAY_S)
    except (GipfelError, OSError) as error:
        report_line(str(error))
        return 2
    if as_document:
        click.echo(document.model_dump_json())
    else:
        _print(document)
    return document.exit_status(bound)


def _print(document: "ScanDocument") -> None:
    for item in document.items:
        if item.verdict != "plain" or item.findings:
            click.echo(f"{item.path}: {item.verdict}")
        for finding in item.findings:
            click.echo(f"  {finding.severity}: {finding.message}")
            if finding.fix:
                click.echo(f"    {finding.fix}")
    for each in document.vulnerabilities:
        fix = f"fixed in {each.fixed}" if each.fixed else "no fixed version"
        click.echo(
            f"{each.package} {each.version}: {each.severity}: {each.id}, {fix}. {each.summary}".rstrip()
        )
    for line in document.not_judged:
        report_line(f"not judged: {line}")
    click.echo(_summary(document))


def _summary(document: "ScanDocument") -> str:
    plain = sum(item.verdict == "plain" for item in document.items)
    parts = [f"{len(document.items)} models and notebooks, {plain} of them plain"]
    if document.other_files:
        parts.append(f"{document.other_files} files of other kinds")
    if document.packages:
        parts.append(f"{len(document.packages)} packages, {len(document.vulnerabilities)} vulnerabilities")
    if document.advisories_age_s is not None:
        parts.append(f"advisories {document.advisories_age_s / _DAY_S:.1f} days old")
    return "; ".join(parts) + "."
