"""``gipfel runtime``: the interpreter and server that are mounted into images."""

from pathlib import Path

import click

from .live_table import examples, tell


@click.group(
    epilog=examples(
        "gipfel runtime build ~/.gipfel/runtime",
    )
)
def runtime() -> None:
    """Build the runtime: a folder or file with interpreter, server and libraries that any image can run."""


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
    help="Which Pythons of images become kernels: all, none, or versions such as 3.9,3.12. Their packages "
    "are downloaded once; without a network one line says which are missing.",
)
def build(path: Path, prefix: str | None, kernels: str) -> int:
    """Build a runtime from what is installed here: a folder DIR, or one SquashFS file.

    It appears complete or not at all; a second build of the same is done at once. Put it where every node and
    every user can read it. A file spares a parallel file system thousands of small ones; the job's host side
    then runs with another Python, which every node must have.
    """
    from gipfel_cluster.runtime import build_runtime  # noqa: PLC0415

    built = build_runtime(path, prefix=prefix, kernels=_versions(kernels), progress=tell)
    tell(f"the runtime is ready, version {built.version}, for {built.arch}")
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
