"""The engine ``bubblewrap``: runs an image on this machine as a plain user, without a service or root.

`sandbox_invocation` plans such a container, for podman too; `HostRequirements` finds the programs and files
that it needs on the machine.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from ..edf.check import check_mount
from ..edf.image import check_image, oci_entry_point
from ..edf.model import Mount
from ..model import GipfelError
from .devices import ContainerDevices, Hardware
from .protocol import ContainerRequest, Invocation, check_values, flag_notes
from .sandbox import sandbox_argv
from .sandbox.plan import VARIABLE, ContainerPlan, PlannedMount

_Value = TypeVar("_Value")
#: The package of each program whose package has another name.
_PACKAGES = {"bwrap": "bubblewrap"}
_PLAN_BYTES = 128 << 10  # bytes: the kernel's limit for one variable
_SUPPORTED_FLAGS = frozenset(("ro", "rw", "sqsh", "bind", "rbind", "private", "rprivate", "slave", "rslave"))
_IMPLIED_FLAGS = frozenset(("nosuid", "nodev", "x-create=auto", "x-create=dir", "x-create=file"))
_PROBE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
_PROBE_SECONDS = 10
#: Part of `unavailable_reason` if this machine has no user namespaces.
NAMESPACES_REFUSED = "needs user namespaces, which this machine refuses"


class Bubblewrap:
    """Runs a command in an image on this machine, and never changes the image's files."""

    name = "bubblewrap"

    def __init__(self, hardware: Hardware = Hardware()) -> None:
        self._hardware = hardware

    def unavailable_reason(self) -> str | None:
        """Return in one line why this machine can't run the engine, or None."""
        if shutil.which("bwrap") is None:
            return "The engine bubblewrap needs the program bwrap (Debian package bubblewrap)."
        return namespace_problem(self.name)

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Render a request as a call of the sandbox, with the plan in its environment.

        Raises
        ------
        GipfelError
            The image is in a registry or not valid, there is no command, or a program or file is missing.
        """
        return sandbox_invocation(
            request,
            engine=self.name,
            program="bwrap",
            hardware=self._hardware,
            python=python,
        )


def namespace_problem(engine: str) -> str | None:
    """Return in one line why this machine refuses user namespaces, or None."""
    try:
        probe = subprocess.run(
            _PROBE, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The engine {engine} could not be tested on this machine: {error}."
    if probe.returncode:
        reason = probe.stderr.decode(errors="replace").strip()
        return f"The engine {engine} {NAMESPACES_REFUSED} ({reason})."
    return None


def sandbox_invocation(
    request: ContainerRequest,
    *,
    engine: str,
    program: str,
    hardware: Hardware,
    python: str | Sequence[str],
    podman: bool = False,
) -> Invocation:
    """Render a request as a call of the sandbox, with the plan in its environment.

    Parameters
    ----------
    program
        The name of the program that starts the container: podman if ``podman`` is set, else bwrap.

    Raises
    ------
    GipfelError
        The image is in a registry or not valid, there is no command, or a program is missing.
    """
    check_values(request)
    edf = request.edf
    image = edf.image_path
    if image is None:
        raise GipfelError(
            f"The engine {engine} can't fetch the image {edf.image!r}.",
            "Import it into a .sqsh file and give that file's path.",
        )
    host = HostRequirements(request)
    is_present = host.check(lambda: check_image(image))
    host.check_mounts((*edf.mounts, *request.mounts))
    mounts = tuple(_planned(mount) for mount in (*edf.mounts, *request.mounts))
    files = [mount.source for mount in mounts if mount.squashfs]
    # Only the name is known of an image that is on another machine.
    if not image.is_dir() if is_present else edf.image.endswith((".sqsh", ".squashfs")):
        files.append(edf.image)
    hardware_access = host.value(lambda: hardware.devices_for(edf), ContainerDevices())
    environment = dict(hardware_access.environment) | request.environment
    plan = ContainerPlan(
        image=edf.image,
        command=request.command,
        scratch=request.scratch,
        squashfuse=host.squashfuse() if files else "",
        program=host.program(program),
        podman=podman,
        workdir=request.workdir or edf.workdir,
        writable=edf.writable,
        mounts=mounts,
        inherited=tuple(environment),
        env=edf.env,
        protected=request.protected,
        devices=hardware_access.devices,
        driver=hardware_access.driver,
        entrypoint=edf.entrypoint,
        entrypoint_argv=oci_entry_point(image) if edf.entrypoint and is_present else (),
    )
    content = plan.to_json()
    if len(content) + len(VARIABLE) + 2 > _PLAN_BYTES:
        raise GipfelError(
            f"The EDF and the command are too long for the engine {engine}.", "Shorten its [env]."
        )
    return Invocation(
        argv=sandbox_argv(python, "container"),
        environment={**environment, VARIABLE: content},
        notes=(*host.notes, *flag_notes(request, engine, _SUPPORTED_FLAGS | _IMPLIED_FLAGS)),
    )


def _planned(mount: Mount) -> PlannedMount:
    is_squashfs = "sqsh" in mount.flags
    read_only = is_squashfs or "ro" in mount.flags
    return PlannedMount(mount.source, mount.destination, read_only=read_only, squashfs=is_squashfs)


class HostRequirements:
    """Programs and files that a request needs on this machine.

    If one is missing, that is an error, but only a note for ``render_only`` requests, which may be rendered
    on a login node or a laptop.
    """

    def __init__(self, request: ContainerRequest) -> None:
        self._only_shown = request.render_only
        self.notes: list[str] = []

    def check(self, check: Callable[[], None]) -> bool:
        """Call a check that raises if something is missing; return whether it passed.

        Raises
        ------
        GipfelError
            The check failed, and the request is not ``render_only``.
        """

        def checked() -> bool:
            check()
            return True

        return self.value(checked, otherwise=False)

    def check_mounts(self, mounts: Iterable[Mount]) -> None:
        """Check that the source of each mount exists and can be read.

        Raises
        ------
        GipfelError
            A source is missing or unreadable, and the request is not ``render_only``; or a mount has no
            source, such as ``tmpfs``.
        """
        for mount in mounts:
            if mount.is_special:
                # These engines support it on no machine.
                check_mount(mount)
            self.check(partial(check_mount, mount))

    def value(self, get: Callable[[], _Value], otherwise: _Value) -> _Value:
        """Return a function's value, or ``otherwise`` if it raises for a ``render_only`` request.

        Raises
        ------
        GipfelError
            The function raised, and the request is not ``render_only``.
        """
        try:
            return get()
        except GipfelError as error:
            if not self._only_shown:
                raise
            self.notes.append(f"Not on this machine: {error.problem}")
            return otherwise

    def program(self, name: str) -> str:
        """Return the path of a program, or its name if it is missing for a ``render_only`` request.

        Raises
        ------
        GipfelError
            It is not on PATH, and the request is not ``render_only``.
        """
        found = shutil.which(name)
        if found is None:
            self.check(lambda: _refuse_program(name))
        return found or name

    def squashfuse(self) -> str:
        """Return the path of the program that mounts images for a plain user.

        Raises
        ------
        GipfelError
            It is missing or may not be used on this machine, and the request is not ``render_only``.
        """
        self.check(_check_fuse)
        # Not squashfuse_ll, which can't map the files to the user.
        return self.program("squashfuse")


def _refuse_program(name: str) -> None:
    raise GipfelError(
        f"The program {name} is not on PATH.", f"Install the package {_PACKAGES.get(name, name)}."
    )


def _check_fuse() -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise GipfelError(
            "A .sqsh image needs /dev/fuse, which you may not use on this machine.",
            "Ask the administrator for read and write permission on /dev/fuse, or give an unpacked image.",
        )
