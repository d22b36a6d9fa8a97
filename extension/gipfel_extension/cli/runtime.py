"""``gipfel runtime``: the interpreter and server that are mounted into images."""

from pathlib import Path

import click

from .terminal import examples, tell


@click.group(
    epilog=examples(
        "gipfel runtime build ~/.gipfel/runtime",
    )
)
def runtime() -> None:
    """Build the runtime: a folder with interpreter, server and libraries that any image can run."""


@runtime.command(
    epilog=examples(
        "gipfel runtime build ~/.gipfel/runtime",
        "gipfel runtime build /shared/gipfel/2026-1 --prefix /opt/gipfel",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--prefix", metavar="P", help="Absolute path at which it will be mounted; by default that of DIR."
)
def build(folder: Path, prefix: str | None) -> int:
    """Build a runtime in DIR from what is installed here, without the network.

    DIR appears complete or not at all; a second build of the same is done at once. Put it where
    every node and every user can read it.
    """
    from gipfel_cluster.runtime import build_runtime  # noqa: PLC0415

    built = build_runtime(folder, prefix=prefix, progress=tell)
    tell(f"the runtime is ready, version {built.version}, for {built.arch}")
    click.echo(built.root)
    return 0
