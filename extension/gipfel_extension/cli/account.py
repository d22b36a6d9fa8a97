"""``gipfel doctor``, ``quota`` and ``runtime``: checks, limits and set-up of an account on a cluster."""

import json
import os
import sys
from datetime import datetime
from pathlib import Path

import click

from .terminal import can_write, examples, print_json, report_line


@click.command(
    epilog=examples(
        "gipfel doctor",
        "gipfel doctor --operator",
        "gipfel doctor --json",
    )
)
@click.option(
    "--operator", is_flag=True, help="Also check a hub's requirements: proxy, users, addresses, state."
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def doctor(*, operator: bool, as_document: bool) -> int:
    """Check this machine, its cluster, your account and environment, and list what is missing.

    For each missing item it shows the command or setting that fixes it. It changes nothing.

    Exit status: 0 nothing required is missing, 1 something is.
    """
    from ..doctor import probes  # noqa: PLC0415
    from ..doctor.examine import (  # noqa: PLC0415
        STATUS_COLOURS,
        Machine,
        examine,
        format_lines,
    )

    machine = Machine.local(os.environ)
    examination = examine(machine, probes(machine, operator=operator))
    if as_document:
        click.echo(json.dumps({"ok": examination.ok, **examination.model_dump(mode="json")}))
        return 0 if examination.ok else 1
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line, status in format_lines(examination, plain=not can_write("✓✗–→", sys.stdout)):  # noqa: RUF001 - a dash
        colour = STATUS_COLOURS[status] if status and coloured else ""
        click.echo(f"  {click.style(line[2], fg=colour)}{line[3:]}" if colour else line)
    return 0 if examination.ok else 1


@click.command(epilog=examples("gipfel quota", "gipfel quota --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def quota(*, as_json: bool) -> int:
    """Show what limits your jobs, and what is left: GPU hours, GPUs, nodes and jobs at once, time per job.

    Limits are those of your accounts, the accounts above them, and their QoS. A job that exceeds one of them
    is accepted by Slurm and never starts; the hub's form refuses it. Waits are those of your jobs of the last
    90 days, by partition and number of GPUs. The energy of this month is that of your jobs where Slurm
    measures it, else that of your recorded runs. Where the site's command for storage is in
    $GIPFEL_STORAGE_QUOTA, its output comes last.

    Exit status: 0; 1 if the scheduler does not answer.
    """
    from gipfel_cluster.scheduler.machine import run_sync  # noqa: PLC0415 - pydantic
    from gipfel_cluster.workloads.quota import own_quota, own_sections, recorded_energy  # noqa: PLC0415

    found, storage, now = run_sync(own_quota(os.environ)), _storage(), datetime.now().astimezone()
    if as_json:
        document = None if found is None else found.model_dump(mode="json")
        energy = recorded_energy(os.environ, now)
        return print_json({"scheduler": document, "energy": energy, "storage": storage})
    if found is None:
        click.echo("There is no Slurm here: jobs run on this machine without limits.")
    for section in own_sections(found, os.environ, now):
        title, separator, rest = section.title.partition(" ")
        click.echo("\n".join([f"{title.upper()}{separator}{rest}", *(f"  {line}" for line in section.lines)]))
    if storage:
        click.echo(f"\nSTORAGE\n{storage}")
    return 0


def _storage() -> str:
    """Return the output of the site's command; empty without one."""
    if not os.environ.get("GIPFEL_STORAGE_QUOTA"):
        return ""
    from ..job.checkpoints import storage_quota  # noqa: PLC0415 - numpy

    text, problem = storage_quota(os.environ)
    if problem:
        report_line(problem)
    return text


@click.group(
    epilog=examples(
        "gipfel runtime build ~/.gipfel/runtime",
    )
)
def runtime() -> None:
    """Build the runtime: a directory or file with Python, JupyterLab and libraries that any image can run."""


@runtime.command(
    epilog=examples(
        "gipfel runtime build ~/.gipfel/runtime",
        "gipfel runtime build /shared/gipfel/2026-1.sqsh --prefix /opt/gipfel",
        "gipfel runtime build ~/.gipfel/runtime --kernels 3.9,3.12",
    )
)
@click.argument("path", metavar="DIR|FILE.sqsh", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--prefix",
    metavar="P",
    help="Absolute path at which it will be mounted; by default that of DIR, and /opt/gipfel for a file.",
)
@click.option(
    "--kernels",
    default="all",
    show_default=True,
    metavar="VERSIONS",
    help="Python versions of images that can run kernels: all, none, or versions such as 3.9,3.12. Their "
    "packages are downloaded once; without a network, the missing ones are listed.",
)
def build(path: Path, prefix: str | None, kernels: str) -> int:
    """Build a runtime from the installed packages: a directory DIR, or one SquashFS file.

    The result is created atomically; repeating a build ends immediately. Put it where every node and every
    user can read it. A file spares a parallel file system thousands of small files, but the job's part
    outside the container then needs another Python on every node.
    """
    from gipfel_cluster.runtime import build_runtime  # noqa: PLC0415

    built = build_runtime(path, prefix=prefix, kernels=_versions(kernels), progress=report_line)
    report_line(f"the runtime is ready, version {built.version}, for {built.arch}")
    click.echo(built.root)
    return 0


def _versions(text: str) -> tuple[str, ...]:
    from gipfel_cluster.runtime.kernels import VERSIONS  # noqa: PLC0415

    named = {"all": VERSIONS, "none": ()}.get(text)
    wanted = tuple(each.strip() for each in text.split(",")) if named is None else named
    unknown = [each for each in wanted if each not in VERSIONS]
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is none of {', '.join(VERSIONS)}, all, none.", param_hint="--kernels"
        )
    return wanted
