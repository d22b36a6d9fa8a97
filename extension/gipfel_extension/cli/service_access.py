"""``gipfel service url|token|connect``: how programs and people reach a service."""

import os
from pathlib import Path

import click

from .terminal import examples, report_line

_CONNECT_TOKEN_S = 86400


@click.command(epilog=examples("curl -H @<(gipfel service token board --header) $(gipfel service url board)"))
@click.argument("name", metavar="NAME")
def url(*, name: str) -> int:
    """Print the address of a running service: from its node, and of one of the hub from all nodes."""
    from ..services.start import service_url  # noqa: PLC0415 - pydantic

    folder = service_folder(name)
    click.echo(service_url(folder))
    for line in how_to_connect(folder):
        report_line(line)
    return 0


@click.command(epilog=examples("gipfel service token board"))
@click.argument("name", metavar="NAME")
@click.option(
    "--header", is_flag=True, help="As a header that curl reads from a file: Authorization: Bearer …"
)
@click.option(
    "--expires",
    type=click.IntRange(60, 366 * 86400),
    default=86400,
    metavar="S",
    help="Seconds until a token of the hub expires; by default a day.",
)
def token(*, name: str, header: bool, expires: int) -> int:
    """Print a token that gives access to this service alone.

    For a service of the hub it is a new token of the hub each time, which the hub's page Token lists and
    revokes. Else it is kept in a file that only you can read, until the service ends.
    """
    secret = _access_token(service_folder(name), expires)
    click.echo(f"Authorization: Bearer {secret}" if header else secret)
    return 0


@click.command(
    epilog=examples(
        "gipfel service connect postgresql -- psql -h {directory} -U postgres",
        "gipfel service connect postgresql              until Ctrl-C, for programs in other terminals",
    ),
    context_settings={"ignore_unknown_options": True},
)
@click.argument("name", metavar="NAME")
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
def connect(*, name: str, command: tuple[str, ...]) -> int:
    """Connect a Unix socket to a service that does not speak HTTP, such as a database, while CMD runs.

    In CMD, {socket} is the socket's path and {directory} its directory, which are yours alone and are removed
    when CMD has ended; without CMD the socket stays until Ctrl-C. No port is opened, because other users of
    this machine could connect to one. Exit status: that of CMD; 1 if the service can't be reached.
    """
    from ..services.start import service_url  # noqa: PLC0415 - pydantic
    from ..services.supervisor import read_spec  # noqa: PLC0415
    from ..services.tunnel import connect as run_connected  # noqa: PLC0415 - aiohttp

    directory = service_folder(name)
    blueprint = read_spec(directory).blueprint
    if not _is_raw(directory):
        raise service_error(f"The service {name} speaks HTTP.", f"See `gipfel service url {name}`.")

    def report(path: Path) -> None:
        click.echo(path)
        report_line(f"the socket leads to {name} until Ctrl-C; its directory is {path.parent}")
        report_line(f"from your own machine: ssh -L PORT:{path} {os.uname().nodename}")

    part = blueprint.parts[blueprint.front_part]
    secret = _access_token(directory, _CONNECT_TOKEN_S)
    return run_connected(service_url(directory), secret, part.socket_name, command, report)


def _access_token(folder: Path, expires_s: int) -> str:
    """Return a token that gives access to a service: a new one of its hub, else the service's own."""
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic
    from ..services.plan import HUB  # noqa: PLC0415
    from ..services.supervisor import read_spec, read_token  # noqa: PLC0415

    if read_spec(folder).scheduler != HUB:
        return read_token(folder)
    hub = hub_services(os.environ)
    if hub is None:
        raise service_error(
            f"The hub gives access to the service {folder.name}, and its token is not here.",
            "Run this in a terminal of a notebook server, or create a token on the hub's page Token.",
        )
    return hub.token(folder.name, expires_s)


def service_folder(name: str) -> Path:
    """Return the directory of a service; raise `GipfelError` if there is none."""
    from ..services.start import ServiceKind  # noqa: PLC0415 - pydantic

    found = ServiceKind().find(name, os.environ)
    if found is None:
        raise service_error(f"There is no service {name[:80]!r}.", "See `gipfel service list --all`.")
    return Path(found.folder)


def _public_url(path: str) -> str:
    """Return the address for browsers; only its path if the hub does not tell its own address."""
    from urllib.parse import urljoin  # noqa: PLC0415

    host = os.environ.get("JUPYTERHUB_PUBLIC_URL") or os.environ.get("JUPYTERHUB_PUBLIC_HUB_URL", "")
    return urljoin(host, path) if host else path


def _is_raw(folder: Path) -> bool:
    """Return whether a service does not speak HTTP."""
    from ..services.supervisor import read_spec  # noqa: PLC0415 - pydantic

    blueprint = read_spec(folder).blueprint
    return blueprint.parts[blueprint.front_part].path == "raw"


def how_to_connect(folder: Path) -> tuple[str, ...]:
    """Return how people and programs reach a running service, one line each."""
    from ..services.plan import HUB  # noqa: PLC0415 - pydantic
    from ..services.supervisor import read_service_state  # noqa: PLC0415 - pydantic

    if _is_raw(folder):
        return (f"programs connect by: gipfel service connect {folder.name} -- CMD",)
    state = read_service_state(folder)
    if state.scheduler == HUB:
        return (
            f"in a browser: {_public_url(state.prefix)}, or the hub's home page",
            f"for programs: `gipfel service token {folder.name}` prints a token of the hub",
        )
    port, node = state.port, state.nodes[0] if state.nodes else "NODE"
    return (
        f"it asks for a token, which `gipfel service token {folder.name}` prints",
        f"from another machine: ssh -L {port}:127.0.0.1:{port} {node}, then open it in your browser",
    )


def service_error(problem: str, fix: str) -> Exception:
    """Return a `GipfelError`."""
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    return GipfelError(problem, fix)
