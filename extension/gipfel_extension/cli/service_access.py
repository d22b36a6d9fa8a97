"""``gipfel service url/token/connect/share/render``: how a service is reached, and its Kubernetes objects.

A service of the hub was started by JupyterHub, as a named server of its user; others were started by
``gipfel service up``, in a job or on this machine.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError

from .terminal import examples, print_json, print_lines, report_line, report_lines

if TYPE_CHECKING:
    from ..services.directory import ServiceSpec
    from ..services.kubernetes import Target

_CONNECT_TOKEN_S = 86400
_MAX_SHARE_S = 30 * 86400
#: Options whose names are not those of the target's fields.
_OPTIONS = {"repository": "--repo", "path": "--repo-path"}


@click.command(epilog=examples("curl -H @<(gipfel service token board --header) $(gipfel service url board)"))
@click.argument("name", metavar="NAME")
def url(*, name: str) -> int:
    """Print the address of a running service.

    It works on the service's node; the address of a service of the hub works on all nodes.
    """
    from ..services.start import service_url  # noqa: PLC0415 - pydantic

    folder = service_folder(name)
    click.echo(service_url(folder))
    report_lines(how_to_connect(folder))
    return 0


@click.command(epilog=examples("gipfel service token board"))
@click.argument("name", metavar="NAME")
@click.option("--header", is_flag=True, help="As a header for curl to read: Authorization: Bearer …")
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
    revokes. Any other service has one token, kept until the service ends in a file that only you can read.
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

    They open it from their own home page of the hub, or run `gipfel service connect YOU/NAME`. After --end,
    or when the time is over, access ends within a minute, and open connections are closed. A service that
    speaks HTTP can be shared only where the hub gives each user a host name of their own (subdomain_host).
    Exit status: 0; 1 if it can't be shared.
    """
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic

    if (user and group) or (end and not (user or group)):
        raise click.UsageError("Give --with USER or --group GROUP.")
    hub = hub_services(os.environ)
    if hub is None:
        raise GipfelError(
            "Only services of a hub can be shared, and this terminal has no token of a hub.",
            "Run this in a terminal of a notebook server, or use the hub's home page.",
        )
    answer = hub.share(
        name,
        kind="group" if group else "user",
        who=user or group,
        seconds=0 if end else _share_seconds(time),
    )
    if as_json:
        return print_json(answer)
    print_lines(
        f"{each['kind']} {each['name']}  until {each['expires'] or 'you end it'}" for each in answer["shares"]
    )
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
    """Return address and token of a service that does not speak HTTP; another user's is ``OWNER/NAME``."""
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic
    from ..services.start import service_url  # noqa: PLC0415

    owner, slash, shared = name.partition("/")
    if slash:
        hub = hub_services(os.environ)
        if hub is None:
            raise GipfelError(
                "Only the hub knows what others share with you, and this terminal has no token of the hub.",
                "Run this in a terminal of a notebook server.",
            )
        secret, address = hub.token(shared, _CONNECT_TOKEN_S, owner)
        if not address:
            raise GipfelError(f"The service {name} is not running.", f"Ask {owner} to start it.")
        return address, secret
    directory = service_folder(name)
    if not _is_raw(directory):
        raise GipfelError(f"The service {name} speaks HTTP.", f"See `gipfel service url {name}`.")
    return service_url(directory), _access_token(directory, _CONNECT_TOKEN_S)


def _access_token(folder: Path, expires_s: int) -> str:
    """Return a token that gives access to a service: a new token of its hub, else the service's own."""
    from ..services.directory import HUB, read_spec, read_token  # noqa: PLC0415 - pydantic
    from ..services.hub_services import hub_services  # noqa: PLC0415 - pydantic

    if read_spec(folder).scheduler != HUB:
        return read_token(folder)
    hub = hub_services(os.environ)
    if hub is None:
        raise GipfelError(
            f"The hub gives access to the service {folder.name}, and this terminal has no token of the hub.",
            "Run this in a terminal of a notebook server, or create a token on the hub's page Token.",
        )
    return hub.token(folder.name, expires_s)[0]


def service_folder(name: str) -> Path:
    """Return the directory of a service; raise `GipfelError` if there is none."""
    from ..services.start import ServiceKind  # noqa: PLC0415 - pydantic

    found = ServiceKind().find(name, os.environ)
    if found is None:
        raise GipfelError(f"There is no service {name[:80]!r}.", "See `gipfel service list --all`.")
    return Path(found.folder)


def _public_url(path: str) -> str:
    """Return the address for browsers; only its path if the hub does not report its own address."""
    from urllib.parse import urljoin  # noqa: PLC0415

    host = os.environ.get("JUPYTERHUB_PUBLIC_URL") or os.environ.get("JUPYTERHUB_PUBLIC_HUB_URL", "")
    return urljoin(host, path) if host else path


def _is_raw(folder: Path) -> bool:
    """Return whether a service does not speak HTTP."""
    from ..services.directory import read_spec  # noqa: PLC0415 - pydantic

    blueprint = read_spec(folder).blueprint
    return blueprint.parts[blueprint.front_part].path == "raw"


def how_to_connect(folder: Path) -> tuple[str, ...]:
    """Return lines that say how people and programs reach a running service."""
    from ..services.directory import HUB, read_service_state  # noqa: PLC0415 - pydantic

    if _is_raw(folder):
        return (f"programs connect by: gipfel service connect {folder.name} -- CMD",)
    state = read_service_state(folder)
    if state.scheduler == HUB:
        url = f"{state.host}/" if state.host else _public_url(state.prefix)
        return (
            f"in a browser: {url}, or the hub's home page",
            f"for programs: `gipfel service token {folder.name}` prints a token of the hub",
        )
    port, node = state.port, state.nodes[0] if state.nodes else "NODE"
    return (
        f"it asks for a token, which `gipfel service token {folder.name}` prints",
        f"from another machine: ssh -L {port}:127.0.0.1:{port} {node}, then open it in your browser",
    )


@click.command(
    epilog=examples(
        "gipfel service render mlflow --to kubernetes --image lab/mlflow@sha256:… -o services/mlflow",
        "gipfel service render mlflow --to kubernetes --profile cscs --image … --storage keep --size 50Gi \\",
        "  --host mlflow.example.org --login https://login.example.org/oauth2 \\",
        "  --repo https://git.example.org/team/services.git -o services/mlflow",
        "kubectl apply -k services/mlflow",
    )
)
@click.argument("blueprint", metavar="BLUEPRINT")
@click.option("--to", type=click.Choice(["kubernetes"]), required=True, help="The kind of manifests.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR")
@click.option("-p", "typed", type=(str, str), multiple=True, metavar="K V", help="A parameter's value.")
@click.option("--name", default="", metavar="N", help="Name of the service; by default the blueprint's.")
@click.option(
    "--profile",
    type=click.Choice(["plain", "cscs", "slurm-bridge"]),
    help="Names of storage classes, Ingress class and scheduler: plain (default), CSCS's, or slurm-bridge's.",
)
@click.option("--image", metavar="NAME@sha256:…", help="Image of a registry; by default that of the EDF.")
@click.option("--edf", default="", metavar="FILE|NAME", help="The environment; by default the blueprint's.")
@click.option(
    "--namespace", metavar="NS", help="An existing namespace; by default a new one with a ResourceQuota."
)
@click.option("--host", metavar="HOST", help="Host name of its URL; by default it has none.")
@click.option("--login", metavar="URL", help="An oauth2-proxy, which the Ingress asks about each request.")
@click.option("--without-login", is_flag=True, help="All who reach the host may use it.")
@click.option("--gateway", metavar="NS/NAME", help="An HTTPRoute of this Gateway instead of an Ingress.")
@click.option(
    "--ingress-namespace", metavar="NS", help="Of the Ingress controller; by default ingress-nginx."
)
@click.option(
    "--storage",
    type=click.Choice(["fast", "shared", "keep"]),
    help="Storage class of the data that it keeps: fast, shared (several pods can mount it), or keep (for "
    "data that must last); by default the blueprint's, else fast.",
)
@click.option(
    "--storage-class",
    metavar="NAME",
    help="Kubernetes StorageClass; by default that of your or the site's storage.yaml, else the profile's.",
)
@click.option("--size", metavar="10Gi", help="Size of its persistent volume; by default 10Gi.")
@click.option("--gpu-vendor", type=click.Choice(["nvidia", "amd"]), help="By default nvidia.")
@click.option("--gpu-product", metavar="LABEL", help="Model as the nodes' labels name it.")
@click.option("--gpu-part", metavar="PART", help="The part that gets the GPUs, where there are several.")
@click.option("--user-id", type=int, metavar="UID", help="User of its processes; by default 1000.")
@click.option("--account", metavar="A", help="Slurm's account, for slurm-bridge.")
@click.option("--partition", metavar="P", help="Slurm's partition, for slurm-bridge.")
@click.option("--time", metavar="T", help="Slurm's time limit, for slurm-bridge; by default the blueprint's.")
@click.option(
    "--drop",
    type=click.Choice(["idle_s"]),
    multiple=True,
    help="Ignore this key of the blueprint, which pods can't fulfil: idle_s (end when not used).",
)
@click.option("--repo", "repository", metavar="URL", help="Git repository; adds files for Argo CD.")
@click.option(
    "--repo-path",
    "path",
    metavar="DIR",
    help="Directory of the repository that holds all services; by default services.",
)
@click.option("--revision", metavar="REV", help="Branch or tag that Argo CD follows; by default HEAD.")
@click.option("--server", metavar="URL", help="API server that Argo CD applies it to.")
@click.option("--project", metavar="NAME", help="Project in Argo CD; by default the one named default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def render(
    *, blueprint: str, output: Path, typed: tuple[tuple[str, str], ...], as_json: bool, **options: Any
) -> int:
    """Write a service as Kubernetes manifests, the same bytes each time, for kubectl, kustomize or Argo CD.

    All parts run in one pod. Its image must have Python 3, the programs that the parts run and, if the
    blueprint has packages, pip, which installs them. Its secrets are keys of a Secret with the
    service's name, which you create. It has the URL https://HOST/ instead of a path of the hub, and the login
    of an oauth2-proxy instead of the hub's. What Kubernetes can't do is refused with the reason.

    Exit status: 0; 1 if it can't be rendered.
    """
    from ..services.kubernetes import render as render_files  # noqa: PLC0415 - pydantic
    from ..services.kubernetes import write_manifests  # noqa: PLC0415
    from ..services.kubernetes.pod import secret_names  # noqa: PLC0415

    spec = _spec(blueprint, dict(typed), options)
    target = _target(_with_storage(spec, options))
    image, variables = ("", {}) if target.image else _edf(spec.edf)
    files = render_files(spec, target, edf_image=image, variables=variables)
    write_manifests(files, output)
    if as_json:
        return print_json({"name": spec.name, "directory": str(output), "files": list(files)})
    print_lines(str(output / name) for name in files)
    if secrets := secret_names(spec):
        keys = " ".join(f"--from-file={each}" for each in secrets)
        space = target.namespace or spec.name
        report_line(f"its secrets: kubectl create secret generic {spec.name} -n {space} {keys}")
    resources = spec.blueprint.resources
    if resources.time and target.profile != "slurm-bridge":
        report_line(f"a pod has no time limit: the {resources.time} of the blueprint is not used")
    report_line(f"apply it: kubectl apply -k {output}")
    return 0


def _spec(name: str, typed: dict[str, str], options: dict[str, Any]) -> "ServiceSpec":
    from ..services.blueprint import NAME, find_blueprint  # noqa: PLC0415 - pydantic
    from ..services.directory import ServiceSpec  # noqa: PLC0415
    from ..services.plan import parameter_values  # noqa: PLC0415

    blueprint = find_blueprint(name, directory=Path.cwd(), environment=os.environ)
    values = parameter_values(blueprint, typed)
    chosen = options.pop("name") or blueprint.name
    if not re.fullmatch(NAME, chosen):
        raise GipfelError(
            f"{chosen[:80]!r} can't be a service's name.", "Use up to 30 of a-z, 0-9 and dashes."
        )
    edf = options.pop("edf") or blueprint.edf
    return ServiceSpec(name=chosen, blueprint=blueprint, parameters=values, edf=edf)


def _with_storage(spec: "ServiceSpec", options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the blueprint's storage, and the StorageClass configured for it."""
    from gipfel_cluster.storage_classes import StorageClasses  # noqa: PLC0415 - pydantic

    name = options["storage"] or spec.blueprint.storage
    configured = getattr(StorageClasses.load(os.environ), name or "fast").kubernetes
    return options | {"storage": name, "storage_class": options["storage_class"] or configured or None}


def _target(options: dict[str, Any]) -> "Target":
    from pydantic import ValidationError  # noqa: PLC0415

    from gipfel_cluster.model import first_problem  # noqa: PLC0415

    from ..services.kubernetes import Target  # noqa: PLC0415 - pydantic

    # 0 is a value, which equals False.
    given = {
        key: value
        for key, value in options.items()
        if value is not None and value is not False and key != "to"
    }
    try:
        return Target.model_validate(given)
    except ValidationError as error:
        field, message = first_problem(error)
        if not field:
            raise GipfelError(f"It can't be rendered: {message}.") from None
        field = field.partition(".")[0]
        option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
        raise GipfelError(
            f"{option} can't be used: {message}.", "See `gipfel service render --help`."
        ) from None


def _edf(name: str) -> tuple[str, dict[str, str]]:
    """Return image and variables of an EDF; both are empty without an EDF."""
    from gipfel_cluster.edf import load_edf  # noqa: PLC0415 - pydantic

    if not name:
        return "", {}
    edf = load_edf(name, environment=os.environ, directory=Path.cwd())
    if edf.mounts:
        raise GipfelError(
            f"The EDF {edf.name} mounts directories of the cluster's nodes, which pods don't have.",
            "Give an image that has what the service needs: --image NAME@sha256:DIGEST.",
        )
    return edf.image, {key: value for key, value in edf.env.items() if value}
