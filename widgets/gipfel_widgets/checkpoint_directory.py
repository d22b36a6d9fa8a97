"""Rename, replace and delete checkpoints so that a kill at any moment leaves whole ones."""

import os
import shutil
from pathlib import Path

from gipfel_extension.data.checkpoints import ManifestError, check_files, read_manifest, step_of


class CheckpointError(RuntimeError):
    """A checkpoint can't be written, read or verified; one line."""


def sync(directory: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(work: Path, target: Path) -> None:
    """Move a verified checkpoint to its name; what had the name before is deleted afterwards.

    Raises
    ------
    CheckpointError
        The name is that of a file or a link, which is not a checkpoint.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(f"{target} is a link or a file. Rename it.")
    before = target.with_name(f".{target.name}.removing")
    shutil.rmtree(before, ignore_errors=True)
    replaces = target.exists()
    if replaces:
        target.rename(before)
    try:
        work.rename(target)
    except OSError:
        if replaces:
            before.rename(target)
        raise
    sync(target.parent)
    shutil.rmtree(before, ignore_errors=True)


def finish_replacing(before: Path) -> None:
    """Give the name back to a checkpoint if a kill was between the two renames of `_replace`."""
    target = before.with_name(before.name.removeprefix(".").removesuffix(".removing"))
    work = before.with_name(f".{target.name}.writing")
    if os.path.lexists(target) or not work.exists():
        return
    for path in (work, before):
        try:
            whole = not check_files(path, read_manifest(path)["files"], contents=False)
        except ManifestError:
            continue
        if whole:
            path.rename(target)
            return


def delete(path: Path) -> None:
    """Delete a checkpoint so that a kill meanwhile leaves no half one under its name."""
    step = step_of(path)
    hidden = path.with_name(f".step-{step}.removing")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
