"""``gipfel service``: services from blueprints."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError
from gipfel_cluster.process.fork import allow_forks

from .service_access import connect, how_to_connect, render, share, token, url
from .terminal import examples, report_checked, report_line, report_lines
from .workloads import logs, ps, stop

if TYPE_CHECKING:
    from ..services.directory import ServiceSpec
    from ..services.hub_services import HubServices

_PAUSE_S, _QUEUED_PAUSE_S = 0.3, 2.0
#: Nanoseconds after a submission from which each check of a queued service queries the scheduler.
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
    node, lets through only requests with the service's token: programs send 'Authorization: Bearer TOKEN', a
    browser gets a form. Others can connect to the port, and get nothing without a token. If a program of
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
    from ..services.blueprint import known_blueprints  # noqa: PLC0415 - pydantic, which --help can do without

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
    """Check blueprint files: each mistake is one line with its line number, and the fix on the next.

    Exit status: 0 all can be used; 1 otherwise.
    """
    from ..services.blueprint import check_blueprint  # noqa: PLC0415 - pydantic

    return report_checked([(path, *check_blueprint(path)) for path in files], as_document=as_json)


@service.command(epilog=examples("gipfel service schema > blueprint.schema.json"))
def schema() -> int:
    """Print the JSON Schema of blueprints, for editors."""
    from ..services.blueprint import blueprint_schema  # noqa: PLC0415 - pydantic

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
@click.option("--edf", default="", metavar="FILE|NAME", help="Environment (EDF); by default the blueprint's.")
@click.option(
    "--engine", default="", metavar="E", help="Container engine; by default $GIPFEL_ENGINE, else bubblewrap."
)
@click.option("--here", is_flag=True, help="Run on this machine instead of submitting a job to Slurm.")
@click.option("--time", default="", metavar="T", help="Time limit; by default the blueprint's.")
@click.option("--nodes", type=click.IntRange(1, 64), metavar="N", help="Nodes; by default the blueprint's.")
@click.option("--gpus", type=click.IntRange(0, 64), metavar="N", help="GPUs of a node; by default as above.")
@click.option("--partition", default="", metavar="P", help="By default the blueprint's, else the cluster's.")
@click.option("--account", default="", metavar="A", help="By default your default account.")
@click.option("--no-wait", is_flag=True, help="Return after the submission, before the service is ready.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def up(
    *, blueprint: str, typed: tuple[tuple[str, str], ...], no_wait: bool, as_json: bool, **options: Any
) -> int:
    """Start a service, wait until it is ready, and print its address.

    BLUEPRINT is a name that `gipfel service blueprints` lists, or a file. In a notebook server of a hub, the
    service becomes another server of the hub. Elsewhere it runs as a job, or with --here on this machine: its
    only port is on the loopback interface of its node and wants the token that `gipfel service token NAME`
    prints, in a browser in a form, from programs as 'Authorization: Bearer TOKEN'. It ends with
    `gipfel service down NAME`, or at the job's time limit.

    Exit status: 0 it is ready (with --no-wait: submitted); 1 it could not start.
    """
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic
    from ..services.start import start_service  # noqa: PLC0415

    hub = None if options["here"] else hub_services(os.environ)
    if hub is not None:
        return _up_in_hub(hub, blueprint, dict(typed), options, wait=not no_wait, as_json=as_json)
    allow_forks()
    started = start_service(_spec(blueprint, dict(typed), options), os.environ, report_line)
    report_line(f"service {started.id} is submitted (job {started.job_id}); see `gipfel logs {started.id}`")
    document = {"name": started.id, "job_id": started.job_id, "folder": started.folder}
    return _report_start(document, wait=not no_wait, as_json=as_json)


@service.command(
    epilog=examples("gipfel service install tensorboard", "gipfel service install mlflow --into /apps/gipfel")
)
@click.argument("blueprint", metavar="BLUEPRINT")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="By default ~/.gipfel/environments; services find others that $GIPFEL_SERVICE_ENVIRONMENTS lists.",
)
def install(*, blueprint: str, into: Path | None) -> int:
    """Install the packages of a blueprint beforehand, and print their directory.

    They are installed into a directory of their own at the service's first start anyway; where nodes have
    neither pip nor internet, run this on a login node with the Python version of the services.

    Exit status: 0; 1 if a package can't be installed.
    """
    from ..services.blueprint import find_blueprint  # noqa: PLC0415 - pydantic
    from ..services.plan import find_environment, install_environment, make_environment  # noqa: PLC0415

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


@service.command(epilog=examples("gipfel service apply ~/project/services/board --here"))
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--name", default="", metavar="N", help="Name of the service; by default the blueprint's.")
@click.option("--edf", default="", metavar="FILE|NAME", help="Environment (EDF); by default the blueprint's.")
@click.option("--account", default="", metavar="A", help="By default your default account.")
@click.option("--here", is_flag=True, help="Run on this machine instead of submitting a job to Slurm.")
@click.pass_context
def apply(context: click.Context, /, *, directory: Path, **options: Any) -> int:
    """Make a service what a directory says, such as one in Git: DIR/blueprint.yaml and DIR/params.yaml.

    A service that runs as the directory says is left alone; one with another blueprint, other parameters or
    another environment is stopped and started again, with the same storage; otherwise it is started.
    params.yaml has a line 'NAME: VALUE' for each parameter, and may be missing.

    Exit status: 0 it runs as the directory says; 1 it could not start.
    """
    from ..services.directory import read_spec  # noqa: PLC0415 - pydantic
    from ..services.plan import read_parameters  # noqa: PLC0415
    from ..services.start import ServiceKind  # noqa: PLC0415

    # Path.resolve raises RuntimeError where links lead in a circle.
    path = os.path.abspath(directory / "blueprint.yaml")  # noqa: PTH100
    typed = read_parameters(directory / "params.yaml")
    unset = {"engine": "", "time": "", "partition": "", "nodes": None, "gpus": None}
    wanted = _spec(path, typed, {**unset, **options})
    found = ServiceKind().find(wanted.name, os.environ)
    if found is not None and not found.ended:
        running = read_spec(Path(found.folder))
        if all(
            getattr(running, each) == getattr(wanted, each) for each in ("blueprint", "parameters", "edf")
        ):
            report_line(f"service {wanted.name} is {found.state} as {directory} says")
            return 0
        report_line(f"service {wanted.name} changes, and is started again")
        if status := int(context.invoke(stop, which=f"service:{wanted.name}")):
            return status
    chosen = {"typed": tuple(typed.items()), "no_wait": False, "as_json": False, **unset, **options}
    return int(context.invoke(up, blueprint=path, **chosen))


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
    from ..services.blueprint import find_blueprint  # noqa: PLC0415 - pydantic
    from ..services.directory import service_directory  # noqa: PLC0415
    from ..services.plan import parameter_values  # noqa: PLC0415

    found = find_blueprint(blueprint, directory=Path.cwd(), environment=os.environ)
    # Check the values here, too, because the hub reports a mistake only after it has stored the options.
    parameter_values(found, typed)
    is_file = "/" in blueprint or blueprint.endswith((".yaml", ".yml"))
    name = options["name"] or found.name
    names = ("edf", "engine", "time", "nodes", "gpus", "partition", "account")
    chosen = {key: options[key] for key in names if options[key] not in {"", None}}
    source = str(Path(blueprint).expanduser().resolve()) if is_file else blueprint
    hub.start(name, {**chosen, "service": source, "parameters": typed}, report_line, wait=wait)
    document = {"name": name, "folder": str(service_directory(name, os.environ))}
    return _report_start(document, wait=wait, as_json=as_json)


def _report_start(document: dict[str, str], *, wait: bool, as_json: bool) -> int:
    """Print what was started, with its address if that is to be waited for."""
    if wait:
        document["url"] = _wait_until_running(document["name"])
        if not as_json:
            click.echo(document["url"])
            report_lines(how_to_connect(Path(document["folder"])))
    if as_json:
        click.echo(json.dumps(document))
    return 0


def _spec(name: str, typed: dict[str, str], options: dict[str, Any]) -> "ServiceSpec":
    """Return the service to start from the command line."""
    from pydantic import ValidationError  # noqa: PLC0415

    from gipfel_cluster.model import first_problem  # noqa: PLC0415

    from ..services.blueprint import Resources, find_blueprint  # noqa: PLC0415
    from ..services.directory import ServiceSpec  # noqa: PLC0415
    from ..services.plan import parameter_values  # noqa: PLC0415

    blueprint = find_blueprint(name, directory=Path.cwd(), environment=os.environ)
    values = parameter_values(blueprint, typed)
    names = ("time", "nodes", "gpus", "partition")
    changes = {key: options[key] for key in names if options[key] not in {"", None}}
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
        field, message = first_problem(error)
        raise GipfelError(
            f"The {field} can't be used: {message}.", "See `gipfel service up --help`."
        ) from None


def _wait_until_running(name: str) -> str:
    """Return the URL of a service once it runs; raise the error of one that has ended."""
    from ..services.start import ServiceKind, service_url  # noqa: PLC0415 - pydantic

    kind, reported = ServiceKind(), ""
    while True:
        found = kind.find(name, os.environ)
        if found is None:
            raise GipfelError(f"The directory of the service {name} was removed.", "Start it again.")
        if found.ended or found.state == "running":
            return service_url(Path(found.folder))
        status = f"service {name} is {found.state}. {found.reason}"
        if status != reported:
            reported = status
            report_line(status)
        # From `_SOON_NS` on, each check of a queued job queries the scheduler.
        is_soon = found.started_ns or time.time_ns() - found.created_ns < _SOON_NS
        time.sleep(_PAUSE_S if is_soon else _QUEUED_PAUSE_S)


for _each in (url, token, connect, share, render):
    service.add_command(_each)
