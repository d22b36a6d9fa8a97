"""The engine that needs no service and no root: an image of this machine, bubblewrap, and a plain user."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from ..edf.check import check_mount
from ..edf.image import check_image
from ..edf.model import Mount
from ..model import GipfelError
from .plan import VARIABLE, Plan, PlannedMount
from .protocol import ContainerRequest, Invocation

_SANDBOX = ("-I", "-m", "gipfel_cluster.engines.sandbox")
_PROBE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
_PROBE_SECONDS = 10
_LARGEST = 128 << 10  # bytes: the kernel's limit for one variable
_HONOURED = frozenset(("ro", "rw", "sqsh", "bind", "rbind", "private", "rprivate", "slave", "rslave"))
_ALWAYS = frozenset(("nosuid", "nodev", "x-create=auto", "x-create=dir", "x-create=file"))


class Bubblewrap:
    """Runs a command in an image of this machine, whose files it never changes."""

    name = "bubblewrap"

    def missing(self) -> str | None:
        """Say in one line why this machine can't run it, or None."""
        if shutil.which("bwrap") is None:
            return "The engine bubblewrap needs the program bwrap (Debian package bubblewrap)."
        try:
            probe = subprocess.run(
                _PROBE, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"The engine bubblewrap could not be tried on this machine: {error}."
        if probe.returncode:
            words = probe.stderr.decode(errors="replace").strip()
            return f"The engine bubblewrap needs user namespaces, which this machine refuses ({words})."
        return None

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Turn a request into a call of the sandbox, whose plan is in its environment.

        Raises
        ------
        GipfelError
            The image is in a registry or is none, there is no command, or a program is missing.
        """
        plan = self._plan(request)
        content = plan.to_json()
        if len(content) + len(VARIABLE) + 2 > _LARGEST:
            raise GipfelError(
                "The EDF and the command are too long for the engine bubblewrap.", "Shorten its [env]."
            )
        words = (python,) if isinstance(python, str) else tuple(python)
        return Invocation(
            argv=(*words, *_SANDBOX),
            environment={**request.environment, VARIABLE: content},
            notes=tuple(_notes(request)),
        )

    def _plan(self, request: ContainerRequest) -> Plan:
        edf = request.edf
        if not request.command:
            raise GipfelError("There is no command to run.", "Give one.")
        if edf.image_path is None:
            raise GipfelError(
                f"The engine bubblewrap can't fetch the image {edf.image!r}.",
                "Import it into a .sqsh file and give that file's path.",
            )
        check_image(edf.image_path)
        mounts = tuple(_planned(mount) for mount in (*edf.mounts, *request.mounts))
        files = [mount.source for mount in mounts if mount.squashfs]
        if not edf.image_path.is_dir():
            files.append(edf.image)
        return Plan(
            image=edf.image,
            command=request.command,
            scratch=request.scratch,
            bwrap=_program("bwrap", "bubblewrap"),
            squashfuse=_squashfuse() if files else "",
            workdir=request.workdir or edf.workdir,
            writable=edf.writable,
            mounts=mounts,
            offered=tuple(request.environment),
            env=edf.env,
            binding=request.binding,
        )


def _planned(mount: Mount) -> PlannedMount:
    squashfs = "sqsh" in mount.flags
    check_mount(mount)
    return PlannedMount(mount.source, mount.destination, squashfs or "ro" in mount.flags, squashfs)


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise GipfelError(f"The program {name} is not on PATH.", f"Install the package {package}.")
    return found


def _squashfuse() -> str:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise GipfelError(
            "A .sqsh image needs /dev/fuse, which you may not use on this machine.",
            "Ask for read and write permission on /dev/fuse, or give an unpacked image.",
        )
    # Not squashfuse_ll, which can't make the files the user's own.
    return _program("squashfuse", "squashfuse")


def _notes(request: ContainerRequest) -> list[str]:
    edf = request.edf
    notes = [
        f"The flag {flag!r} of the mount {mount} has no effect in the engine bubblewrap."
        for mount in (*edf.mounts, *request.mounts)
        for flag in mount.flags
        if flag not in _HONOURED | _ALWAYS
    ]
    if edf.entrypoint:
        notes.append("The entry point of the image is not run by the engine bubblewrap.")
    if edf.devices:
        notes.append("The engine bubblewrap shows every device of the host, not only those of the EDF.")
    hooks = sorted(name for name in edf.annotations if name.startswith("com.hooks."))
    if hooks:
        notes.append(f"The engine bubblewrap has no hooks: {', '.join(hooks)} has no effect.")
    return notes
