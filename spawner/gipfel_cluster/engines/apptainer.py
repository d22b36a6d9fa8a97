"""Apptainer: argv only, since Debian has no package of it to try."""

import csv
import io
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..edf.image import image_environment
from ..edf.model import Edf, Mount
from ..edf.reference import foreign_store, read_reference
from .protocol import ContainerRequest, Invocation
from .srun import env_command, read_by_launcher
from .variables import binds, check_values, settings

#: What the site's configuration would mount beside the EDF's own: an EDF lists itself what is mounted.
_NOT_MOUNTED = "home,cwd,tmp,bind-paths"
_HONOURED = frozenset(("ro", "rw", "sqsh", "bind", "rbind", "x-create=auto", "x-create=dir", "x-create=file"))
#: An image that Enroot made keeps its entry point there; others have none outside their OCI configuration.
_ENTRY = 'if [ -s /etc/rc ]; then exec /bin/sh /etc/rc "$@"; else exec "$@"; fi'


class Apptainer:
    """Runs ``.sqsh`` files, unpacked images and images of registries by ``apptainer exec``."""

    name = "apptainer"

    def missing(self) -> str | None:
        """Return in one line why this machine can't run it, or None."""
        if shutil.which("apptainer") is None:
            return "The engine apptainer needs the program apptainer, which is not on PATH."
        return None

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:  # noqa: ARG002
        """Turn a request into a call of apptainer, whose variables are in its environment.

        Raises
        ------
        GipfelError
            A value has a newline, or no registry can have the image.
        """
        check_values(request)
        edf = request.edf
        values, unset = settings(request)
        local = edf.image_path is not None
        if edf.image_path:
            image = image_environment(edf.image_path)
            free = {name: value for name, value in image.items() if not binds(name, request.binding)}
            values = {name: value for name, value in free.items() if name not in unset} | values
        bound = {name: value for name, value in request.environment.items() if binds(name, request.binding)}
        values = bound | values
        # It refuses this one among variables, and its option for it would mount the directory, too.
        home = {"HOME": values.pop("HOME")} if "HOME" in values else {}
        run = "run" if edf.entrypoint and not local else "exec"
        workdir = request.workdir or edf.workdir
        entry = ("/bin/sh", "-c", _ENTRY, "sh") if edf.entrypoint and local else ()
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
            edf.image if local else _of_registry(edf.image),
            *env_command(unset, home),
            *entry,
            *request.command,
        )
        inside = {f"APPTAINERENV_{name}": value for name, value in values.items()}
        gone = {name for name in unset if not read_by_launcher(name)}
        environment = {name: value for name, value in request.environment.items() if name not in gone}
        return Invocation(argv=argv, environment=environment | inside, notes=_notes(request))


def _of_registry(image: str) -> str:
    reference = read_reference(image)
    if reference.store != "registry":
        raise foreign_store("apptainer", image, reference)
    return f"docker://{reference.oci}"


def _mount(mount: Mount) -> str:
    """Return a mount as the line of CSV that ``--mount`` reads, so that a path may hold any character."""
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
    wanted = any(device.startswith("nvidia.com/") for device in request.edf.devices)
    nvidia = (wanted or Path("/dev/nvidiactl").exists()) and switch not in {"", "void"}
    amd = any(device.startswith("amd.com/") for device in request.edf.devices) or Path("/dev/kfd").exists()
    return (*(["--nv"] if nvidia else []), *(["--rocm"] if amd else []))


def _notes(request: ContainerRequest) -> tuple[str, ...]:
    edf: Edf = request.edf
    notes = [
        f"The flag {flag!r} of the mount {mount} has no effect in the engine apptainer."
        for mount in (*edf.mounts, *request.mounts)
        for flag in mount.flags
        if flag not in _HONOURED
    ]
    if edf.devices:
        notes.append("The engine apptainer shows every device of the host, not only those of the EDF.")
    if edf.image_path is None and read_reference(edf.image).user:
        notes.append("The user in the image's name is left out: log in with 'apptainer registry login'.")
    if edf.image_path is None:
        notes.append(
            "What an image of a registry sets is known to apptainer alone: "
            "where the host sets a variable too, the host's value counts but for PATH and LD_LIBRARY_PATH."
        )
    if edf.writable:
        notes.append(
            "Apptainer keeps what is written to the image in memory, by default at most 64 MiB of it "
            "('sessiondir max size' of its site)."
        )
    if edf.entrypoint and edf.image_path:
        notes.append(
            "Of an image file the engine apptainer runs the entry point that Enroot keeps in /etc/rc."
        )
    return tuple(notes)
