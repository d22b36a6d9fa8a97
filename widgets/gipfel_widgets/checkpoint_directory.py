"""Verify, rename, replace and delete checkpoints, so that a kill at any moment leaves only complete ones.

`Installer` does this for the checkpoints of one run. `SpaceWatch` reports that the next checkpoint won't fit,
or that one could not be written because the disk or a quota is full.

Only the standard library is imported, since the process that copies checkpoints runs without PyTorch.
"""

import errno
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from gipfel_extension.data.checkpoints import (
    LEFTOVER,
    MANIFEST_NAME,
    METADATA_NAME,
    RUN_NAME,
    ManifestError,
    check_files,
    current_run,
    read_manifest,
    run_of,
    step_directories,
    step_of,
)
from gipfel_extension.telemetry.events import report_to_job
from gipfel_extension.telemetry.files import open_regular, read_json, read_regular, sync_directory

#: Phases of a checkpoint; ``drain`` copies from a node, ``retention`` deletes older ones.
Phase = Literal["write", "hash", "drain", "manifest", "verify", "rename", "retention"]
#: Callback that gets the phase that begins and the checkpoint's step.
OnPhase = Callable[[Phase, int], None]

#: File with sizes and hashes of a rank's files; it exists when all of them are complete.
_HASHES = ".hashes-{rank}.json"
_MAX_HASHES_BYTES = 16 << 20
_CHUNK_BYTES = 4 << 20
#: File with the number of the attempt, which distinguishes it from an earlier one for the same step.
_ATTEMPT = ".attempt"
_GIB = 1 << 30
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
#: Bytes that are written to learn whether a quota is used up.
_PROBE_BYTES = 1 << 20
_MAX_CAUSES = 10


class CheckpointError(RuntimeError):
    """A checkpoint can't be written, read or verified; the message is one line."""


def write_synced(path: Path, document: Any) -> None:
    """Write a JSON file so that after a crash it is either complete on disk, or unchanged."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def work_directory(directory: Path, step: int) -> Path:
    """Return the directory in which the files of a checkpoint are collected before it is complete."""
    return directory / f".step-{step}.writing"


def begin(directory: Path, step: int, attempt: int) -> None:
    """Create an empty work directory for a checkpoint; ``attempt`` is a random number of this attempt."""
    work = work_directory(directory, step)
    if work.exists():
        shutil.rmtree(work)
    work.mkdir()
    (work / _ATTEMPT).write_text(str(attempt))


def is_attempt(work: Path, attempt: int) -> bool:
    """Return whether a work directory still belongs to this attempt."""
    try:
        return read_regular(work / _ATTEMPT, 100) == str(attempt).encode()
    except OSError:
        return False


def crc32_of(path: Path) -> int:
    """Return the CRC-32 of a file, which is enough to find files that a crash has left incomplete."""
    found = 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            found = zlib.crc32(chunk, found)
    return found


def write_part(work: Path, rank: int, files: dict[str, Any], seconds: float) -> None:
    """Record that all files of a rank are in `work`, and the seconds that writing them took.

    ``files`` has the size in bytes and SHA-256 of each file by name.
    """
    write_synced(work / _HASHES.format(rank=rank), {"files": files, "seconds": seconds})


def missing_parts(work: Path, world: int) -> list[int]:
    """Return the ranks from 0 to `world` - 1 whose files are not all in `work`."""
    names = {path.name for path in work.iterdir()}
    return [rank for rank in range(world) if _HASHES.format(rank=rank) not in names]


def sizes(work: Path) -> list[tuple[str, int]]:
    """Return names and sizes of the files in `work`, to which processes of other nodes write meanwhile."""
    found = []
    for path in work.iterdir():
        # A temporary file may be renamed between the two calls.
        with suppress(FileNotFoundError):
            found.append((path.name, path.stat().st_size))
    return sorted(found)


class Installer:
    """Verifies written checkpoints of a run, renames them to ``step-N``, and deletes older ones of that run.

    Parameters
    ----------
    directory
        Directory of the checkpoints.
    run
        ID of the run in ``.run.json``; None if it is not known.
    keep
        Number of checkpoints to keep.
    on_phase
        Called at the beginning of each phase.
    """

    def __init__(self, directory: Path, run: str | None, keep: int, on_phase: OnPhase) -> None:
        self._directory, self._run, self._keep, self._on_phase = directory, run, keep, on_phase

    def install(self, step: int, facts: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
        """Verify the files of all ranks, rename their directory, and return the manifest.

        Parameters
        ----------
        facts
            ``world_size``, ``stall_s`` (seconds that training waited) and ``began`` (UTC seconds of the
            start).
        files
            Size and SHA-256 of further files, which belong to no rank.

        Raises
        ------
        CheckpointError
            The checkpoint is damaged. It is renamed to ``.step-N.damaged``, and no older one is deleted.
        """
        work, target = work_directory(self._directory, step), self._directory / f"step-{step}"
        if (work / MANIFEST_NAME).exists():
            # An earlier installation was killed after it wrote the manifest; the files of hashes may be
            # deleted.
            manifest = read_manifest(work)
        else:
            manifest = self._write_manifest(step, facts, files)
        for path in (*work.glob(_HASHES.format(rank="*")), work / _ATTEMPT):
            path.unlink(missing_ok=True)
        sync_directory(work)
        self._on_phase("verify", step)
        problem = check_files(work, read_manifest(work)["files"], contents=True)
        if problem:
            damaged = self._directory / f".step-{step}.damaged"
            shutil.rmtree(damaged, ignore_errors=True)
            work.rename(damaged)
            raise CheckpointError(f"{target} is damaged: {problem}. Older ones are kept.")
        self._on_phase("rename", step)
        replace(work, target)
        self.remove_old(step)
        return manifest

    def _write_manifest(self, step: int, facts: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
        work, files, seconds = work_directory(self._directory, step), dict(files), []
        for rank in range(facts["world_size"]):
            part = read_json(work / _HASHES.format(rank=rank), _MAX_HASHES_BYTES)
            files |= part["files"]
            seconds.append(float(part["seconds"]))
        self._on_phase("manifest", step)
        manifest = {
            "version": 1, "step": step, "time_ns": time.time_ns(), "run": self._run,
            "world_size": facts["world_size"], "stall_s": facts["stall_s"],
            "write_s": max(0.0, time.time() - facts["began"]), "rank_seconds": seconds, "files": files,
        }  # fmt: skip
        write_synced(work / MANIFEST_NAME, manifest)
        return manifest

    def remove_old(self, step: int) -> None:
        """Delete this run's checkpoints beyond the newest `keep`; the verified `step` is the newest."""
        self._on_phase("retention", step)
        older = [
            path for path in step_directories(self._directory) if step_of(path) < step and self._is_own(path)
        ]
        kept = self._keep - 1
        for path in sorted(older, key=step_of, reverse=True):
            if kept and (path / METADATA_NAME).exists():
                kept -= 1
            else:
                delete(path)

    def _is_own(self, path: Path) -> bool:
        """Return whether a checkpoint belongs to this run, or is an unfinished one of an unknown run."""
        run = run_of(path)
        unfinished = not (path / MANIFEST_NAME).exists() and not (path / METADATA_NAME).exists()
        return unfinished if run is None else run == self._run


def remove_leftovers(directory: Path) -> None:
    """Finish or remove what a killed process has left; keep damaged checkpoints."""
    for path in directory.glob(".step-*.removing"):
        if LEFTOVER.fullmatch(path.name):
            finish_replacing(path)
    for path in directory.iterdir():
        if LEFTOVER.fullmatch(path.name) and not path.name.endswith(".damaged"):
            shutil.rmtree(path, ignore_errors=True)


def replace(work: Path, target: Path) -> None:
    """Rename a verified checkpoint to `target`, and then delete an earlier checkpoint of that name.

    Raises
    ------
    CheckpointError
        `target` is a file or a link, which is not a checkpoint.
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
    sync_directory(target.parent)
    shutil.rmtree(before, ignore_errors=True)


def warn_of_earlier_run(directory: Path) -> None:
    """Print a warning on standard error if the directory has checkpoints of an earlier run."""
    run = current_run(directory)
    steps = [step_of(path) for path in step_directories(directory) if run_of(path) not in {run, None}]
    if run is not None and steps:
        sys.stderr.write(
            f"gipfel: {directory} also has checkpoints of an earlier run, up to step {max(steps)}, "
            f"which are not loaded. To resume from the highest step of all, remove {RUN_NAME} there.\n"
        )


def finish_replacing(before: Path) -> None:
    """Give a checkpoint its name if `replace` was killed between its two renames."""
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
    """Delete a checkpoint; rename it first, so that a kill leaves no incomplete one under its name."""
    step = step_of(path)
    hidden = path.with_name(f".step-{step}.removing")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


class SpaceWatch:
    """Compares the free space of a directory with the size of its last checkpoint.

    The next one is written before an older one is deleted, so it needs as much again. A quota that the file
    system does not report as its size is only noticed when a checkpoint could not be written.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = environment
        self._reported = False

    def check(self, checkpoint: Path) -> bool:
        """Report that another checkpoint of this size won't fit; report it again only after one has fit.

        Returns
        -------
        bool
            Whether it fits; True if the sizes can't be read.
        """
        try:
            needed = sum(each.stat().st_size for each in checkpoint.iterdir())
            about = os.statvfs(self._directory)
        except OSError:
            return True
        free = about.f_bavail * about.f_frsize
        fits = free >= needed
        if not fits and not self._reported:
            self._report(
                f"{self._directory} has {free / _GIB:.1f} GiB free, and a checkpoint needs "
                f"{needed / _GIB:.1f} GiB. Delete old ones, or keep fewer."
            )
        self._reported = not fits
        return fits

    def check_failure(self, error: BaseException) -> None:
        """If the disk or quota is full, report that a checkpoint was not written; don't repeat a report."""
        if self._reported or not (_has_full_error(error) or self._is_full()):
            return
        self._reported = True
        self._report(
            f"{self._directory} or your quota there is full, so a checkpoint was not written. "
            "Delete files there, or keep fewer checkpoints."
        )

    def _is_full(self) -> bool:
        """Return whether even a small file can't be written; PyTorch's errors often have no error number."""
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                file.write(os.urandom(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return error.errno in _FULL
        return False

    def _report(self, message: str) -> None:
        sys.stderr.write(f"gipfel: {message}\n")
        report_to_job(self._environment, "checkpoint_space", message, "checkpoints")


def _has_full_error(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes says that a disk or quota is full."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            return False
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
