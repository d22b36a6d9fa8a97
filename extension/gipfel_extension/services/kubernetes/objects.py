"""Objects around the pod of a service: workload, Service, storage, route, network policy, quota."""

import hashlib
import inspect
from collections.abc import Iterator, Mapping

from gipfel_cluster.scheduler.notation import parse_duration

from ..blueprint import Environment
from ..directory import ServiceSpec
from . import bridge
from .pod import BRIDGE_FILE, DOOR_PORT, HOST, Object, speaks_http, url_prefix, uses_storage
from .target import Target

_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10")
_PRIVATE_NETWORKS_6 = ("fc00::/7", "fe80::/10")
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def config_map(spec: ServiceSpec, target: Target) -> Object:
    """Return the ConfigMap with the bridge."""
    return _object(spec, target, "v1/ConfigMap", {"data": {BRIDGE_FILE: _bridge()}})


def _bridge() -> str:
    return inspect.getsource(bridge)


def space(spec: ServiceSpec, target: Target) -> str:
    """Return the namespace of the service's objects."""
    return target.namespace or spec.name


def labels(spec: ServiceSpec) -> dict[str, str]:
    """Return the labels of all objects of the service."""
    return {
        "app.kubernetes.io/name": spec.blueprint.name,
        "app.kubernetes.io/instance": spec.name,
        "app.kubernetes.io/managed-by": "gipfel",
    }


def _selector(spec: ServiceSpec) -> dict[str, str]:
    return {"app.kubernetes.io/instance": spec.name}


def _object(
    spec: ServiceSpec,
    target: Target,
    type_: str,
    content: Object,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    version, _, kind = type_.rpartition("/")
    metadata: Object = {"name": spec.name, "namespace": space(spec, target), "labels": labels(spec)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def workload(spec: ServiceSpec, target: Target, pod: Object) -> Object:
    """Return a StatefulSet where two pods must never run at once, for storage, else a Deployment."""
    job = _job_annotations(spec, target)
    # A change of the bridge replaces the pod.
    digest = hashlib.sha256(_bridge().encode()).hexdigest()[:16]
    annotations = {"gipfel/bridge": digest, **_about(spec), **job}
    template = {"metadata": {"labels": labels(spec), "annotations": annotations}, "spec": pod}
    content: Object = {"replicas": 1, "selector": {"matchLabels": _selector(spec)}}
    # slurm-bridge reads annotations of a Deployment's ReplicaSet, which may lag behind.
    is_single = uses_storage(spec) or target.profile == "slurm-bridge"
    if is_single:
        content["serviceName"] = spec.name
    else:
        # The quota allows one pod, so that a rolling update could not start the second.
        content["strategy"] = {"type": "Recreate"}
    content["template"] = template
    kind = "StatefulSet" if is_single else "Deployment"
    return _object(spec, target, f"apps/v1/{kind}", {"spec": content}, {**_about(spec), **job})


def _about(spec: ServiceSpec) -> dict[str, str]:
    blueprint = spec.blueprint
    about = {"gipfel/title": blueprint.title}
    if blueprint.version:
        about["gipfel/version"] = blueprint.version
    if blueprint.outbound:
        about["gipfel/outbound"] = ",".join(blueprint.outbound)
    return about


def _job_annotations(spec: ServiceSpec, target: Target) -> dict[str, str]:
    """Return what slurm-bridge passes on to the Slurm job of the pod; its time limit is in minutes."""
    if target.profile != "slurm-bridge":
        return {}
    seconds = parse_duration(target.time or spec.blueprint.resources.time or "")
    found = {
        "job-name": f"gipfel-{spec.name}",
        "account": target.account or spec.account,
        "partition": target.partition or spec.blueprint.resources.partition,
        "timelimit": str(max(seconds // 60, 1)) if seconds else "",
    }
    return {f"slurmjob.slinky.slurm.net/{key}": value for key, value in found.items() if value}


def service(spec: ServiceSpec, target: Target) -> Object:
    """Return the Service, which leads to the bridge."""
    name, port = ("http", 80) if speaks_http(spec) else ("tcp", DOOR_PORT)
    ports = [{"name": name, "port": port, "targetPort": "door", "protocol": "TCP"}]
    content = {"spec": {"type": "ClusterIP", "selector": _selector(spec), "ports": ports}}
    return _object(spec, target, "v1/Service", content)


def claim(spec: ServiceSpec, target: Target) -> Object:
    """Return the claim for what the service keeps."""
    content: Object = {
        "accessModes": ["ReadWriteMany" if target.storage == "shared" else "ReadWriteOnce"],
        "resources": {"requests": {"storage": target.size}},
    }
    if target.storage_class_name:
        content["storageClassName"] = target.storage_class_name
    return _object(spec, target, "v1/PersistentVolumeClaim", {"spec": content})


def namespace(spec: ServiceSpec) -> Object:
    """Return the service's own namespace."""
    enforced = {**labels(spec), "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": spec.name, "labels": enforced}}


def quota(spec: ServiceSpec, target: Target, pod: Object) -> Object:
    """Return the quota of the service's own namespace: one pod, and what its blueprint names."""
    limits = [each["resources"]["limits"] for each in pod["containers"]]
    limits += [
        each["resources"]["limits"] for each in pod.get("initContainers", ()) if "restartPolicy" in each
    ]
    milli = sum(int(each["cpu"].removesuffix("m")) for each in limits)
    memory = sum(int(each["memory"].removesuffix("Mi")) for each in limits)
    hard = {
        "pods": "1",
        "requests.cpu": f"{milli}m",
        "requests.memory": f"{memory}Mi",
        "limits.cpu": f"{milli}m",
        "limits.memory": f"{memory}Mi",
        f"requests.{target.gpu_vendor}.com/gpu": str(spec.blueprint.resources.gpus),
        "services.loadbalancers": "0",
        "services.nodeports": "0",
    }
    if uses_storage(spec):
        hard |= {"persistentvolumeclaims": "1", "requests.storage": target.size}
    return _object(spec, target, "v1/ResourceQuota", {"spec": {"hard": hard}})


def network_policy(spec: ServiceSpec, target: Target) -> Object:
    """Return who may connect to the pod, and where it may connect to.

    Policies match addresses, not the host names in ``outbound``: a service with any entry there may connect
    to the ports of its entries at all addresses outside of private networks.
    """
    sources: list[Object] = [{"podSelector": {}}]
    if target.host:
        space = target.gateway.partition("/")[0] or target.ingress_namespace
        sources.append({"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: space}}})
    ingress = [{"from": sources, "ports": [{"port": DOOR_PORT, "protocol": "TCP"}]}]
    dns = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: "kube-system"}}}
    ports = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    egress: list[Object] = [{"to": [{"podSelector": {}}]}, {"to": [dns], "ports": ports}]
    outside = sorted(_outbound_ports(spec))
    if outside:
        anywhere = [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(_PRIVATE_NETWORKS)}},
            {"ipBlock": {"cidr": "::/0", "except": list(_PRIVATE_NETWORKS_6)}},
        ]
        egress.append({"to": anywhere, "ports": [{"port": each, "protocol": "TCP"} for each in outside]})
    content = {
        "podSelector": {"matchLabels": _selector(spec)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return _object(spec, target, "networking.k8s.io/v1/NetworkPolicy", {"spec": content})


def _outbound_ports(spec: ServiceSpec) -> set[int]:
    found = {int(host.rpartition(":")[2]) if ":" in host else 443 for host in spec.blueprint.outbound}
    # Packages are installed from their registries.
    return found | ({443} if spec.blueprint.environment != Environment() else set())


def _paths(spec: ServiceSpec) -> Iterator[tuple[str, bool]]:
    """Yield the paths that may be requested, each with whether it includes all paths below it."""
    for path in spec.blueprint.parts[spec.blueprint.front_part].allow_paths or ("/",):
        yield url_prefix(spec).rstrip("/") + path, path.endswith("/")


def ingress(spec: ServiceSpec, target: Target) -> Object:
    """Return an Ingress with TLS, and with the login of an oauth2-proxy."""
    annotations = dict(target.names.annotations)
    # No limits on the size of an upload or the duration of a stream.
    annotations |= {
        "nginx.ingress.kubernetes.io/proxy-body-size": "0",
        "nginx.ingress.kubernetes.io/proxy-read-timeout": "3600",
        "nginx.ingress.kubernetes.io/upstream-vhost": HOST,
    }
    if target.login:
        login = target.login.rstrip("/")
        annotations["nginx.ingress.kubernetes.io/auth-url"] = f"{login}/auth"
        annotations["nginx.ingress.kubernetes.io/auth-signin"] = f"{login}/start?rd=$escaped_request_uri"
    backend = {"service": {"name": spec.name, "port": {"name": "http"}}}
    paths = [
        {"path": path, "pathType": "Prefix" if below else "Exact", "backend": backend}
        for path, below in _paths(spec)
    ]
    content: Object = {
        "tls": [{"hosts": [target.host], "secretName": f"{spec.name}-tls"}],
        "rules": [{"host": target.host, "http": {"paths": paths}}],
    }
    if target.names.ingress_class:
        content = {"ingressClassName": target.names.ingress_class, **content}
    return _object(spec, target, "networking.k8s.io/v1/Ingress", {"spec": content}, annotations)


def http_route(spec: ServiceSpec, target: Target) -> Object:
    """Return an HTTPRoute of a Gateway."""
    space, _, name = target.gateway.partition("/")
    matches = [
        {"path": {"type": "PathPrefix" if below else "Exact", "value": path}} for path, below in _paths(spec)
    ]
    rewrite = {"type": "URLRewrite", "urlRewrite": {"hostname": HOST}}
    backend = {"name": spec.name, "port": 80}
    content = {
        "parentRefs": [{"name": name, "namespace": space}],
        "hostnames": [target.host],
        "rules": [{"matches": matches, "filters": [rewrite], "backendRefs": [backend]}],
    }
    return _object(spec, target, "gateway.networking.k8s.io/v1/HTTPRoute", {"spec": content})
