"""``gipfel image``: build images for EDFs, show how they were built, verify and compare them."""

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError, one_line, pluralize

from .terminal import (
    PATH,
    UNREADABLE,
    examples,
    exit_2_if_unreadable,
    json_option,
    print_json,
    print_lines,
    report_line,
    report_lines,
    table_lines,
)

if TYPE_CHECKING:
    from ..images.build import BuildJob, BuildSpec


@click.group(
    epilog=examples(
        "gipfel image build . -o ~/images/my.sqsh",
        "gipfel image show ~/images/my.sqsh",
        "gipfel image verify ~/images/my.sqsh --signers /etc/gipfel/signers",
        "gipfel image diff old.sqsh new.sqsh",
    )
)
def image() -> None:
    """Build images for EDFs, show what they are made of, and verify and compare them."""


@image.command(
    epilog=examples(
        "gipfel image build . -o ~/images/my.sqsh",
        "gipfel image build Containerfile -o my.sqsh --base debian:bookworm,python3,python3-pip",
        "gipfel image build . -o my.sqsh --base pytorch.sqsh --no-network",
        "gipfel image build . -o /scratch/my.sqsh --partition normal --memory 32G --time 30:00",
    )
)
@click.argument("source", metavar="CONTAINERFILE|DIR", type=PATH, required=False)
@click.option("-o", "--output", "target", metavar="NAME.sqsh", type=PATH, help="The image to write.")
@click.option(
    "--base",
    default="",
    metavar="BASE",
    help="Image of the first FROM: a tar file, .sqsh, directory, OCI archive, or debian:SUITE[,PACKAGE...].",
)
@click.option("--context", type=PATH, metavar="DIR", help="Directory of COPY and ADD; by default the file's.")
@click.option(
    "--build-arg", "arguments", multiple=True, metavar="K=V", help="Value of an ARG; it is recorded."
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="DIR",
    help="Directory that the Containerfile may mount, such as an apt repository of a saved environment.",
)
@click.option("--no-network", is_flag=True, help="Run the RUN commands without a network.")
@click.option("--key", default="", metavar="FILE", help="SSH key; by default $GIPFEL_IMAGE_KEY, or ~/.ssh.")
@click.option("--no-sign", is_flag=True, help="Do not sign the image.")
@click.option("--no-cache", is_flag=True, help="Neither use nor keep layers of other builds.")
@click.option("--replace", is_flag=True, help="Replace NAME.sqsh and the files beside it.")
@click.option("--detach", is_flag=True, help="Build in the background, and print the build's ID.")
@click.option("--new-job", is_flag=True, help="Build in a job of its own; so does each option below.")
@click.option("--partition", default="", metavar="P", help="By default the cluster's.")
@click.option("--account", default="", metavar="A", help="By default yours.")
@click.option("--qos", default="", metavar="Q", help="By default your account's.")
@click.option("--reservation", default="", metavar="R", help="Slurm reservation of the job.")
@click.option("--time", default="", metavar="T", help="Time limit of the job in Slurm's syntax.")
@click.option("--memory", default="", metavar="M", help="Memory of the job, such as 32G.")
@click.option("--cpus", default=0, type=click.IntRange(0, 4096), metavar="N", help="CPUs of the job.")
@click.option("--scheduler", default="", metavar="NAME", help="slurm or local; by default the machine's.")
@click.option("--continue", "folder", type=PATH, hidden=True)
@json_option
def build(
    *,
    source: Path | None,
    target: Path | None,
    folder: Path | None,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Build a SquashFS image from a Containerfile, as a plain user, on this node or in a job of its own.

    Beside NAME.sqsh it writes NAME.toml (an EDF), NAME.sqsh.cdx.json (packages, CycloneDX),
    NAME.sqsh.provenance.json (inputs, commands, digests) and its signature. The same inputs give the same
    bytes: entries are sorted, times are 0; logs and package lists are left out.

    Layers are kept in ~/.cache/gipfel/images, or GIPFEL_IMAGE_STORE; `gipfel image clear` removes them.
    Builds are workloads: see `gipfel ps`, `gipfel logs`, `gipfel stop`. Needs podman, uidmap and
    squashfs-tools.

    Exit status: 0 built, 1 not built; then nothing of it stays.
    """
    from ..images.workload import new_build, run_build, start_build, submit_build  # noqa: PLC0415

    of_job, report = folder is not None, report_line
    if folder is None:
        if source is None or target is None:
            raise click.UsageError("Give a Containerfile or its directory, and -o NAME.sqsh.")
        spec = _spec(source, target, options)
        folder = new_build(spec, os.environ)
        if spec.job is not None:
            job_id = submit_build(folder, os.environ)
            report_line(f"Build {folder.name} is job {job_id}.")
            if detach:
                click.echo(folder.name)
                return 0
            return _wait(folder, as_json=as_json)
    if detach:
        start_build(folder, os.environ)
        click.echo(folder.name)
        return 0
    # A build in a job has its own log, which already has all lines.
    built = run_build(folder, os.environ, (lambda _: None) if of_job else report)
    _print_built(built.to_json(), as_json=as_json)
    return 0


def _print_built(built: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(built))
        return
    click.echo(f"{built['image']}: {pluralize(built['packages'], 'package')}, sha256:{built['sha256']}")
    click.echo(f"use it: --edf {built['edf']}")
    if built["note"]:
        report_line(built["note"])


def _wait(folder: Path, *, as_json: bool) -> int:
    """Follow the job of a build until it ends, and print the built files."""
    from gipfel_cluster.workloads.directory import MAX_BYTES  # noqa: PLC0415
    from gipfel_cluster.workloads.kinds import Workloads  # noqa: PLC0415

    from ..images.workload import BUILT, BuildKind  # noqa: PLC0415
    from ..telemetry.files import read_regular  # noqa: PLC0415
    from .workloads import follow_workload  # noqa: PLC0415

    found, name = Workloads(os.environ, {"build": BuildKind}), f"build:{folder}"
    status = follow_workload(found, found.find(name), quiet=as_json)
    if status == 0:
        _print_built(json.loads(read_regular(folder / BUILT, MAX_BYTES)), as_json=as_json)
    return status


def _spec(source: Path, target: Path, options: dict[str, Any]) -> "BuildSpec":
    from pydantic import ValidationError  # noqa: PLC0415

    from gipfel_cluster.model import first_problem  # noqa: PLC0415

    from ..images.build import BuildSpec  # noqa: PLC0415

    pairs = dict(each.partition("=")[::2] for each in options["arguments"])
    base = options["base"]
    try:
        return BuildSpec(
            containerfile=str(source.absolute()),
            target=str(target.absolute()),
            context=str(options["context"].absolute()) if options["context"] else "",
            base=base if base.startswith("debian:") or not base else str(Path(base).expanduser().absolute()),
            arguments=pairs,
            mounts=options["mounts"],
            network=not options["no_network"],
            key=str(Path(options["key"]).expanduser().absolute()) if options["key"] else "",
            signed=not options["no_sign"],
            keep_layers=not options["no_cache"],
            replace=options["replace"],
            job=_job(options),
        )
    except ValidationError as error:
        raise GipfelError(first_problem(error)[1], "Correct it.") from None


def _job(options: dict[str, Any]) -> "BuildJob | None":
    """Return the resources of a separate job for the build; None if no option requests one."""
    from ..images.build import BuildJob  # noqa: PLC0415

    values = {name: options[name] for name in BuildJob.model_fields if options[name]}
    return BuildJob(**values) if values or options["new_job"] else None


@image.command(epilog=examples("gipfel image show my.sqsh", "gipfel image show my.sqsh --json"))
@click.argument("path", metavar="NAME.sqsh", type=PATH)
@json_option
@exit_2_if_unreadable
def show(*, path: Path, as_json: bool) -> int:
    """Show what an image is made of: base, commands, inputs, packages, programs, and who signed it.

    Exit status: 0; 2 there is no provenance beside it, or it can't be read.
    """
    from ..images.provenance import read_statement, verify  # noqa: PLC0415

    subjects, record = read_statement(path)
    verification = verify(path, None, os.environ)
    if as_json:
        document = record.model_dump(mode="json") | {
            "subjects": [each.model_dump() for each in subjects],
            "verification": verification.model_dump(),
        }
        return print_json(document)
    signed = f"signed by {verification.signer}" if verification.signer else verification.reason
    click.echo(f"{path.name}: {verification.verdict}, {signed}")
    programs = ", ".join(f"{name} {number}" for name, number in sorted(record.tools.items()))
    # The statement may be another user's: it must not add lines or control the terminal.
    click.echo(one_line(f"built {record.finished} by {programs}; {pluralize(record.packages, 'package')}"))
    inputs = ((one_line(each.name), one_line(each.sha256)) for each in record.inputs)
    print_lines(table_lines([("INPUT", "SHA-256"), *inputs]))
    for line in (*record.instructions, *(f"{name}={value}" for name, value in record.environment.items())):
        click.echo(f"  {one_line(line)}")
    return 0


@image.command(
    epilog=examples(
        "gipfel image verify my.sqsh", "gipfel image verify my.sqsh --signers /etc/gipfel/signers"
    )
)
@click.argument("path", metavar="NAME.sqsh", type=PATH)
@click.option(
    "--signers",
    type=PATH,
    metavar="FILE",
    help="Allowed signers as in ssh-keygen(1); by default $GIPFEL_IMAGE_SIGNERS, else your own keys.",
)
@json_option
def verify(*, path: Path, signers: Path | None, as_json: bool) -> int:
    """Check that an image and the files beside it are those that were built, and who signed them.

    Exit status: 0 verified, 1 changed or signed by another key, 2 could not be judged (unsigned).
    """
    from ..images.provenance import verify as verify_image  # noqa: PLC0415

    try:
        found = verify_image(path, signers, os.environ)
    except (GipfelError, OSError) as error:
        report_line(str(error))
        return UNREADABLE
    if as_json:
        click.echo(found.model_dump_json())
    else:
        click.echo(
            f"{path}: {found.verdict}, {f'signed by {found.signer}' if found.signer else found.reason}"
        )
    return found.exit_status


@image.command(epilog=examples("gipfel image diff old.sqsh new.sqsh"))
@click.argument("before", metavar="A.sqsh", type=PATH)
@click.argument("after", metavar="B.sqsh", type=PATH)
@json_option
def diff(*, before: Path, after: Path, as_json: bool) -> int:
    """Compare the packages of two images, or of bills of materials, and how the images were made.

    Exit status: 0 the same, 1 different, 2 one can't be read.
    """
    from ..images.sbom import compare_images  # noqa: PLC0415

    try:
        found = compare_images(before, after)
    except (GipfelError, OSError) as error:
        report_line(str(error))
        return UNREADABLE
    if as_json:
        click.echo(found.model_dump_json())
    else:
        for each in found.packages:
            old, new = ", ".join(each.before) or "-", ", ".join(each.after) or "-"
            click.echo(f"{each.name}: {old} -> {new}")
        print_lines(f"- {line}" for line in found.removed)
        print_lines(f"+ {line}" for line in found.added)
        click.echo(
            f"{pluralize(len(found.packages), 'package')} differ{'s' if len(found.packages) == 1 else ''}"
        )
    return 1 if found.is_different else 0


@image.command()
def clear() -> int:
    """Remove the layers that builds have kept."""
    from ..images.podman import clear_layers  # noqa: PLC0415

    click.echo(f"removed: {clear_layers(os.environ)}")
    return 0


@image.command(
    "save-environment",
    epilog=examples(
        "gipfel image save-environment ~/my-environment",
        "gipfel image build ~/my-environment -o ~/images/my-environment.sqsh",
    ),
)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--image", "base", default="", metavar="IMAGE", help="The container's image; by default the run's."
)
@click.option("--edf", default="", metavar="FILE", help="The container's EDF; by default the run's.")
@click.option("--python", default="", metavar="P", help="The image's Python; by default the first python3.")
@click.option(
    "--wheels",
    type=PATH,
    multiple=True,
    metavar="DIR",
    help="Directory that wheels were installed from; by default $PIP_FIND_LINKS.",
)
@json_option
def save_environment(
    *, folder: Path, base: str, edf: str, python: str, wheels: tuple[Path, ...], as_json: bool
) -> int:
    """Save what pip and apt have installed in this container, as a directory that builds the same.

    DIR gets a Containerfile with every version pinned, requirements.txt, wheels of this machine, and new
    repositories of apt. `gipfel image build DIR -o NAME.sqsh` makes an image and an EDF of it. What can't be
    saved is listed: removed packages, changed files, and packages installed from a directory.

    Exit status: 0 saved, 1 not saved or only partly.
    """
    from ..images.environment import container_python_state, find_origin  # noqa: PLC0415
    from ..images.environment import save_environment as save  # noqa: PLC0415

    named = [Path(each) for each in os.environ.get("PIP_FIND_LINKS", "").split() if each.startswith("/")]
    saved = save(
        folder.absolute(),
        find_origin(base, edf, os.environ),
        container_python_state(python, os.environ),
        wheels=wheels or named,
        environment=os.environ,
    )
    if as_json:
        click.echo(saved.model_dump_json())
    else:
        print_lines((*saved.debian, *saved.python))
        report_lines(saved.notes)
        mounts = "".join(f" --mount {shlex.quote(each)}" for each in saved.mounts)
        click.echo(
            f"{folder}: build it with gipfel image build {shlex.quote(str(folder))} -o NAME.sqsh{mounts}"
        )
    return 1 if saved.notes else 0
