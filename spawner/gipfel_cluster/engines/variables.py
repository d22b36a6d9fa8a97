"""Values that a command line or an environment can carry, and variables that an EDF can't change."""

import os
import re
from collections.abc import Iterable, Mapping

from ..environment import PLACES
from ..model import GipfelError
from .protocol import ContainerRequest

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_values(request: ContainerRequest) -> None:
    """Refuse what no command line carries, and what would become two lines on the way.

    Raises
    ------
    GipfelError
        There is no command, or a value of the EDF or a path has a newline or NUL.
    """
    if not request.command:
        raise GipfelError("There is no command to run.", "Give one.")
    if any("\0" in word for word in request.command):
        raise GipfelError("The command has a NUL character.", "Take it out.")
    edf = request.edf
    paths = [path for mount in (*edf.mounts, *request.mounts) for path in (mount.source, mount.destination)]
    for what, values in (
        ("image", [edf.image]),
        ("workdir", [edf.workdir, request.workdir]),
        ("mounts", paths),
        ("env", [*edf.env, *edf.env.values()]),
        ("annotations", [*edf.annotations, *edf.annotations.values()]),
        ("devices", edf.devices),
    ):
        if any("\n" in value or "\0" in value for value in values):
            raise GipfelError(
                f"A value of {what} has a newline or a NUL character, which no engine carries.",
                "Take it out.",
            )


def bound_names(request: ContainerRequest) -> tuple[str, ...]:
    """List the variables that the request offers and that neither image nor EDF may change."""
    return tuple(name for name in request.environment if binds(name, request.binding))


def binds(name: str, binding: Iterable[str]) -> bool:
    """Return whether a variable is one of the names, or of the families ending in ``*``."""
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in binding)


def settings(request: ContainerRequest) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that the EDF sets, and the names that it unsets, without those that bind."""
    free = {
        name: value
        for name, value in request.edf.env.items()
        if not binds(name, [each for each in request.binding if each.endswith("*")])
        and not (binds(name, request.binding) and name in request.environment)
    }
    return {name: value for name, value in free.items() if value}, tuple(
        name for name, value in free.items() if not value
    )


def refused_notes(request: ContainerRequest) -> tuple[str, ...]:
    """Name the variables that the EDF sets and that a job keeps for itself, one sentence for each reason."""
    families = [each for each in request.binding if each.endswith("*")]
    refused = sorted(name for name in request.edf.env if binds(name, families))
    own = sorted(
        name
        for name in request.edf.env
        if name not in refused and binds(name, request.binding) and name in request.environment
    )
    notes = []
    if refused:
        notes.append(f"Not set, since such names are the hub's and the scheduler's: {', '.join(refused)}.")
    if own:
        notes.append(f"Not set by the EDF, since the job's own value counts: {', '.join(own)}.")
    return tuple(notes)


def host_place_notes(request: ContainerRequest) -> tuple[str, ...]:
    """Name the variables by which an EDF extends the image's value and got the host's.

    Of an image in a registry the host can't read the variables, and ``${PATH}`` is the host's.
    """
    edf = request.edf
    if not edf.image or edf.image_path:
        return ()
    taken = [
        name
        for name, value in edf.env.items()
        if (name in PLACES or name.startswith("LD_"))
        and (own := request.environment.get(name))
        and f":{own}:" in f":{value}:"
    ]
    return tuple(
        f"The image is in a registry, so its {name} can't be read here, and the EDF's ${{{name}}} is this "
        f"host's: write the image's {name} in full, or import the image into a .sqsh file."
        for name in taken
    )


def plain_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that can be part of a list of names."""
    return tuple(name for name in names if _NAME.fullmatch(name))


def not_text(values: Mapping[str, str]) -> tuple[str, ...]:
    """List the variables whose bytes are not UTF-8, which JSON doesn't carry."""
    return tuple(
        name
        for name, value in values.items()
        if not _is_text(os.fsencode(value)) or not _is_text(os.fsencode(name))
    )


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
