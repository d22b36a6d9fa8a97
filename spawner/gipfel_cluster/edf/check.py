"""What `gipfel edf check` and `gipfel edf show` say, as values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model import GipfelError
from .image import check_image
from .model import Diagnostic, Edf, Mount
from .resolve import Resolution, resolve


def check_here(edf: Edf) -> tuple[Diagnostic, ...]:
    """See on this machine, as this user, that the image is one and that every mount's source exists."""
    found = []

    def add(code: str, key: str, problem: str, fix: str) -> None:
        found.append(
            Diagnostic(
                severity="error",
                code=code,
                file=edf.path or edf.name,
                line=None,
                key=key,
                message=problem,
                fix=fix,
            )
        )

    if edf.image_path is not None:
        try:
            check_image(edf.image_path)
        except GipfelError as error:
            add("image", "image", error.problem, error.fix)
    elif edf.image:
        add(
            "image",
            "image",
            f"The image {edf.image!r} is in a registry, not on this machine.",
            "Import it into a .sqsh file and give that file's path.",
        )
    for position, mount in enumerate(edf.mounts):
        key = f"mounts[{position}]"
        try:
            check_mount(mount)
        except GipfelError as error:
            add("mount-source", key, error.problem, error.fix)
    return tuple(found)


def check_mount(mount: Mount) -> None:
    """See on this machine, as this user, that the source of a mount exists.

    Raises
    ------
    GipfelError
        It does not, or is to be mounted as a SquashFS and is none.
    """
    if "sqsh" in mount.flags:
        try:
            check_image(Path(mount.source))
        except GipfelError as error:
            raise GipfelError(
                error.problem.replace("The image", "The mount's image", 1), error.fix
            ) from error
        return
    try:
        Path(mount.source).stat()
    except OSError as error:
        raise GipfelError(
            f"The mount's source {mount.source} can't be mounted: {error.strerror}.",
            "Make it, or take the mount out.",
        ) from error


def check_edf(
    name_or_path: str, *, environment: Mapping[str, str], directory: Path, here: bool = False
) -> Resolution:
    """Resolve an EDF, with ``here`` also against this machine; errors are in the result."""
    resolution = resolve(name_or_path, environment=environment, directory=directory)
    if resolution.edf is None or not here:
        return resolution
    found = check_here(resolution.edf)
    return Resolution(
        resolution.file,
        None if found else resolution.edf,
        (*resolution.diagnostics, *found),
        resolution.origins,
    )


def check_edfs(
    names: Sequence[str], *, environment: Mapping[str, str], directory: Path, here: bool = False
) -> list[Resolution]:
    """Check every EDF that is named; a folder stands for the ``.toml`` files in it."""
    checked: list[Resolution] = []
    for name in names:
        folder = directory / name
        inside = sorted(folder.glob("*.toml")) if folder.is_dir() else None
        files = [name] if inside is None else [str(path.absolute()) for path in inside]
        checked += [
            check_edf(each, environment=environment, directory=directory, here=here) for each in files
        ]
    return checked


def as_json(resolution: Resolution) -> dict[str, Any]:
    """Give the answer of ``--json``: ``file``, ``valid``, ``diagnostics``, and ``edf`` or null."""
    edf = resolution.edf
    return {
        "file": resolution.file,
        "valid": edf is not None,
        "diagnostics": [each.model_dump(mode="json") for each in resolution.diagnostics],
        "edf": None if edf is None else {**edf.model_dump(mode="json"), "digest": edf.digest},
    }


def show_edf(resolution: Resolution, *, origin: bool = False) -> list[str]:
    """Write a resolved EDF as lines for a terminal, with ``origin`` also the file of each value."""
    if resolution.edf is None:
        return [str(each) for each in resolution.diagnostics]
    content = resolution.edf.content
    rows: list[tuple[str, object]] = []
    for key, value in content.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", item) for name, item in value.items()]
        elif key == "mounts":
            rows += [(key, str(mount)) for mount in resolution.edf.mounts]
        elif isinstance(value, list):
            rows += [(key, item) for item in value]
        else:
            rows.append((key, value))
    lines = []
    for key, value in rows:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        source = resolution.origins.get(key) or resolution.origins.get(f"{key}[0]", "default")
        lines.append(f"{key} = {shown}" + (f"    # {source}" if origin else ""))
    return lines
