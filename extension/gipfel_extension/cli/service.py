"""``gipfel service``: services from blueprints."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.process.fork import allow_forks

from .terminal import examples, report_line
from .workloads import logs, ps, stop

if TYPE_CHECKING:
    from ..services.hub_services import HubServices
    from ..services.plan import ServiceSpec

_PAUSE_S, _QUEUED_PAUSE_S = 0.3, 2.0
#: Age from which the state of a queued service is asked of the scheduler.
_SOON_NS = 30 * 10**9


@click.group(
    epilog=examples(
        "gipfel service blueprints                               what can be started",
        "gipfel service up files -p directory ~/results --here   start it, and print its address",
        "gipfel service token files                              what the login form asks for",
        "curl -H @<(gipfel service token files --header) $(gipfel service url files)",
        "gipfel service down files                               stop it; its storage is kept",
    )
)
def service() -> None:
    """Run services, such as dashboards, from blueprints.

    In a notebook server of a hub, a service becomes a server of its own of the hub: at /user/YOU/NAME/, with
    the hub's login, until you stop it, whatever becomes of the notebook. Elsewhere, and with --here, it runs
    in a job that you reach through ssh, and its front door, a port of the loopback interface of the job's
    node, passes on requests with the service's token: from programs as 'Authorization: Bearer TOKEN', from a
    browser after a form. Others can connect to the port, and get nothing without a token. If a program of
    the service ends, the whole service ends, and `gipfel service list --all` says why; `gipfel rerun NAME`
    starts it again.
    """


@service.command(epilog=examples("gipfel service blueprints", "gipfel service blueprints --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def blueprints(*, as_json: bool) -> int:
    """List the blueprints that can be started, with their parameters.

    They are found in ~/.gipfel/blueprints, the directories of $GIPFEL_BLUEPRINTS, and installed packages; the
    first one with a name is used. Exit status: 0; 1 if a blueprint can't be used.
    """
    from ..services.lookup import known_blueprints  # noqa: PLC0415 - pydantic, which --help can do without

    found, problems = known_blueprints(os.environ)
    if as_json:
        listed = [{"origin": origin, **each.model_dump(mode="json")} for origin, each in found.values()]
        click.echo(json.dumps({"blueprints": listed, "problems": [each.model_dump() for each in problems]}))
        return 1 if problems else 0
    for name, (origin, each) in sorted(found.items()):
        click.echo(f"{name:<20}  {each.title} ({origin})")
        for key, parameter in each.parameters.items():
            default = "required" if parameter.default is None else f"default {parameter.default}"
            click.echo(f"  -p {key} {parameter.type.upper()}  {default}. {parameter.help}".rstrip())
        if each.outbound:
            click.echo(f"  contacts {', '.join(each.outbound)}")
    for problem in problems:
        report_line(str(problem))
        report_line(f"  {problem.fix}")
    return 1 if problems else 0


@service.command(epilog=examples("gipfel service check my-dashboard.yaml"))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def check(*, files: tuple[Path, ...], as_json: bool) -> int:
    """Check blueprints' files: each mistake is one line with its line number, and the fix on the next.

    Exit status: 0 all can be used; 1 otherwise.
    """
    from ..services.lookup import check_blueprint  # noqa: PLC0415 - pydantic
    from .definitions import report_checked  # noqa: PLC0415

    return report_checked([(path, *check_blueprint(path)) for path in files], as_document=as_json)


@service.command(epilog=examples("gipfel service schema > blueprint.schema.json"))
def schema() -> int:
    """Print the JSON Schema of blueprints, for editors."""
    from ..services.lookup import blueprint_schema  # noqa: PLC0415 - pydantic

    click.echo(json.dumps(blueprint_schema(), indent=2))
    return 0


@service.command(
    epilog=examples(
        "gipfel service up files -p directory ~/project/results --here",
        "gipfel service up ./my-dashboard.yaml --name board -p logs ~/logs --edf pytorch --time 08:00:00",
    )
)
@click.argument("blueprint", metavar="BLUEPRINT")
@click.option("-p", "typed", type=(str, str), multiple=True, metavar="K V", help="A parameter's value.")
@click.option("--name", default="", metavar="N", help="Name of the service; by default the blueprint's.")
@click.option("--edf", default="", metavar="FILE|NAME", help="The environment; by default the blueprint's.")
@click.option("--engine", default="", metavar="E", help="By default $GIPFEL_ENGINE, else bubblewrap.")
@click.option("--here", is_flag=True, help="Run on this machine instead of submitting a job to Slurm.")
@click.option("--time", default="", metavar="T", help="Time limit; by default the blueprint's.")
@click.option("--partition", default="", metavar="P", help="By default the blueprint's, else the cluster's.")
@click.option("--account", default="", metavar="A", help="By default yours.")
@click.option("--no-wait", is_flag=True, help="Return after the submission, before the service is ready.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def up(
    *, blueprint: str, typed: tuple[tuple[str, str], ...], no_wait: bool, as_json: bool, **options: Any
) -> int:
    """Start a service, wait until it is ready, and print its address.

    BLUEPRINT is a name that `gipfel service blueprints` lists, or a file. The service runs as a job; its only
    port is on the loopback interface of its node and wants the token that `gipfel service token NAME` prints:
    in a browser in a form, for programs as 'Authorization: Bearer TOKEN'. It ends with
    `gipfel service down NAME`, or at the job's time limit.

    Exit status: 0 it is ready (with --no-wait: submitted); 1 it could not start.
    """
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic
    from ..services.start import start_service  # noqa: PLC0415

    hub = None if options["here"] else hub_services(os.environ)
    if hub is not None:
        return _up_in_hub(hub, blueprint, dict(typed), options, wait=not no_wait, as_json=as_json)
    allow_forks()
    started = start_service(_spec(blueprint, dict(typed), options), os.environ)
    report_line(f"service {started.id} is submitted (job {started.job_id}); see `gipfel logs {started.id}`")
    document: dict[str, object] = {"name": started.id, "job_id": started.job_id, "folder": started.folder}
    if not no_wait:
        document["url"] = _wait_until_running(started.id)
        if not as_json:
            click.echo(document["url"])
            for line in _how_to_connect(Path(started.folder)):
                report_line(line)
    if as_json:
        click.echo(json.dumps(document))
    return 0


@service.command(
    epilog=examples("gipfel service install tensorboard", "gipfel service install mlflow --into /apps/gipfel")
)
@click.argument("blueprint", metavar="BLUEPRINT")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="By default ~/.gipfel/environments. Services find others in $GIPFEL_SERVICE_ENVIRONMENTS.",
)
def install(*, blueprint: str, into: Path | None) -> int:
    """Install the packages of a blueprint beforehand, and print their directory.

    They are installed into a directory of their own at the service's first start anyway; where nodes have
    neither pip nor internet, run this on a login node with the Python version of the services.

    Exit status: 0; 1 if a package can't be installed.
    """
    from ..services.environments import find_environment, install_environment, make_environment  # noqa: PLC0415
    from ..services.lookup import find_blueprint  # noqa: PLC0415 - pydantic

    found = find_blueprint(blueprint, directory=Path.cwd(), environment=os.environ)
    log = Path(tempfile.mkdtemp(prefix="gipfel-install-"), "install.log")
    if into is None:
        click.echo(make_environment(found, os.environ, log, report_line))
        return 0
    into = into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    known = find_environment(found, {**os.environ, "GIPFEL_SERVICE_ENVIRONMENTS": str(into)})
    made = known if known and known.parent == into else None
    click.echo(made or install_environment(found, into, os.environ, log, report_line))
    return 0


@service.command(name="list", epilog=examples("gipfel service list", "gipfel service list --all --json"))
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.pass_context
def list_services(context: click.Context, *, ended: bool, as_json: bool) -> int:
    """List your services, as `gipfel ps --kind service` does."""
    return int(context.invoke(ps, ended=ended, kind="service", as_json=as_json))


@service.command(
    epilog=examples("curl -H @<(gipfel service token board --header) $(gipfel service url board)")
)
@click.argument("name", metavar="NAME")
def url(*, name: str) -> int:
    """Print the address of a running service: from its node, and of one of the hub from all nodes."""
    from ..services.plan import HUB  # noqa: PLC0415
    from ..services.start import service_url  # noqa: PLC0415 - pydantic
    from ..services.supervisor import read_service_state  # noqa: PLC0415

    folder = _folder(name)
    click.echo(service_url(folder))
    if read_service_state(folder).scheduler == HUB:
        report_line(f"in a browser: {_public_url(name)}, or the hub's home page")
        return 0
    for line in _how_to_connect(folder):
        report_line(line)
    return 0


@service.command(epilog=examples("gipfel service token board"))
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
    secret = _access_token(_folder(name), expires)
    click.echo(f"Authorization: Bearer {secret}" if header else secret)
    return 0


@service.command(
    epilog=examples("gipfel service connect postgresql -- psql -h {directory} -U postgres"),
    context_settings={"ignore_unknown_options": True},
)
@click.argument("name", metavar="NAME")
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
def connect(*, name: str, command: tuple[str, ...]) -> int:
    """Run a command while a Unix socket leads to a service that does not speak HTTP, such as a database.

    In CMD, {socket} is the socket's path and {directory} its directory, which are yours alone and are removed
    when CMD has ended. Exit status: that of CMD.
    """
    from ..services.connect import connect as run_connected  # noqa: PLC0415 - aiohttp and pydantic
    from ..services.start import service_url  # noqa: PLC0415
    from ..services.supervisor import read_spec  # noqa: PLC0415

    folder = _folder(name)
    blueprint = read_spec(folder).blueprint
    part = blueprint.parts[blueprint.front_part]
    if part.path != "raw":
        raise _error(f"The service {name} speaks HTTP.", f"See `gipfel service url {name}`.")
    return run_connected(service_url(folder), _access_token(folder, 600), part.socket_name, command)


@service.command(name="logs", epilog=examples("gipfel service logs board -f"))
@click.argument("name", metavar="NAME")
@click.option("-n", "--lines", "last", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", "follow", is_flag=True, help="Keep printing until it ends.")
@click.pass_context
def service_logs(context: click.Context, *, name: str, last: int | None, follow: bool) -> int:
    """Print the output of a service's programs and of its job, as `gipfel logs NAME` does."""
    return int(context.invoke(logs, which=f"service:{name}", ranks=(), last=last, follow=follow))


@service.command(epilog=examples("gipfel service down board"))
@click.argument("name", metavar="NAME")
@click.pass_context
def down(context: click.Context, *, name: str) -> int:
    """Stop a service, and wait until it has ended, as `gipfel stop NAME` does; its storage is kept.

    Exit status: 0 it has ended; 1 it has not ended within three minutes.
    """
    return int(context.invoke(stop, which=f"service:{name}"))


def _up_in_hub(
    hub: "HubServices",
    blueprint: str,
    typed: dict[str, str],
    options: dict[str, Any],
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Start a service as a server of the hub, and print its address."""
    from ..services.lookup import find_blueprint  # noqa: PLC0415 - pydantic
    from ..services.plan import parameter_values, service_directory  # noqa: PLC0415

    found = find_blueprint(blueprint, directory=Path.cwd(), environment=os.environ)
    # Checked here, too, because the hub reports a mistake only after it has stored the options.
    parameter_values(found, typed)
    is_file = "/" in blueprint or blueprint.endswith((".yaml", ".yml"))
    name = options["name"] or found.name
    chosen = {key: options[key] for key in ("edf", "engine", "time", "partition", "account") if options[key]}
    source = str(Path(blueprint).expanduser().resolve()) if is_file else blueprint
    hub.start(name, {**chosen, "service": source, "parameters": typed}, report_line, wait=wait)
    document: dict[str, object] = {"name": name, "folder": str(service_directory(name, os.environ))}
    if wait:
        document["url"] = _wait_until_running(name)
        if not as_json:
            click.echo(document["url"])
            report_line(f"in a browser: {_public_url(name)}, or the hub's home page")
            report_line(f"for programs: `gipfel service token {name}` prints a token of the hub")
    if as_json:
        click.echo(json.dumps(document))
    return 0


def _public_url(name: str) -> str:
    """Return the address for browsers; only its path if the hub does not tell its own address."""
    from urllib.parse import urljoin  # noqa: PLC0415

    from ..services.supervisor import read_service_state  # noqa: PLC0415 - pydantic

    path = read_service_state(_folder(name)).prefix
    host = os.environ.get("JUPYTERHUB_PUBLIC_URL") or os.environ.get("JUPYTERHUB_PUBLIC_HUB_URL", "")
    return urljoin(host, path) if host else path


def _spec(name: str, typed: dict[str, str], options: dict[str, Any]) -> "ServiceSpec":
    """Return the service to start from the command line."""
    from pydantic import ValidationError  # noqa: PLC0415

    from ..services.blueprint import Resources  # noqa: PLC0415
    from ..services.lookup import find_blueprint  # noqa: PLC0415
    from ..services.plan import ServiceSpec, parameter_values  # noqa: PLC0415

    blueprint = find_blueprint(name, directory=Path.cwd(), environment=os.environ)
    values = parameter_values(blueprint, typed)
    changes = {key: options[key] for key in ("time", "partition") if options[key]}
    try:
        resources = Resources.model_validate({**blueprint.resources.model_dump(), **changes})
        return ServiceSpec(
            name=options["name"] or blueprint.name,
            blueprint=blueprint.model_copy(update={"resources": resources}),
            parameters=values,
            scheduler="local" if options["here"] else "",
            account=options["account"],
            edf=options["edf"] or blueprint.edf,
            engine=options["engine"],
            directory=str(Path.cwd()),
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise _error(
            f"The {field} can't be used: {first['msg']}.", "See `gipfel service up --help`."
        ) from None


def _access_token(folder: Path, expires_s: int) -> str:
    """Return a token that gives access to a service: a new one of its hub, else the service's own."""
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic
    from ..services.plan import HUB  # noqa: PLC0415
    from ..services.supervisor import read_spec, read_token  # noqa: PLC0415

    if read_spec(folder).scheduler != HUB:
        return read_token(folder)
    hub = hub_services(os.environ)
    if hub is None:
        raise _error(
            f"The hub gives access to the service {folder.name}, and its token is not here.",
            "Run this in a terminal of a notebook server, or create a token on the hub's page Token.",
        )
    return hub.token(folder.name, expires_s)


def _folder(name: str) -> Path:
    from ..services.start import ServiceKind  # noqa: PLC0415 - pydantic

    found = ServiceKind().find(name, os.environ)
    if found is None:
        raise _error(f"There is no service {name[:80]!r}.", "See `gipfel service list --all`.")
    return Path(found.folder)


def _wait_until_running(name: str) -> str:
    from ..services.start import ServiceKind, service_url  # noqa: PLC0415 - pydantic

    kind, reported = ServiceKind(), ""
    while True:
        found = kind.find(name, os.environ)
        if found is None:
            raise _error(f"The directory of the service {name} was removed.", "Start it again.")
        if found.ended or found.state == "running":
            return service_url(Path(found.folder))
        status = f"service {name} is {found.state}. {found.reason}"
        if status != reported:
            reported = status
            report_line(status)
        # Later, each look at a job that has not started queries the scheduler.
        is_soon = found.started_ns or time.time_ns() - found.created_ns < _SOON_NS
        time.sleep(_PAUSE_S if is_soon else _QUEUED_PAUSE_S)


def _how_to_connect(folder: Path) -> tuple[str, ...]:
    """Return how a browser reaches a running service: through ssh, and with its token."""
    from ..services.supervisor import read_service_state  # noqa: PLC0415 - pydantic

    state = read_service_state(folder)
    port, node = state.port, state.nodes[0] if state.nodes else "NODE"
    return (
        f"it asks for a token, which `gipfel service token {folder.name}` prints",
        f"from another machine: ssh -L {port}:127.0.0.1:{port} {node}, then open it in your browser",
    )


def _error(problem: str, fix: str) -> Exception:
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    return GipfelError(problem, fix)
