"""The engine ``podman``: pulls images from registries, and runs images on this machine with ``--rootfs``."""

import os
import pwd
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ..edf.model import Edf, Mount
from ..edf.mounts import Reference, read_reference, unsupported_store_error
from ..environment import PATH_VARIABLES
from ..model import GipfelError
from .bubblewrap import HostRequirements, namespace_problem, sandbox_invocation
from .devices import Hardware, default_device
from .protocol import (
    ContainerRequest,
    Invocation,
    check_values,
    edf_variables,
    flag_notes,
    non_utf8_names,
    protected_names,
)
from .sandbox import sandbox_argv
from .sandbox.podman import VARIABLE, is_read_by_podman, mounts_to_json

_INITS = ("/usr/bin/catatonit", "/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit")
_GPUS = "nvidia.com/gpu=all"
_PROPAGATION = frozenset(("private", "rprivate", "slave", "rslave", "shared", "rshared"))
_IMPLIED_FLAGS = frozenset(("bind", "rbind", "rw", "ro", "sqsh"))


class Podman:
    """Runs images with rootless podman; a site's settings are in its ``containers.conf``."""

    name = "podman"

    def __init__(self, hardware: Hardware = Hardware(), *, user: Callable[[], int] = os.geteuid) -> None:
        self._hardware = hardware
        self._user = user

    def unavailable_reason(self) -> str | None:
        """Return in one line why this machine can't run the engine, or None."""
        if shutil.which("podman") is None:
            return "The engine podman needs the program podman (Debian package podman)."
        if self._user() == 0:
            return None
        if shutil.which("newuidmap") is None:
            return "The engine podman needs the program newuidmap (Debian package uidmap)."
        if not _has_subordinate_ids(self._user()):
            return (
                "The engine podman needs subordinate ids in /etc/subuid; ask the administrator for an entry."
            )
        return namespace_problem(self.name)

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Render a request as a call of podman; for an image on this machine, the sandbox calls podman.

        Raises
        ------
        GipfelError
            The image's name is not valid, a path or a program is missing, or podman can't escape a path.
        """
        check_values(request)
        if request.edf.image_path:
            invocation = sandbox_invocation(
                request,
                engine=self.name,
                program="podman",
                hardware=self._hardware,
                python=python,
                podman=True,
            )
            return invocation.model_copy(update={"notes": (*invocation.notes, *_text_notes(request))})
        return self._registry_invocation(request, (python,) if isinstance(python, str) else tuple(python))

    def _registry_invocation(self, request: ContainerRequest, python: Sequence[str]) -> Invocation:
        edf = request.edf
        reference = read_reference(edf.image)
        if reference.store == "dockerd":
            raise unsupported_store_error(self.name, edf.image, reference)
        values, unset = edf_variables(request)
        mounts = (*edf.mounts, *request.mounts)
        squashed = [mount for mount in mounts if "sqsh" in mount.flags]
        targets = [f"{request.scratch}/mount-{number}" for number in range(len(squashed))]
        sources = dict(zip(squashed, targets, strict=True))
        workdir = request.workdir or edf.workdir
        options = [
            *("--rm", "--interactive", "--network=host", "--uts=host", "--ulimit=host"),
            *(["--pull=never"] if reference.store == "podman" else []),
            *(["--ipc=host"] if Path("/dev/mqueue").is_dir() else []),
            *(["--init"] if _has_init() else []),
            *(["--userns=keep-id"] if self._user() else []),
            *([] if edf.writable else ["--read-only"]),
            *([] if edf.entrypoint else ["--entrypoint="]),
            *self._devices(edf),
            *(
                word
                for mount in mounts
                for word in ("--mount", _mount(mount, sources.get(mount, mount.source)))
            ),
            *(word for name in unset for word in ("--unsetenv", name)),
            *_variables(request, values, unset),
            *([f"--workdir={workdir}"] if workdir else []),
        ]
        host = HostRequirements(request)
        host.check_mounts(mounts)
        argv: tuple[str, ...] = (
            host.program("podman"),
            *("--log-level=error", "run", *options, _name(reference), *request.command),
        )
        environment = {
            name: value
            for name, value in request.environment.items()
            if name not in unset or is_read_by_podman(name)
        }
        environment |= {name: value for name, value in values.items() if not is_read_by_podman(name)}
        if squashed:
            files = [(mount.source, target) for mount, target in zip(squashed, targets, strict=True)]
            environment[VARIABLE] = mounts_to_json(host.squashfuse(), files)
            argv = (*sandbox_argv(python, "mounted"), *argv)
        return Invocation(argv=argv, environment=environment, notes=(*host.notes, *self._notes(request)))

    def _devices(self, edf: Edf) -> tuple[str, ...]:
        if edf.devices:
            return tuple(f"--device={device}" for device in edf.devices)
        return (f"--device={_GPUS}",) if self._has_gpus(edf) else ("--volume=/dev:/dev:rslave",)

    def _has_gpus(self, edf: Edf) -> bool:
        is_enabled = edf.env.get("NVIDIA_VISIBLE_DEVICES", "all") not in {"", "void"}
        return is_enabled and default_device(_GPUS, self._hardware.cdi_directories) is not None

    def _notes(self, request: ContainerRequest) -> tuple[str, ...]:
        edf = request.edf
        flags = flag_notes(request, self.name, _PROPAGATION | _IMPLIED_FLAGS)
        others = {
            "Only podman reads the variables of an image in a registry: the job's value of a variable "
            "overrides the image's, except for search paths such as PATH.": True,
            "Files of root in the image still belong to root, and the command can't change them.": (
                edf.writable and self._user()
            ),
            "Without catatonit a signal does not end a command in podman that does not handle the signal.": (
                not _has_init()
            ),
            "The user in the image's name is ignored: log in with 'podman login'.": (
                read_reference(edf.image).user
            ),
            "The GPUs are the only devices of the host in the container; list others in 'devices'.": (
                not edf.devices and self._has_gpus(edf)
            ),
        }
        return (*flags, *(note for note, applies in others.items() if applies), *_text_notes(request))


def _variables(request: ContainerRequest, values: dict[str, str], unset: Sequence[str]) -> list[str]:
    """Return ``--env`` options by name, with a value in the argv only if podman reads the variable itself."""
    words = []
    offered = (
        each for each in request.environment if each not in PATH_VARIABLES and not each.startswith("LD_")
    )
    for name in dict.fromkeys((*offered, *protected_names(request), *values)):
        if name in unset:
            continue
        value = values.get(name, request.environment.get(name, ""))
        differs = is_read_by_podman(name) and request.environment.get(name) != value
        words += ["--env", f"{name}={value}" if differs else name]
    return words


def _name(reference: Reference) -> str:
    """Return podman's name of an image; for its local storage only with the registry that was given."""
    if reference.store == "podman" and not reference.registry:
        return f"{reference.name}{reference.version}"
    return reference.oci


def _mount(mount: Mount, source: str) -> str:
    for path in (source, mount.destination):
        if "," in path or '"' in path:
            raise GipfelError(
                f"The path {path!r} of a mount has a comma or a quote, which podman can't escape.",
                "Rename the directory, or mount it through a link without them.",
            )
    fields = ["type=bind", f"source={source}", f"destination={mount.destination}"]
    fields += ["ro"] if {"ro", "sqsh"} & set(mount.flags) else []
    fields += [f"bind-propagation={flag}" for flag in mount.flags if flag in _PROPAGATION]
    return ",".join(fields)


def _text_notes(request: ContainerRequest) -> tuple[str, ...]:
    names = ", ".join(non_utf8_names(request.environment))
    return (f"podman changes the bytes of {names} that are not UTF-8.",) if names else ()


def _has_init() -> bool:
    return any(os.access(path, os.X_OK) for path in _INITS)


def _has_subordinate_ids(user: int) -> bool:
    try:
        name = pwd.getpwuid(user).pw_name
        lines = Path("/etc/subuid").read_text().splitlines()
    except (KeyError, OSError):
        return False
    return any(line.split(":")[0] in {name, str(user)} for line in lines)
