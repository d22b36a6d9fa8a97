"""Check one or many EDFs, optionally against this machine, and format the result as text or JSON.

`check_edf` and `check_edfs` resolve and lint. `check_local` compares a resolved EDF with this machine:
image, mount sources, working directory. `show_edf` and `as_json` format the output of ``gipfel edf``.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model import GipfelError, ReportOSError
from .image import can_run, check_image, image_architecture, image_contains
from .lookup import SETUP_SUFFIX, find_edf, orphan_steps
from .model import Diagnostic, Dialect, Edf, EdfError, Mount, Severity, limit_diagnostics
from .mounts import reference_problem
from .resolve import BaseCache, Resolution, resolve

#: Begins a variable whose value is known only inside a job.
_JOB_VARIABLE = "${SLURM_"


def check_edf(
    name_or_path: str,
    *,
    environment: Mapping[str, str],
    directory: Path,
    here: bool = False,
    dialect: Dialect = "ce",
    base_cache: BaseCache | None = None,
) -> Resolution:
    """Resolve and lint an EDF, with ``here`` also check it against this machine; errors are in the result."""
    resolution = resolve(
        name_or_path,
        environment=environment,
        directory=directory,
        dialect=dialect,
        base_cache=base_cache,
        job_variables=True,
    )
    return add_local_checks(resolution) if here else resolution


def check_edfs(
    names: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    here: bool = False,
    dialect: Dialect = "ce",
) -> list[Resolution]:
    """Check every named EDF; a directory means the ``.toml`` files in it.

    Set-up steps that belong to no EDF are in the result as well, with a warning and without an EDF.
    """
    checked: list[Resolution] = []
    base_cache = BaseCache()
    for name in names:
        files, orphans = _files(name, environment, directory)
        checked += [
            check_edf(
                file,
                environment=environment,
                directory=directory,
                here=here,
                dialect=dialect,
                base_cache=base_cache,
            )
            for file in files
        ]
        checked += [Resolution(each.file, None, (each,)) for each in orphans]
    return checked


def add_local_checks(resolution: Resolution) -> Resolution:
    """Add the diagnostics of `check_local` and `missing_checks`, with the file and line of each value."""
    if resolution.edf is None:
        return resolution
    local = (*check_local(resolution.edf), *missing_checks(resolution.edf))
    found = tuple(_located(each, resolution) for each in local)
    return Resolution(
        resolution.file,
        None if any(each.severity == "error" for each in found) else resolution.edf,
        limit_diagnostics((*resolution.diagnostics, *found), resolution.file),
        resolution.entries_by_key,
        resolution.setup,
    )


def check_local(edf: Edf, *, pulls: bool = True, machine: str = "") -> tuple[Diagnostic, ...]:
    """Check that the image exists, is complete and fits this machine, and that mount sources are readable.

    Parameters
    ----------
    pulls
        Whether the engine fetches images from a registry; if not, such an image is an error.
    machine
        The machine type of ``uname -m``; by default this machine's.
    """
    image = tuple(_image_problems(edf, machine or os.uname().machine, pulls=pulls))
    # Without the image, it is unknown which directories the container has.
    workdir = () if image else _workdir_problems(edf)
    return (*image, *_mount_problems(edf), *workdir)


def missing_checks(edf: Edf) -> Iterator[Diagnostic]:
    """Yield warnings about checks that `check_local` could not do, which must not pass for success."""
    path = edf.image_path
    if path is not None and not _image_error(path) and image_architecture(path) is None:
        yield _diagnostic(
            edf,
            "architecture-unknown",
            "image",
            f"no program could be read in the image {path}, so it is unknown whether it fits this machine.",
            "Install squashfs-tools, or run `file` on a program in the image.",
            severity="warning",
        )


def check_mount(mount: Mount) -> None:
    """Check on this machine, as this user, that the source of a mount exists and can be read.

    Raises
    ------
    GipfelError
        The source does not exist, can't be read, is not the SquashFS file that the flag ``sqsh`` requires, or
        is ``tmpfs`` or ``umount``.
    """
    if mount.is_special:
        raise GipfelError(
            f"The mount {mount} has no source: only the engines ce and pyxis make it.",
            "Remove it, or choose one of these engines.",
        )
    if "sqsh" in mount.flags:
        try:
            check_image(Path(mount.source))
        except GipfelError as error:
            raise GipfelError(
                error.problem.replace("The image", "The mount's image", 1), error.fix
            ) from error
        return
    source = Path(mount.source)
    with ReportOSError(f"The mount's source {source} can't be mounted", "Create it, or remove the mount."):
        source.stat()
    if not os.access(source, os.X_OK if source.is_dir() else os.R_OK):
        raise GipfelError(
            f"The mount's source {source} can't be read by you.", "Ask its owner for read permission."
        )


def is_edf_directory(name: str, *, environment: Mapping[str, str], directory: Path) -> bool:
    """Return whether a name means a directory of EDFs: a path, or the name of a directory and of no EDF."""
    # Creating thousands of Path objects is slow.
    if not name or not os.path.isdir(os.path.join(directory.absolute(), name)):  # noqa: PTH112, PTH118
        return False
    if "/" in name or name.startswith((".", "~")):
        return True
    try:
        find_edf(name, environment=environment, directory=directory)
    except EdfError:
        return True
    return False


def as_json(resolution: Resolution, *, origin: bool = False) -> dict[str, Any]:
    """Return the document of ``--json``: ``file``, ``valid``, ``diagnostics``, and ``edf`` or null.

    ``setup`` lists the set-up steps as path, digest and text. With ``origin`` also ``origins``: each key,
    such as ``env.A`` or ``mounts[0]``, with the file of its value; for ``setup[0]`` that is its EDF.
    """
    edf = resolution.edf
    document = {
        "file": resolution.file.encode("utf-8", "replace").decode(),
        "valid": resolution.valid,
        "diagnostics": [each.model_dump(mode="json") for each in resolution.diagnostics],
        "edf": None if edf is None else {**edf.model_dump(mode="json"), "digest": edf.digest},
    }
    if edf is not None and resolution.setup:
        document["setup"] = [
            {"path": each.path, "digest": each.digest, "text": each.text} for each in resolution.setup
        ]
    return document | {"origins": resolution.origins} if origin else document


def show_edf(resolution: Resolution, *, origin: bool = False) -> list[str]:
    """Return a resolved EDF as lines of text, with ``origin`` also the file of each value."""
    edf = resolution.edf
    if edf is None:
        return [str(each) for each in resolution.diagnostics]
    # The printed key, the key in `origins`, and the value.
    rows: list[tuple[str, str, object]] = []
    for key, value in edf.content.items():
        if key == "setup":
            continue
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", f"{key}.{name}", item) for name, item in value.items()]
        elif isinstance(value, list):
            items = [str(mount) for mount in edf.mounts] if key == "mounts" else value
            rows += [(key, f"{key}[{position}]", item) for position, item in enumerate(items)]
        else:
            rows.append((key, key, value))
    lines = []
    origins = resolution.origins if origin else {}
    for printed_key, key, value in rows:
        text = f"= {str(value).lower() if isinstance(value, bool) else value}"
        if key.startswith("env.") and not value:
            text = "is unset"
        source = f"    # {origins.get(key, 'default')}" if origin else ""
        lines.append(_escaped(f"{printed_key} {text}{source}"))
    return [*lines, *_setup_lines(resolution, origin=origin)]


def _files(
    name: str, environment: Mapping[str, str], directory: Path
) -> tuple[list[str], tuple[Diagnostic, ...]]:
    """Return the EDFs that a name means, and warnings about set-up steps that belong to no EDF."""
    folder = os.path.normpath(os.path.join(directory.absolute(), name))  # noqa: PTH118
    if name.endswith(SETUP_SUFFIX) and os.path.isfile(folder):  # noqa: PTH113
        path = Path(folder)
        present = [each.name for each in path.parent.iterdir()]
        orphans = tuple(each for each in orphan_steps(str(path.parent), present) if each.file == str(path))
        return ([] if orphans else [f"{folder.removesuffix(SETUP_SUFFIX)}.toml"]), orphans
    if not is_edf_directory(name, environment=environment, directory=directory):
        return [name], ()
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return [name], ()
    files = [f"{folder}/{each}" for each in names if each.endswith(".toml")]
    return files, tuple(orphan_steps(folder, names))


def _located(diagnostic: Diagnostic, resolution: Resolution) -> Diagnostic:
    """Return the diagnostic with the file and line of its value, which may be in a base."""
    entry = resolution.entries_by_key.get(diagnostic.key)
    if entry is None:
        return diagnostic
    return entry.diagnostic(diagnostic.code, diagnostic.message, diagnostic.fix, severity=diagnostic.severity)


def _image_error(image: Path) -> GipfelError | None:
    try:
        check_image(image)
    except GipfelError as error:
        return error
    return None


def _diagnostic(
    edf: Edf, code: str, key: str, problem: str, fix: str, *, severity: Severity = "error"
) -> Diagnostic:
    file = edf.path or edf.name
    return Diagnostic(severity=severity, code=code, file=file, line=None, key=key, message=problem, fix=fix)


def _image_problems(edf: Edf, machine: str, *, pulls: bool) -> Iterator[Diagnostic]:
    path = edf.image_path
    if _JOB_VARIABLE in edf.image:
        return
    if path is None:
        yield from _reference_problems(edf, pulls=pulls)
    elif error := _image_error(path):
        yield _diagnostic(edf, "image", "image", error.problem, error.fix)
    elif (found := image_architecture(path)) and not can_run(machine, found):
        yield _diagnostic(
            edf,
            "architecture",
            "image",
            f"The image {path} is for {found}, and this machine is {machine}: nothing in it starts.",
            f"Import the image for {machine}.",
        )


def _reference_problems(edf: Edf, *, pulls: bool) -> Iterator[Diagnostic]:
    image = edf.image
    if image and (problem := reference_problem(image)):
        yield _diagnostic(
            edf,
            "reference",
            "image",
            f"No registry has an image {image!r}: {problem}.",
            "Write [USER@][REGISTRY#]IMAGE[:TAG], or begin a file with '/' or './'.",
        )
    elif image:
        yield _diagnostic(
            edf,
            "image",
            "image",
            f"The image {image!r} is in a registry, not on this machine"
            + (": ce, pyxis, podman and apptainer pull it when the container starts." if pulls else "."),
            "Import it into a .sqsh file and give that file's path"
            + (" to start without a download." if pulls else "."),
            severity="warning" if pulls else "error",
        )


def _mount_problems(edf: Edf) -> Iterator[Diagnostic]:
    for position, mount in enumerate(edf.mounts):
        if not mount.is_special and _JOB_VARIABLE not in mount.source:
            try:
                check_mount(mount)
            except GipfelError as error:
                yield _diagnostic(edf, "mount-source", f"mounts[{position}]", error.problem, error.fix)


def _workdir_problems(edf: Edf) -> Iterator[Diagnostic]:
    if reason := _missing_workdir(edf):
        yield _diagnostic(
            edf,
            "workdir",
            "workdir",
            f"{reason}: a program can't start in {edf.workdir}.",
            "Mount it, create it, or choose another directory.",
            severity="warning",
        )


def _missing_workdir(edf: Edf) -> str:
    """Return why the container has no working directory; empty if it has one, or if that is unknown."""
    path, workdir = edf.image_path, edf.workdir
    if path is None or not workdir or _JOB_VARIABLE in str(path) or _JOB_VARIABLE in workdir:
        return ""
    for mount in reversed(edf.mounts):
        inner = os.path.relpath(workdir, mount.destination)
        if inner.partition("/")[0] != "..":
            is_bound = not mount.is_special and "sqsh" not in mount.flags
            is_missing = is_bound and not os.path.lexists(Path(mount.source) / inner)
            return f"{mount.source} has no {inner}" if is_missing else ""
    is_missing = workdir != "/" and image_contains(path, workdir.strip("/")) is False
    return "no mount covers it, and the image has no such directory" if is_missing else ""


def _setup_lines(resolution: Resolution, *, origin: bool) -> Iterator[str]:
    for steps in resolution.setup:
        yield f"setup = {steps.path}" + (f"    # {steps.edf}" if origin else "")
        for line in steps.text.removesuffix("\n").split("\n"):
            yield f"    {_escaped(line)}"


def _escaped(line: str) -> str:
    """Escape control characters, which a terminal would interpret."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() or each == "\t" else repr(each)[1:-1] for each in line)
