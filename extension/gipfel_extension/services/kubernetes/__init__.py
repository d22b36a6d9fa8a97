"""Render a blueprint as Kubernetes manifests, the same bytes each time.

`target` has the options, `pod` turns a blueprint into a pod, `objects` makes the objects around the pod.
``bridge.py`` is a program that runs in the pod; it imports nothing of Gipfel.

The YAML is written from values, never from templates, and every text that could be read as something else is
quoted, so that no value can become another key, type or object.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gipfel_cluster.model import GipfelError

from ..directory import ServiceSpec
from . import objects
from .objects import space
from .pod import Object, pod_spec, service_image, speaks_http, uses_storage
from .target import Profile, Target

__all__ = ["FILES", "Profile", "Target", "render", "to_yaml", "write_manifests"]

KUSTOMIZATION = "kustomization.yaml"
#: All files that `render` may return. `write_manifests` removes those of an earlier call that it does not
#: write.
FILES = (
    "namespace.yaml",
    "quota.yaml",
    "configmap.yaml",
    "storage.yaml",
    "workload.yaml",
    "service.yaml",
    "networkpolicy.yaml",
    "route.yaml",
    KUSTOMIZATION,
    "argocd/application.yaml",
    "argocd/applicationset.yaml",
)
_ARGO_NAMESPACE, _ARGO_VERSION = "argocd", "argoproj.io/v1alpha1"


def render(
    spec: ServiceSpec, target: Target, *, edf_image: str = "", variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the files of a service on Kubernetes by their names, the same each time.

    Parameters
    ----------
    edf_image, variables
        Image and variables of the EDF, if the target names no image.

    Raises
    ------
    GipfelError
        Kubernetes can't take what the blueprint or the target asks for.
    """
    if spec.name[0].isdigit():
        raise GipfelError(
            f"{spec.name!r} can't be the name of a Service, which begins with a letter.",
            "Give another one with --name.",
        )
    if target.host and not speaks_http(spec):
        raise GipfelError(
            f"{spec.name} does not speak HTTP, which an Ingress or an HTTPRoute is for.",
            "Leave --host out: pods of its namespace reach it by the Service.",
        )
    if spec.blueprint.resources.nodes > 1:
        raise GipfelError(
            f"{spec.name} needs {spec.blueprint.resources.nodes} nodes, and a pod runs on one.",
            "Render it for one node with more GPUs, or run it as a job.",
        )
    image = service_image(spec, target, edf_image)
    pod = pod_spec(spec, target, image, {} if target.image else variables or {})
    files = {
        "configmap.yaml": objects.config_map(spec, target),
        "workload.yaml": objects.workload(spec, target, pod),
        "service.yaml": objects.service(spec, target),
        "networkpolicy.yaml": objects.network_policy(spec, target),
    }
    if not target.namespace:
        files["namespace.yaml"] = objects.namespace(spec)
        files["quota.yaml"] = objects.quota(spec, target, pod)
    if uses_storage(spec):
        files["storage.yaml"] = objects.claim(spec, target)
    if target.host:
        route = objects.http_route if target.gateway else objects.ingress
        files["route.yaml"] = route(spec, target)
    resources = [name for name in FILES if name in files]
    files[KUSTOMIZATION] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": space(spec, target),
        "resources": resources,
    }
    if target.repository:
        files["argocd/application.yaml"] = _application(spec, target)
        files["argocd/applicationset.yaml"] = _application_set(target)
    return {name: to_yaml(files[name]) for name in FILES if name in files}


def write_manifests(files: Mapping[str, str], directory: Path) -> None:
    """Write the files into a directory, and remove those of an earlier rendering that are not among them.

    Raises
    ------
    GipfelError
        The directory can't be written.
    """
    try:
        for name in FILES:
            path = directory / name
            if name in files:
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(f".{path.name}.part")
                part.write_text(files[name])
                part.replace(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise GipfelError(
            f"{directory} can't be written: {error.strerror}.", "Give another one with -o."
        ) from None


class _Dumper(yaml.SafeDumper):
    """Writes block style, and quotes each text that is not a plain word."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - of the base class
        return True


# Parsers differ in what they read as a number, time or boolean, for example `1e3`, `0o7`, `on`, `1:30`.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")
_NOT_PLAIN = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN else '"'
    if "\n" in text:
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(document: Object) -> str:
    """Return the document as YAML that all parsers read alike."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=2**31)
    return text


def _sync_policy() -> Object:
    return {"automated": {"prune": True, "selfHeal": True}}


def _application(spec: ServiceSpec, target: Target) -> Object:
    source = {
        "repoURL": target.repository,
        "path": f"{target.path.strip('/')}/{spec.name}",
        "targetRevision": target.revision,
    }
    content = {
        "project": target.project,
        "source": source,
        "destination": {"server": target.server, "namespace": space(spec, target)},
        "syncPolicy": {**_sync_policy(), "syncOptions": ["CreateNamespace=true"]},
    }
    metadata = {"name": spec.name, "namespace": _ARGO_NAMESPACE, "labels": objects.labels(spec)}
    return {
        "apiVersion": _ARGO_VERSION,
        "kind": "Application",
        "metadata": metadata,
        "spec": content,
    }


def _application_set(target: Target) -> Object:
    """Return an ApplicationSet that makes an Application of each directory of the repository's path."""
    path = target.path.strip("/")
    directories = [{"path": f"{path}/*"}]
    git = {"repoURL": target.repository, "revision": target.revision, "directories": directories}
    source = {"repoURL": target.repository, "path": "{{.path.path}}", "targetRevision": target.revision}
    content = {
        "goTemplate": True,
        "goTemplateOptions": ["missingkey=error"],
        "generators": [{"git": git}],
        "template": {
            "metadata": {"name": "{{.path.basename}}"},
            "spec": {
                "project": target.project,
                "source": source,
                "destination": {"server": target.server, "namespace": "{{.path.basename}}"},
                "syncPolicy": _sync_policy(),
            },
        },
    }
    metadata = {"name": "gipfel-services", "namespace": _ARGO_NAMESPACE}
    return {
        "apiVersion": _ARGO_VERSION,
        "kind": "ApplicationSet",
        "metadata": metadata,
        "spec": content,
    }
