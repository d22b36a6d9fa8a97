"""The engine that needs no service and no root: an image of this machine, bubblewrap, and a plain user.

`prepared_invocation` makes the plan of such a container, for podman too; `HostRequirements` finds what it
needs on the machine.
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
from .protocol import ContainerRequest, Invocation
from .sandbox import start_words
from .sandbox.plan import VARIABLE, ContainerPlan, PlannedMount
from .variables import check_values

_Value = TypeVar("_Value")
#: The package of each program, where the two differ.
_PACKAGES = {"bwrap": "bubblewrap"}
_PLAN_BYTES = 128 << 10  # bytes: the kernel's limit for one variable
_HONOURED = frozenset(("ro", "rw", "sqsh", "bind", "rbind", "private", "rprivate", "slave", "rslave"))
_ALWAYS = frozenset(("nosuid", "nodev", "x-create=auto", "x-create=dir", "x-create=file"))
_PROBE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
_PROBE_SECONDS = 10


class Bubblewrap:
    """Runs a command in an image of this machine, whose files it never changes."""

    name = "bubblewrap"

    def __init__(self, hardware: Hardware = Hardware()) -> None:
        self._hardware = hardware

    def missing(self) -> str | None:
        """Return in one line why this machine can't run it, or None."""
        if shutil.which("bwrap") is None:
            return "The engine bubblewrap needs the program bwrap (Debian package bubblewrap)."
        return refused_namespaces(self.name)

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Turn a request into a call of the sandbox, whose plan is in its environment.

        Raises
        ------
        GipfelError
            The image is in a registry or not an image, there is no command, or something needed is missing.
        """
        return prepared_invocation(
            request,
            engine=self.name,
            program="bwrap",
            hardware=self._hardware,
            python=python,
        )


def refused_namespaces(engine: str) -> str | None:
    """Return in one line why this machine refuses user namespaces, or None."""
    try:
        probe = subprocess.run(
            _PROBE, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The engine {engine} could not be tried on this machine: {error}."
    if probe.returncode:
        words = probe.stderr.decode(errors="replace").strip()
        return f"The engine {engine} needs user namespaces, which this machine refuses ({words})."
    return None


def prepared_invocation(
    request: ContainerRequest,
    *,
    engine: str,
    program: str,
    hardware: Hardware,
    python: str | Sequence[str],
    podman: bool = False,
) -> Invocation:
    """Turn a request into a call of the sandbox, whose plan is in its environment.

    Parameters
    ----------
    program
        The name of the program that makes the container: podman where ``podman`` is set, else bwrap.

    Raises
    ------
    GipfelError
        The image is in a registry or is not an image, there is no command, or a program is missing.
    """
    check_values(request)
    edf = request.edf
    image = edf.image_path
    if image is None:
        raise GipfelError(
            f"The engine {engine} can't fetch the image {edf.image!r}.",
            "Import it into a .sqsh file and give that file's path.",
        )
    place = HostRequirements(request)
    is_here = place.check(lambda: check_image(image))
    place.check_mounts((*edf.mounts, *request.mounts))
    mounts = tuple(_planned(mount) for mount in (*edf.mounts, *request.mounts))
    files = [mount.source for mount in mounts if mount.squashfs]
    # Of an image elsewhere only its name is known.
    if not image.is_dir() if is_here else edf.image.endswith((".sqsh", ".squashfs")):
        files.append(edf.image)
    given = place.value(lambda: hardware.given(edf), ContainerDevices())
    environment = dict(given.environment) | request.environment
    plan = ContainerPlan(
        image=edf.image,
        command=request.command,
        scratch=request.scratch,
        squashfuse=place.squashfuse() if files else "",
        program=place.program(program),
        podman=podman,
        workdir=request.workdir or edf.workdir,
        writable=edf.writable,
        mounts=mounts,
        offered=tuple(environment),
        env=edf.env,
        binding=request.binding,
        devices=given.devices,
        driver=given.driver,
        entrypoint=edf.entrypoint,
        entry=oci_entry_point(image) if edf.entrypoint and is_here else (),
    )
    content = plan.to_json()
    if len(content) + len(VARIABLE) + 2 > _PLAN_BYTES:
        raise GipfelError(
            f"The EDF and the command are too long for the engine {engine}.", "Shorten its [env]."
        )
    return Invocation(
        argv=start_words(python, "container"),
        environment={**environment, VARIABLE: content},
        notes=(*place.notes, *_notes(request, engine)),
    )


def _planned(mount: Mount) -> PlannedMount:
    is_squashfs = "sqsh" in mount.flags
    read_only = is_squashfs or "ro" in mount.flags
    return PlannedMount(mount.source, mount.destination, read_only=read_only, squashfs=is_squashfs)


def _notes(request: ContainerRequest, engine: str) -> tuple[str, ...]:
    return tuple(
        f"The flag {flag!r} of the mount {mount} has no effect in the engine {engine}."
        for mount in (*request.edf.mounts, *request.mounts)
        for flag in mount.flags
        if flag not in _HONOURED | _ALWAYS
    )


class HostRequirements:
    """Requirements of a request on the machine that it is rendered on.

    Where the request is only shown, which may be on a login node or a laptop, what is missing becomes a
    note; else it is an error.
    """

    def __init__(self, request: ContainerRequest) -> None:
        self._only_shown = request.only_shown
        self.notes: list[str] = []

    def check(self, check: Callable[[], None]) -> bool:
        """Call a check that raises when something is missing; return whether it passed.

        Raises
        ------
        GipfelError
            It is missing, and the request is to be run.
        """

        def checked() -> bool:
            check()
            return True

        return self.value(checked, otherwise=False)

    def check_mounts(self, mounts: Iterable[Mount]) -> None:
        """Check that the source of each mount is there and can be read.

        Raises
        ------
        GipfelError
            One is not, and the request is to be run; or it has none, as ``tmpfs``.
        """
        for mount in mounts:
            if mount.is_special:
                # On no machine these engines make it.
                check_mount(mount)
            self.check(partial(check_mount, mount))

    def value(self, get: Callable[[], _Value], otherwise: _Value) -> _Value:
        """Return a function's value; where it raises and the request is only shown, ``otherwise``.

        Raises
        ------
        GipfelError
            It raised, and the request is to be run.
        """
        try:
            return get()
        except GipfelError as error:
            if not self._only_shown:
                raise
            self.notes.append(f"Not on this machine: {error.problem}")
            return otherwise

    def program(self, name: str) -> str:
        """Return the path of a program; its name where it is only shown and not here.

        Raises
        ------
        GipfelError
            It is not on PATH, and the request is to be run.
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
            It is missing, or may not be used on this machine, and the request is to be run.
        """
        self.check(_check_fuse)
        # Not squashfuse_ll, which can't make the files the user's own.
        return self.program("squashfuse")


def _refuse_program(name: str) -> None:
    raise GipfelError(
        f"The program {name} is not on PATH.", f"Install the package {_PACKAGES.get(name, name)}."
    )


def _check_fuse() -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise GipfelError(
            "A .sqsh image needs /dev/fuse, which you may not use on this machine.",
            "Ask for read and write permission on /dev/fuse, or give an unpacked image.",
        )
