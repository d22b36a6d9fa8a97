"""The engine podman: images of registries as OCI images, images of this machine as a root of its own."""

import os
import pwd
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ..edf.model import Edf, Mount
from ..edf.reference import Reference, foreign_store, read_reference
from ..environment import PLACES
from ..model import GipfelError
from .bubblewrap import HostRequirements, prepared_invocation, refused_namespaces
from .devices import Hardware, default_device
from .protocol import ContainerRequest, Invocation
from .sandbox import start_words
from .sandbox.podman import VARIABLE, mounts_to_json, read_by_podman
from .variables import bound_names, check_values, not_text, settings

_INITS = ("/usr/bin/catatonit", "/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit")
_GPUS = "nvidia.com/gpu=all"
_PROPAGATION = frozenset(("private", "rprivate", "slave", "rslave", "shared", "rshared"))
_ALWAYS = frozenset(("bind", "rbind", "rw", "ro", "sqsh"))


class Podman:
    """Runs images by podman, without root; a site's settings are in its ``containers.conf``."""

    name = "podman"

    def __init__(self, hardware: Hardware = Hardware(), *, user: Callable[[], int] = os.geteuid) -> None:
        self._hardware = hardware
        self._user = user

    def missing(self) -> str | None:
        """Return in one line why this machine can't run it, or None."""
        if shutil.which("podman") is None:
            return "The engine podman needs the program podman (Debian package podman)."
        if self._user() == 0:
            return None
        if shutil.which("newuidmap") is None:
            return "The engine podman needs the program newuidmap (Debian package uidmap)."
        if not _has_subordinate_ids(self._user()):
            return "The engine podman needs ids of your own in /etc/subuid; ask for an entry there."
        return refused_namespaces(self.name)

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Turn a request into a call of podman, or for an image of this machine of the sandbox that calls it.

        Raises
        ------
        GipfelError
            No registry can have the image, a path or a program is missing, or podman can't carry a path.
        """
        check_values(request)
        if request.edf.image_path:
            invocation = prepared_invocation(
                request,
                engine=self.name,
                program="podman",
                hardware=self._hardware,
                python=python,
                podman=True,
            )
            return invocation.model_copy(update={"notes": (*invocation.notes, *_text_notes(request))})
        return self._of_registry(request, (python,) if isinstance(python, str) else tuple(python))

    def _of_registry(self, request: ContainerRequest, python: Sequence[str]) -> Invocation:
        edf = request.edf
        reference = read_reference(edf.image)
        if reference.store == "dockerd":
            raise foreign_store(self.name, edf.image, reference)
        values, unset = settings(request)
        mounts = (*edf.mounts, *request.mounts)
        squashed = [mount for mount in mounts if "sqsh" in mount.flags]
        given = [f"{request.scratch}/mount-{number}" for number in range(len(squashed))]
        sources = dict(zip(squashed, given, strict=True))
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
        place = HostRequirements(request)
        place.check_mounts(mounts)
        argv: tuple[str, ...] = (
            place.program("podman"),
            *("--log-level=error", "run", *options, _name(reference), *request.command),
        )
        gone = {name for name in unset if not read_by_podman(name)}
        environment = {name: value for name, value in request.environment.items() if name not in gone}
        environment |= {name: value for name, value in values.items() if not read_by_podman(name)}
        if squashed:
            files = [(each.source, at) for each, at in zip(squashed, given, strict=True)]
            environment[VARIABLE] = mounts_to_json(place.squashfuse(), files)
            argv = (*start_words(python, "mounted"), *argv)
        notes = (*place.notes, *self._notes(request))
        return Invocation(argv=argv, environment=environment, notes=notes)

    def _devices(self, edf: Edf) -> tuple[str, ...]:
        if edf.devices:
            return tuple(f"--device={device}" for device in edf.devices)
        return (f"--device={_GPUS}",) if self._has_gpus(edf) else ("--volume=/dev:/dev:rslave",)

    def _has_gpus(self, edf: Edf) -> bool:
        if edf.env.get("NVIDIA_VISIBLE_DEVICES", "all") in {"", "void"}:
            return False
        return default_device(_GPUS, self._hardware.cdi_folders) is not None

    def _notes(self, request: ContainerRequest) -> tuple[str, ...]:
        edf = request.edf
        notes = [
            f"The flag {flag!r} of the mount {mount} has no effect in the engine podman."
            for mount in (*edf.mounts, *request.mounts)
            for flag in mount.flags
            if flag not in _PROPAGATION | _ALWAYS
        ]
        notes.append(
            "What an image of a registry sets is known to podman alone: "
            "where the job sets a variable too, the job's value counts but for PATH and the like."
        )
        if edf.writable and self._user():
            notes.append("What belongs to root in the image stays root's, whom the command is not.")
        if not _has_init():
            notes.append(
                "Without catatonit a signal does not end a command in podman that doesn't handle it."
            )
        if read_reference(edf.image).user:
            notes.append("The user in the image's name is left out: log in with 'podman login'.")
        if not edf.devices and self._has_gpus(edf):
            notes.append("Of the host's devices the container sees the GPUs only; name others in 'devices'.")
        return (*notes, *_text_notes(request))


def _variables(request: ContainerRequest, values: dict[str, str], unset: Sequence[str]) -> list[str]:
    """By name, so that no value is in an argv, but for those that podman would take for its own."""
    words = []
    offered = (each for each in request.environment if each not in PLACES and not each.startswith("LD_"))
    for name in dict.fromkeys((*offered, *bound_names(request), *values)):
        if name in unset:
            continue
        value = values.get(name, request.environment.get(name, ""))
        differs = read_by_podman(name) and request.environment.get(name) != value
        words += ["--env", f"{name}={value}" if differs else name]
    return words


def _name(reference: Reference) -> str:
    """Return podman's name of an image; one of its own store without a registry that was not named."""
    if reference.store == "podman" and not reference.registry:
        return f"{reference.name}{reference.version}"
    return reference.oci


def _mount(mount: Mount, source: str) -> str:
    for path in (source, mount.destination):
        if "," in path or '"' in path:
            raise GipfelError(
                f"The path {path!r} of a mount has a comma or a quote, which podman can't carry.",
                "Give the directory a name without them.",
            )
    fields = ["type=bind", f"source={source}", f"destination={mount.destination}"]
    fields += ["ro"] if {"ro", "sqsh"} & set(mount.flags) else []
    fields += [f"bind-propagation={flag}" for flag in mount.flags if flag in _PROPAGATION]
    return ",".join(fields)


def _text_notes(request: ContainerRequest) -> tuple[str, ...]:
    names = not_text(request.environment)
    if not names:
        return ()
    return (f"podman changes the bytes of {', '.join(names)} that are not UTF-8.",)


def _has_init() -> bool:
    return any(os.access(path, os.X_OK) for path in _INITS)


def _has_subordinate_ids(user: int) -> bool:
    try:
        name = pwd.getpwuid(user).pw_name
        lines = Path("/etc/subuid").read_text().splitlines()
    except (KeyError, OSError):
        return False
    return any(line.split(":")[0] in {name, str(user)} for line in lines)
