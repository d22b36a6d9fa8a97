"""``gipfel service url|token|connect|share``: how programs, the owner and others reach a service."""

import json
import os
from pathlib import Path

import click

from .terminal import examples, report_line

_CONNECT_TOKEN_S = 86400
_MAX_SHARE_S = 30 * 86400


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
        "gipfel service connect ben/postgresql -- CMD        ben's, who shares it with you",
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
    from ..services.tunnel import connect as run_connected  # noqa: PLC0415 - aiohttp

    def report(path: Path) -> None:
        click.echo(path)
        report_line(f"the socket leads to {name} until Ctrl-C; its directory is {path.parent}")
        report_line(f"from your own machine: ssh -L PORT:{path} {os.uname().nodename}")

    address, secret = _tunnel_of(name)
    return run_connected(address, secret, command, report)


@click.command(
    epilog=examples(
        "gipfel service share postgresql                        who has access",
        "gipfel service share postgresql --with ben --for 2d",
        "gipfel service share postgresql --with ben --end",
    )
)
@click.argument("name", metavar="NAME")
@click.option("--with", "user", default="", metavar="USER", help="A user of the hub.")
@click.option("--group", default="", metavar="GROUP", help="A group of the hub, of which you are a member.")
@click.option("--for", "time", default="1d", metavar="T", help="For how long, at most 30d; by default 1d.")
@click.option("--end", is_flag=True, help="End the access of this user or group.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def share(*, name: str, user: str, group: str, time: str, end: bool, as_json: bool) -> int:
    """Give others access to one of your services of the hub for a time, end it, or list who has access.

    They open it from their own page of sessions, or run `gipfel service connect YOU/NAME`. Access ends within
    a minute, open connections included. A service with pages is shared only where the hub gives each user a
    host name of their own. Exit status: 0; 1 if it can't be shared.
    """
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic

    if (user and group) or (end and not (user or group)):
        raise click.UsageError("Give --with USER or --group GROUP.")
    hub = hub_services(os.environ)
    if hub is None:
        raise service_error(
            "Only services of a hub can be shared, and no hub's token is here.",
            "Run this in a terminal of a notebook server, or use the hub's page of sessions.",
        )
    answer = hub.share(
        name,
        kind="group" if group else "user",
        who=user or group,
        seconds=0 if end else _share_seconds(time),
    )
    if as_json:
        click.echo(json.dumps(answer))
        return 0
    for each in answer["shares"]:
        click.echo(f"{each['kind']} {each['name']}  until {each['expires'] or 'you end it'}")
    if not answer["shares"]:
        click.echo("Nobody else has access.")
    if answer["refusal"]:
        report_line(f"it can't be shared: {answer['refusal']}")
    return 0


def _share_seconds(text: str) -> int:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = text[:-1], units.get(text[-1:], 0)
    seconds = int(number) * unit if number.isdecimal() and len(number) < 9 else 0
    if not 60 <= seconds <= _MAX_SHARE_S:
        raise click.UsageError(f"{text[:40]!r} is not a time from 60s to 30d, such as 8h or 2d.")
    return seconds


def _tunnel_of(name: str) -> tuple[str, str]:
    """Return address and token of a service that does not speak HTTP; of another user's as ``OWNER/NAME``."""
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic
    from ..services.start import service_url  # noqa: PLC0415

    owner, slash, shared = name.partition("/")
    if slash:
        hub = hub_services(os.environ)
        if hub is None:
            raise service_error(
                "The hub knows what others share with you, and its token is not here.",
                "Run this in a terminal of a notebook server.",
            )
        secret, address = hub.token(shared, _CONNECT_TOKEN_S, owner)
        if not address:
            raise service_error(f"The service {name} is not running.", f"Ask {owner} to start it.")
        return address, secret
    directory = service_folder(name)
    if not _is_raw(directory):
        raise service_error(f"The service {name} speaks HTTP.", f"See `gipfel service url {name}`.")
    return service_url(directory), _access_token(directory, _CONNECT_TOKEN_S)


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
    return hub.token(folder.name, expires_s)[0]


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
