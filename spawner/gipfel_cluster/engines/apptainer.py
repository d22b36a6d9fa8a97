"""The engine ``apptainer``; its argv is tested, but not run, since Debian has no package of Apptainer."""

import csv
import io
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..edf.image import image_environment
from ..edf.model import Mount
from ..edf.mounts import read_reference, unsupported_store_error
from .protocol import ContainerRequest, Invocation, check_values, edf_variables, flag_notes, is_protected
from .srun import env_command, is_read_by_launcher

#: Mounts of Apptainer's configuration that are disabled, since an EDF lists all mounts itself.
_NOT_MOUNTED = "home,cwd,tmp,bind-paths"
_SUPPORTED_FLAGS = frozenset(
    ("ro", "rw", "sqsh", "bind", "rbind", "x-create=auto", "x-create=dir", "x-create=file")
)
#: Enroot writes the entry point to /etc/rc; other images have it in their OCI configuration only.
_ENTRYPOINT_SCRIPT = 'if [ -s /etc/rc ]; then exec /bin/sh /etc/rc "$@"; else exec "$@"; fi'


class Apptainer:
    """Runs ``.sqsh`` files, unpacked images and images from registries with ``apptainer exec``."""

    name = "apptainer"

    def unavailable_reason(self) -> str | None:
        """Return in one line why this machine can't run the engine, or None."""
        if shutil.which("apptainer") is None:
            return "The engine apptainer needs the program apptainer, which is not on PATH."
        return None

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Render a request as a call of apptainer, with the variables in its environment.

        Raises
        ------
        GipfelError
            A value has a newline, or the image's name is not valid.
        """
        check_values(request)
        edf = request.edf
        values, unset = edf_variables(request)
        local = edf.image_path is not None
        if edf.image_path:
            values = {
                name: value
                for name, value in image_environment(edf.image_path).items()
                if name not in unset and not is_protected(name, request.protected)
            } | values
        protected = {
            name: value
            for name, value in request.environment.items()
            if is_protected(name, request.protected)
        }
        values = protected | values
        # Apptainer refuses HOME as a variable, and its option --home would also mount the directory.
        home = {"HOME": values.pop("HOME")} if "HOME" in values else {}
        run = "run" if edf.entrypoint and not local else "exec"
        workdir = request.workdir or edf.workdir
        entry = ("/bin/sh", "-c", _ENTRYPOINT_SCRIPT, "sh") if edf.entrypoint and local else ()
        argv = (
            "apptainer",
            run,
            "--no-eval",
            f"--no-mount={_NOT_MOUNTED}",
            "--no-home",
            *(["--writable-tmpfs"] if edf.writable else []),
            *_accelerator(request),
            *(word for mount in (*edf.mounts, *request.mounts) for word in ("--mount", _mount(mount))),
            *(["--pwd", workdir] if workdir else []),
            edf.image if local else _registry_uri(edf.image),
            *env_command(unset, home),
            *entry,
            *request.command,
        )
        inside = {f"APPTAINERENV_{name}": value for name, value in values.items()}
        environment = {
            name: value
            for name, value in request.environment.items()
            if name not in unset or is_read_by_launcher(name)
        }
        return Invocation(argv=argv, environment=environment | inside, notes=_notes(request))


def _registry_uri(image: str) -> str:
    reference = read_reference(image)
    if reference.store != "registry":
        raise unsupported_store_error("apptainer", image, reference)
    return f"docker://{reference.oci}"


def _mount(mount: Mount) -> str:
    """Return a mount as the CSV line that ``--mount`` reads, in which a path may contain any character."""
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.destination}"]
    if "sqsh" in mount.flags:
        fields.append("image-src=/")
    if {"ro", "sqsh"} & set(mount.flags):
        fields.append("ro")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _accelerator(request: ContainerRequest) -> tuple[str, ...]:
    switch = request.edf.env.get("NVIDIA_VISIBLE_DEVICES", request.environment.get("NVIDIA_VISIBLE_DEVICES"))
    requested = any(device.startswith("nvidia.com/") for device in request.edf.devices)
    nvidia = (requested or Path("/dev/nvidiactl").exists()) and switch not in {"", "void"}
    amd = any(device.startswith("amd.com/") for device in request.edf.devices) or Path("/dev/kfd").exists()
    return (*(["--nv"] if nvidia else []), *(["--rocm"] if amd else []))


def _notes(request: ContainerRequest) -> tuple[str, ...]:
    edf = request.edf
    in_registry = edf.image_path is None
    others = {
        "The engine apptainer gives access to all devices of the host, not only those of the EDF.": (
            edf.devices
        ),
        "The user in the image's name is ignored: log in with 'apptainer registry login'.": (
            in_registry and read_reference(edf.image).user
        ),
        "Only apptainer reads the variables of an image in a registry: the host's value of a variable "
        "overrides the image's, except for PATH and LD_LIBRARY_PATH.": in_registry,
        "Apptainer keeps changes to the image in memory, by default at most 64 MiB "
        "('sessiondir max size' in the site's configuration).": edf.writable,
        "For an image file the engine apptainer runs the entry point that Enroot wrote to /etc/rc.": (
            edf.entrypoint and not in_registry
        ),
    }
    ignored = flag_notes(request, "apptainer", _SUPPORTED_FLAGS)
    return (*ignored, *(note for note, applies in others.items() if applies))
