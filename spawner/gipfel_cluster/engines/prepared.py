"""An image of this machine and all that belongs into its container, as `sandbox` is told."""

from collections.abc import Sequence

from ..edf.image import check_image
from ..edf.model import Mount
from ..edf.oci import oci_entry_point
from ..model import GipfelError
from .hardware import Given, Hardware
from .place import Place
from .protocol import ContainerRequest, Invocation
from .sandbox import start_words
from .sandbox.plan import VARIABLE, Plan, PlannedMount
from .values import check_values

_LARGEST = 128 << 10  # bytes: the kernel's limit for one variable
_HONOURED = frozenset(("ro", "rw", "sqsh", "bind", "rbind", "private", "rprivate", "slave", "rslave"))
_ALWAYS = frozenset(("nosuid", "nodev", "x-create=auto", "x-create=dir", "x-create=file"))


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
        The image is in a registry or is none, there is no command, or a program is missing.
    """
    check_values(request)
    edf = request.edf
    image = edf.image_path
    if image is None:
        raise GipfelError(
            f"The engine {engine} can't fetch the image {edf.image!r}.",
            "Import it into a .sqsh file and give that file's path.",
        )
    place = Place(request)
    is_here = place.check(lambda: check_image(image))
    place.check_mounts((*edf.mounts, *request.mounts))
    mounts = tuple(_planned(mount) for mount in (*edf.mounts, *request.mounts))
    files = [mount.source for mount in mounts if mount.squashfs]
    # Of one that is elsewhere its name tells.
    if not image.is_dir() if is_here else edf.image.endswith((".sqsh", ".squashfs")):
        files.append(edf.image)
    given = place.value(lambda: hardware.given(edf), Given())
    environment = dict(given.environment) | request.environment
    plan = Plan(
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
    if len(content) + len(VARIABLE) + 2 > _LARGEST:
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
