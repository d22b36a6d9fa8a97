"""``gipfel data stage`` and ``status``: copies of data sets on the nodes of a job."""

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.process.fork import allow_forks
from gipfel_cluster.staged import OBJECTS

from .runs import size_text
from .terminal import (
    INTERRUPTED,
    LiveTable,
    examples,
    print_json,
    print_lines,
    progress_bar,
    report_line,
    table_lines,
)

if TYPE_CHECKING:
    from ..data.stage.model import NodeCopy, TransferState

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_MAX_ROWS = 16


def parse_size(text: str) -> int:
    """Return a number of bytes such as ``20G``; the units are powers of 1024.

    Raises
    ------
    ValueError
        The text is not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a size such as 500M or 20G")
    return int(float(found[1]) * 1024 ** ("", "K", "M", "G", "T").index(found[2].upper()))


def parse_seconds(text: str) -> int:
    """Return the seconds of a time such as ``90s``, ``5m`` or one of Slurm's forms, but at least 1.

    Raises
    ------
    ValueError
        The text is not a time, or not limited.
    """
    from gipfel_cluster.scheduler.notation import parse_duration, slurm_time  # noqa: PLC0415

    if not (seconds := parse_duration(slurm_time(text))):
        raise ValueError("not a time such as 90s or 5m")
    return seconds


@click.command(
    epilog=examples(
        "gipfel data stage /scratch/imagenet.sqsh",
        "gipfel data stage shared:imagenet.sqsh        below the site's storage class shared",
        "gipfel data stage /scratch/imagenet.sqsh /scratch/model --to memory --max-memory 40G",
        "gipfel data stage s3://sets/imagenet.sqsh     in containers /s3/sets/imagenet.sqsh",
        "gipfel data stage /scratch/imagenet.sqsh --on-failure continue",
        "gipfel stop transfer:1           removes the copies",
    )
)
@click.argument("data", metavar="DATA…", nargs=-1, required=True)
@click.option(
    "--to",
    "tier",
    type=click.Choice(["auto", "nvme", "memory"]),
    default="auto",
    show_default=True,
    help="auto is the local disk if the data fits there, else memory.",
)
@click.option(
    "--nodes",
    default="all",
    show_default=True,
    metavar="LIST",
    help="Nodes of this job, such as nid[0001-0004].",
)
@click.option(
    "--on-failure",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="continue leaves a node that fails on the shared file system.",
)
@click.option(
    "--stall-limit",
    type=parse_seconds,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="A node that makes no progress for this long has failed.",
)
@click.option(
    "--max-memory",
    type=parse_size,
    metavar="SIZE",
    help="Limit of all your copies in a node's memory; by default half of what is free.",
)
@click.option(
    "--max-disk",
    type=parse_size,
    metavar="SIZE",
    help="Limit of all your copies on a node's disk; by default 90 % of the free space.",
)
@click.option("--no-wait", is_flag=True, help="Return at once; `gipfel ps` shows the progress.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def stage(
    *,
    data: tuple[str, ...],
    tier: str,
    nodes: str,
    on_failure: str,
    stall_limit: float,
    max_memory: int | None,
    max_disk: int | None,
    no_wait: bool,
    as_json: bool,
) -> int:
    """Copy files to every node of this job, read once from the shared file system.

    The nodes pass the data on among each other and check it by hash. Containers that start later in this
    job get the copies at the same paths. The copies are kept until the job ends or `gipfel stop` removes
    them, and other jobs of yours on a node use them, too.

    Objects of S3 need AWS_ENDPOINT_URL for another service than Amazon's, and AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials with mode 0600.

    Exit status: 0 staged, 1 not.
    """
    from gipfel_cluster.scheduler.notation import expand_hostlist  # noqa: PLC0415

    from ..data.stage.model import StageSpec, list_items  # noqa: PLC0415
    from ..data.stage.transfer import start_staging  # noqa: PLC0415

    try:
        chosen = () if nodes == "all" else tuple(expand_hostlist(nodes))
        spec = StageSpec(
            data=tuple(_source(each) for each in data),
            to=tier,
            nodes=chosen,
            on_failure=on_failure,
            silent_s=stall_limit,
            max_memory=max_memory,
            max_disk=max_disk,
        )
    except ValueError as error:
        raise click.UsageError(f"The options can't be used: {str(error).splitlines()[0]}") from error
    # Report a wrong path at once, instead of from the supervisor.
    list_items(spec)
    allow_forks()
    folder = start_staging(spec, os.environ)
    if no_wait:
        click.echo(json.dumps({"id": folder.name, "folder": str(folder)}) if as_json else folder.name)
        return 0
    return _follow(folder, as_json=as_json)


def _source(text: str) -> str:
    """Return the absolute path for a path or a ``CLASS:PATH`` below a storage class."""
    from gipfel_cluster.storage_classes import resolve_path  # noqa: PLC0415 - pydantic

    if text.startswith(OBJECTS):
        from ..data.s3 import split_address  # noqa: PLC0415

        split_address(text)
        return text
    return str(Path(resolve_path(text, os.environ)).expanduser().absolute())


def _follow(folder: Path, *, as_json: bool) -> int:
    from gipfel_cluster.workloads.directory import STOP  # noqa: PLC0415

    from ..data.stage.transfer import wait_until_staged  # noqa: PLC0415

    table = LiveTable() if LiveTable.is_supported() and not as_json else None
    told = ""

    def show(state: "TransferState") -> None:
        nonlocal told
        if table is not None:
            table.draw(progress_lines(state))
        elif not as_json and state.copies and (text := _doubts(state)) and text != told:
            told = text
            report_line(text)

    try:
        state = wait_until_staged(folder, show)
    except KeyboardInterrupt:
        (folder / STOP).touch(mode=0o600)
        report_line("interrupted; the copies are removed.")
        return INTERRUPTED
    if as_json:
        found = {
            "id": folder.name,
            "folder": str(folder),
            "shared_reads": state.shared_reads,
            **state.model_dump(mode="json"),
        }
        click.echo(json.dumps(found))
    elif state.ready and not state.ended:
        seconds = ((state.ready_ns or 0) - (state.started_ns or 0)) / 1e9
        place = "S3" if all(each.startswith(OBJECTS) for each in state.data) else "the shared file system"
        report_line(
            f"transfer {folder.name}: {size_text(state.total)} {state.reason} "
            f"{size_text(state.shared_reads)} were read from {place}, in {seconds:.1f} s."
        )
    else:
        report_line(f"transfer {folder.name} {state.outcome or state.phase}: {state.reason}")
    return 0 if state.ready and not state.ended else 1


def progress_lines(state: "TransferState") -> list[str]:
    """Return the lines of a progress table: the total, then the nodes that need most time."""
    if not state.copies:
        return [f"{state.name}: {state.reason or state.phase}"]
    usable = [each for each in state.copies if each.phase != "failed"]
    done = sum(each.done for each in usable)
    wanted = state.total * len(usable)
    amount = f"{size_text(done)} of {size_text(wanted)}"
    rows = [["all nodes", progress_bar(done, wanted), amount, _left(state, done, wanted)]]
    worst = sorted(state.copies, key=lambda each: (each.phase == "staged", each.done))
    rows += [
        [each.node, progress_bar(each.done, state.total), each.tier, each.problem or each.phase]
        for each in worst[:_MAX_ROWS]
    ]
    if len(worst) > _MAX_ROWS:
        rows.append([f"and {len(worst) - _MAX_ROWS} more nodes", "", "", ""])
    return table_lines(rows)


def _left(state: "TransferState", done: int, wanted: int) -> str:
    seconds = time.time() - (state.started_ns or time.time_ns()) / 1e9
    reused = sum(each.reused for each in state.copies)
    rate = (done - reused) / seconds if seconds > 1 else 0.0
    if not rate or done >= wanted:
        return ""
    return f"{size_text(rate)}/s, {(wanted - done) / rate:.0f} s left"


def _doubts(state: "TransferState") -> str:
    found: Sequence[NodeCopy] = [each for each in state.copies if each.problem]
    return "; ".join(f"{each.node}: {each.problem}" for each in found[:4])


@click.command(epilog=examples("gipfel data status", "gipfel data status --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def status(*, as_json: bool) -> int:
    """Show what is staged: your stagings that run, by node, all copies on this node, and storage classes.

    The classes are configured by the variables GIPFEL_STORAGE_FAST, _SHARED and _KEEP, by
    ~/.gipfel/storage.yaml, and by the site's file.

    Exit status: 0 shown.
    """
    from gipfel_cluster.staged import staged_paths  # noqa: PLC0415
    from gipfel_cluster.storage_classes import CLASS_NAMES, StorageClasses, node_stores  # noqa: PLC0415

    from ..data.stage.transfer import running_stagings  # noqa: PLC0415

    stagings = running_stagings(os.environ)
    local = list(staged_paths(node_stores(os.environ)))
    classes = StorageClasses.load(os.environ)
    places = {each: classes.directory(each, os.environ) for each in CLASS_NAMES}
    if as_json:
        where = {name: str(each) if each else None for name, each in places.items()}
        here = [{"tier": tier, **each._asdict(), "current": each.is_current()} for tier, each in local]
        document = {name: state.model_dump(mode="json") for name, state in stagings.items()}
        return print_json({"stagings": document, "node": here, "classes": where})
    rows = [["TRANSFER", "NODE", "TIER", "STATE", "SIZE", "DATA"]]
    for name, state in stagings.items():
        names = ", ".join(state.data)
        rows += [
            [name, each.node, each.tier, each.phase, size_text(each.done), names] for each in state.copies
        ]
    for tier, each in local:
        current = "staged" if each.is_current() else "outdated"
        job = f"job {each.job}" if each.job else ""
        path = f"{each.path} ({each.copy})" if each.path.startswith(OBJECTS) else each.path
        rows.append([job, "this node", tier, current, size_text(each.size), path])
    if len(rows) == 1:
        report_line("Nothing is staged. `gipfel data stage DATA` copies data to the nodes of a job.")
    print_lines(table_lines(rows, right=(4,)) if len(rows) > 1 else ())
    click.echo()
    for line in table_lines(
        [["CLASS", "DIRECTORY", "FROM"]]
        + [
            [name, str(each or "no local disk is known"), classes.origins.get(name, "default")]
            for name, each in places.items()
        ]
    ):
        click.echo(line)
    return 0


def stage_of_options(options: dict[str, Any]) -> dict[str, Any] | None:
    """Remove the staging options from a command's options and return them; None if no data is given."""
    data = tuple(_source(each) for each in options.pop("stage", ()))
    tier, on_failure = options.pop("stage_to", "auto"), options.pop("stage_on_failure", "continue")
    return {"data": data, "to": tier, "on_failure": on_failure} if data else None


def stage_options(command: Any) -> Any:
    """Decorate a command with the staging options."""
    for option in (
        click.option(
            "--stage-on-failure",
            type=click.Choice(["continue", "stop"]),
            default="continue",
            show_default=True,
            help="A node that can't be staged reads the shared file system, or ends the start.",
        ),
        click.option(
            "--stage-to",
            type=click.Choice(["auto", "nvme", "memory"]),
            default="auto",
            show_default=True,
            help="Where --stage copies to; auto is the local disk if the data fits there, else memory.",
        ),
        click.option(
            "--stage",
            "stage",
            multiple=True,
            metavar="DATA",
            help="Copy a file or directory to every node first, read once from the shared file system; in "
            "containers it has the same path.",
        ),
    ):
        command = option(command)
    return command
