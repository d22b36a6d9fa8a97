"""``gipfel service render``: a blueprint as Kubernetes manifests."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from ..services.kubernetes import Target
    from ..services.plan import ServiceSpec

#: Options whose names are not those of the target's fields.
_OPTIONS = {"repository": "--repo", "path": "--repo-path"}


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
    help="Names of the cluster: plain (default), those of CSCS, or SchedMD's slurm-bridge.",
)
@click.option("--image", metavar="NAME@sha256:…", help="Image of a registry; by default that of the EDF.")
@click.option("--edf", default="", metavar="FILE|NAME", help="The environment; by default the blueprint's.")
@click.option("--namespace", metavar="NS", help="One that exists; by default one of its own, with a quota.")
@click.option("--host", metavar="HOST", help="Host name of its URL; by default it has none.")
@click.option("--login", metavar="URL", help="An oauth2-proxy, which the Ingress asks about each request.")
@click.option("--without-login", is_flag=True, help="All who reach the host may use it.")
@click.option("--gateway", metavar="NS/NAME", help="An HTTPRoute of this Gateway instead of an Ingress.")
@click.option("--ingress-namespace", metavar="NS", help="Where the Ingress controller runs: ingress-nginx.")
@click.option("--storage", type=click.Choice(["fast", "shared", "keep"]), help="Class of what it keeps.")
@click.option("--storage-class", metavar="NAME", help="By default the profile's, else the cluster's.")
@click.option("--size", metavar="10Gi", help="Size of what it keeps.")
@click.option("--gpu-vendor", type=click.Choice(["nvidia", "amd"]), help="By default nvidia.")
@click.option("--gpu-product", metavar="LABEL", help="Model as the nodes' labels name it.")
@click.option("--gpu-part", metavar="PART", help="The part that gets the GPUs, where there are several.")
@click.option("--user-id", type=int, metavar="UID", help="User of its processes: 1000.")
@click.option("--account", metavar="A", help="Slurm's account, for slurm-bridge.")
@click.option("--partition", metavar="P", help="Slurm's partition, for slurm-bridge.")
@click.option("--time", metavar="T", help="Slurm's time limit, for slurm-bridge; by default the blueprint's.")
@click.option("--drop", type=click.Choice(["idle_s"]), multiple=True, help="Leave out what pods can't do.")
@click.option("--repo", "repository", metavar="URL", help="Git repository; adds files for Argo CD.")
@click.option("--repo-path", "path", metavar="DIR", help="Directory of all services in it: services.")
@click.option("--revision", metavar="REV", help="Branch or tag that Argo CD follows: HEAD.")
@click.option("--server", metavar="URL", help="API server that Argo CD applies it to.")
@click.option("--project", metavar="NAME", help="Project in Argo CD: default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def render(
    *, blueprint: str, output: Path, typed: tuple[tuple[str, str], ...], as_json: bool, **options: Any
) -> int:
    """Write a service as Kubernetes manifests, the same bytes each time, for kubectl, kustomize or Argo CD.

    All parts run in one pod, which finds its programs in an image with Python 3 and, if the blueprint has
    packages, pip. Its secrets are keys of a Secret with the service's name, which you create. It has the URL
    https://HOST/ instead of a path of the hub, and the login of an oauth2-proxy instead of the hub's. What
    Kubernetes can't do is refused with the reason.

    Exit status: 0; 1 if it can't be rendered.
    """
    from ..services.kubernetes import render as render_files  # noqa: PLC0415 - pydantic
    from ..services.kubernetes import write_manifests  # noqa: PLC0415
    from ..services.kubernetes.pod import secret_names  # noqa: PLC0415

    spec = _spec(blueprint, dict(typed), options)
    target = _target(options)
    image, variables = ("", {}) if target.image else _edf(spec.edf)
    files = render_files(spec, target, edf_image=image, variables=variables)
    write_manifests(files, output)
    if as_json:
        click.echo(json.dumps({"name": spec.name, "directory": str(output), "files": list(files)}))
        return 0
    for name in files:
        click.echo(str(output / name))
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
    from ..services.plan import ServiceSpec, parameter_values  # noqa: PLC0415

    blueprint = find_blueprint(name, directory=Path.cwd(), environment=os.environ)
    values = parameter_values(blueprint, typed)
    chosen = options.pop("name") or blueprint.name
    if not re.fullmatch(NAME, chosen):
        raise _error(f"{chosen[:80]!r} can't be a service's name.", "Use up to 30 of a-z, 0-9 and dashes.")
    edf = options.pop("edf") or blueprint.edf
    return ServiceSpec(name=chosen, blueprint=blueprint, parameters=values, edf=edf)


def _target(options: dict[str, Any]) -> "Target":
    from pydantic import ValidationError  # noqa: PLC0415

    from ..services.kubernetes import Target  # noqa: PLC0415 - pydantic

    given = {key: value for key, value in options.items() if value not in {None, False} and key != "to"}
    try:
        return Target.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise _error(f"It can't be rendered: {message}.", "") from None
        field = str(first["loc"][0])
        option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
        raise _error(f"{option} can't be used: {message}.", "See `gipfel service render --help`.") from None


def _edf(name: str) -> tuple[str, dict[str, str]]:
    """Return image and variables of an EDF; empty without one."""
    from gipfel_cluster.edf import load_edf  # noqa: PLC0415 - pydantic

    if not name:
        return "", {}
    edf = load_edf(name, environment=os.environ, directory=Path.cwd())
    if edf.mounts:
        raise _error(
            f"The EDF {edf.name} mounts directories of the cluster's nodes, which pods don't have.",
            "Give an image that has what the service needs: --image NAME@sha256:DIGEST.",
        )
    return edf.image, {key: value for key, value in edf.env.items() if value}


def _error(problem: str, fix: str) -> Exception:
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    return GipfelError(problem, fix)
