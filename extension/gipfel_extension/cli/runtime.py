"""``gipfel runtime``: builds the Python interpreter and server that are mounted into images."""

from pathlib import Path

import click

from .terminal import examples, report_line


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
