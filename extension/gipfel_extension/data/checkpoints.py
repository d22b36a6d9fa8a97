"""Checkpoints in a directory: which are complete, whether their hashes match, and which may be deleted.

``gipfel_widgets.Checkpoints`` writes ``step-N`` with ``manifest.json``, by renaming a hidden directory when
it is complete. Checkpoints of other programs are recognized, too: `torch.distributed.checkpoint`, which has
no hashes, and the formats of ``checkpoint_formats``. Nothing is unpickled. Standard library only, since ranks
import this module in their own image.
"""

import hashlib
import os
import re
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ..telemetry.files import open_regular, read_json
from .checkpoint_formats import TORCH_SUFFIXES, TRAINER, Findings, check_file, check_trainer, trainer_step

MANIFEST_NAME = "manifest.json"
#: The file that `torch.distributed.checkpoint` writes last.
METADATA_NAME = ".metadata"
#: File that names the run that writes in a directory: a training with all trainings that resumed from it.
RUN_NAME = ".run.json"
#: Starts, ends and writes of all runs in a directory.
HISTORY_NAME = ".history.json"

Format = Literal["gipfel", "dcp", "torch", "safetensors", "trainer"]
#: ``verified``: all hashes match; ``whole``: complete with hashes, which were not compared; ``unhashed``:
#: complete as far as a format without hashes shows; ``writing``: incomplete, but changed within an hour;
#: ``torn``: incomplete and older; ``damaged``: a size or hash is wrong.
State = Literal["verified", "whole", "unhashed", "writing", "torn", "damaged"]

_STEP = re.compile(r"step-([0-9]{1,15})")
#: Names of directories left by a process that was killed while it wrote or deleted a checkpoint.
LEFTOVER = re.compile(r"\.step-\d{1,15}\.(writing|removing|damaged)")
_FILE_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,200}")
_MAX_MANIFEST_BYTES = 64 << 20
_MAX_FILES = 1_000_000
_MAX_LISTED = 10_000
_MAX_RUN_BYTES = 1 << 12
_MAX_HISTORY_BYTES = 1 << 20
_MAX_RUN_CHARACTERS = 64
#: Seconds since the last change during which an incomplete checkpoint counts as being written; long, since
#: files do not change while a rank waits or hashes.
_WRITING_S = 3600.0
_NUMBERS = ("time_ns", "world_size", "stall_s", "write_s")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint; ``_s`` are seconds, ``_ns`` UTC nanoseconds; None stands for values not recorded.

    ``problem`` is a clause, empty if nothing is wrong; ``stall_s`` are the seconds for which training waited,
    ``write_s`` those from the beginning until everything was on disk; ``run`` is the ID of the run.
    """

    path: Path
    format: Format
    state: State
    problem: str
    bytes: int
    step: int | None = None
    time_ns: int | None = None
    world_size: int | None = None
    stall_s: float | None = None
    write_s: float | None = None
    run: str = ""
    #: Hash of the names and shapes of its tensors; empty if the format does not show them.
    model: str = ""

    @property
    def can_resume(self) -> bool:
        """Return whether the checkpoint is complete, as far as known."""
        return self.state in {"verified", "whole", "unhashed"}

    def document(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**vars(self), "path": str(self.path)}


def other_models(checkpoints: Sequence[Checkpoint]) -> dict[Path, str]:
    """Return the Trainer checkpoints whose tensors differ from the newest; the value is the newest's name."""
    known = [each for each in checkpoints if each.format == "trainer" and each.model]
    return {each.path: known[-1].path.name for each in known if each.model != known[-1].model}


class ManifestError(ValueError):
    """A manifest is missing or not valid; the message is a clause such as ``has no manifest``."""


def find_checkpoints(directory: Path, *, verify: bool = False) -> list[Checkpoint]:
    """Return the checkpoints in a directory, oldest first; with `verify` every byte with a hash is read.

    Raises
    ------
    OSError
        The directory can't be read.
    """
    found = []
    for path in sorted(directory.iterdir())[:_MAX_LISTED]:
        # A training may delete or rename one meanwhile.
        with suppress(FileNotFoundError):
            kind = path.lstat().st_mode
            if stat.S_ISDIR(kind) and (_STEP.fullmatch(path.name) or LEFTOVER.fullmatch(path.name)):
                found.append(_directory(path, verify=verify))
            elif stat.S_ISDIR(kind) and TRAINER.fullmatch(path.name):
                found.append(_of_trainer(path, verify=verify))
            elif stat.S_ISREG(kind) and (path.suffix in TORCH_SUFFIXES or path.suffix == ".safetensors"):
                found.append(_of_file(path, verify=verify))
    return sorted(found, key=lambda each: (each.step if each.step is not None else -1, each.time_ns or 0))


def newest(directory: Path) -> Checkpoint | None:
    """Return the newest ``step-N`` whose hashes match, so that it can be resumed from; None if there is none.

    A complete checkpoint without hashes, of `torch.distributed.checkpoint` alone, counts as well. If the
    directory names the run that writes in it, checkpoints of other runs don't count, whatever their step.
    """
    run = current_run(directory)
    own = [path for path in step_directories(directory) if run is None or run_of(path) == run]
    for path in sorted(own, key=step_of, reverse=True):
        # A training may delete or rename one meanwhile.
        with suppress(FileNotFoundError):
            found = _directory(path, verify=True)
            if found.can_resume:
                return found
    return None


def step_directories(directory: Path) -> list[Path]:
    """Return the directories named ``step-N``, without links, files and copies such as ``step-100-best``."""
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if step_of(path) >= 0 and _is_directory(path)]


def current_run(directory: Path) -> str | None:
    """Return the ID of the run that writes in a directory; None if the directory does not name one."""
    try:
        run = read_json(directory / RUN_NAME, _MAX_RUN_BYTES)["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run if isinstance(run, str) and len(run) <= _MAX_RUN_CHARACTERS else None


def read_writes(directory: Path) -> list[dict[str, Any]]:
    """Return what each checkpoint in a directory cost, oldest first, including deleted ones.

    Keys are ``step``, ``time_ns`` (of completion), ``stall_s``, ``write_s``, ``bytes`` and ``rank_seconds``
    (seconds that each rank took for its files).
    """
    try:
        found = read_json(directory / HISTORY_NAME, _MAX_HISTORY_BYTES)["writes"]
        return [each for each in found if _is_write(each)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def read_failures(directory: Path) -> tuple[int, float]:
    """Return how many trainings in a directory ended unintentionally, and the seconds that all trained.

    The last start is left out, since it may still be running.
    """
    try:
        found = read_json(directory / HISTORY_NAME, _MAX_HISTORY_BYTES)
        starts, ends, seconds = int(found["starts"]), int(found["ends"]), float(found["seconds"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0, 0.0
    return (max(0, starts - 1 - ends), seconds) if 0 <= seconds < 1e10 and starts < 1 << 20 else (0, 0.0)


def _is_write(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    numbers = [found.get(name) for name in ("step", "time_ns", "stall_s", "write_s", "bytes")]
    seconds = found.get("rank_seconds")
    return isinstance(seconds, list) and all(
        type(each) in {int, float} and 0 <= each < 2**63 for each in (*numbers, *seconds)
    )


def run_of(path: Path) -> str | None:
    """Return the ID of the run that wrote a checkpoint, empty if unknown; None without a valid manifest."""
    try:
        return str(read_manifest(path).get("run", ""))
    except ManifestError:
        return None


def step_of(path: Path) -> int:
    """Return the step of a path named exactly ``step-N``; -1 for any other name."""
    found = _STEP.fullmatch(path.name)
    return int(found[1]) if found else -1


def deletable(checkpoints: Sequence[Checkpoint], keep: int) -> list[Checkpoint]:
    """Return the checkpoints that may be deleted: torn ones, and those with `keep` newer verified ones.

    A checkpoint without compared hashes, or of another run, never makes an older one deletable. Checkpoints
    that are being written are not deletable.
    """
    steps: dict[str, list[int]] = {}
    for each in checkpoints:
        if each.state == "verified":
            steps.setdefault(each.run, []).append(each.step or 0)
    limits = {run: sorted(found)[-keep] for run, found in steps.items() if len(found) >= keep}
    return [
        each
        for each in checkpoints
        if each.state in {"torn", "damaged"}
        or (each.state in {"verified", "whole"} and (each.step or 0) < limits.get(each.run, 0))
    ]


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest in a checkpoint's directory, after validating it.

    Raises
    ------
    ManifestError
        It is missing or not valid.
    """
    try:
        found = read_json(path / MANIFEST_NAME, _MAX_MANIFEST_BYTES)
        files = found["files"]
        valid = found["version"] == 1 and isinstance(files, dict) and 0 < len(files) <= _MAX_FILES
        for name, (size, digest) in files.items() if valid else ():
            valid = valid and bool(_FILE_NAME.fullmatch(name)) and type(size) is int and size >= 0
            valid = valid and isinstance(digest, str) and len(digest) == 64
        numbers = [found[name] for name in ("step", *_NUMBERS)]
        valid = valid and all(type(each) in {int, float} and 0 <= each < 2**63 for each in numbers)
        run = found.get("run", "")
        valid = valid and isinstance(run, str) and len(run) <= _MAX_RUN_CHARACTERS
    except FileNotFoundError:
        raise ManifestError("has no manifest") from None
    except (OSError, ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise ManifestError("has a manifest that is not valid")
    return dict(found)


def hash_file(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def check_files(path: Path, files: dict[str, Any], *, contents: bool) -> str:
    """Return what is wrong with a checkpoint's files, or an empty text; `contents` compares hashes, too."""
    for name, (size, _) in files.items():
        try:
            state = (path / name).lstat()
        except OSError:
            return f"{name} is missing"
        if not stat.S_ISREG(state.st_mode) or state.st_size != size:
            return f"{name} has {state.st_size} bytes instead of {size}"
    if not contents:
        return ""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            hashes = list(pool.map(hash_file, [path / name for name in files]))
        except OSError as error:
            return f"{Path(str(error.filename or path)).name} can't be read: {error.strerror}"
    for (name, expected), found in zip(files.items(), hashes, strict=True):
        if tuple(expected) != found:
            return f"{name} does not have the content that was written"
    return ""


def _directory(path: Path, *, verify: bool) -> Checkpoint:
    size = _size(path)
    if LEFTOVER.fullmatch(path.name):
        hidden = int(path.name.split(".")[1].removeprefix("step-"))
        if path.name.endswith(".damaged"):
            problem = "did not verify when it was written"
            return Checkpoint(path, "gipfel", "damaged", problem, size, hidden)
        return Checkpoint(path, "gipfel", *_unfinished(path), size, hidden)
    step = step_of(path)
    state: State
    try:
        manifest = read_manifest(path)
    except ManifestError as error:
        if (path / MANIFEST_NAME).exists():
            return Checkpoint(path, "gipfel", "damaged", str(error), size, step)
        whole = _is_regular(path / METADATA_NAME)
        time_ns = (path / METADATA_NAME).lstat().st_mtime_ns if whole else None
        state, problem = ("unhashed", "has no hashes") if whole else _unfinished(path)
        return Checkpoint(path, "dcp", state, problem, size, step, time_ns)
    problem = check_files(path, manifest["files"], contents=verify)
    if not problem and manifest["step"] != step:
        problem = f"is of step {manifest['step']} according to its manifest"
    state = "damaged" if problem else "verified" if verify else "whole"
    numbers = {name: manifest[name] for name in _NUMBERS}
    return Checkpoint(path, "gipfel", state, problem, size, step, **numbers, run=manifest.get("run", ""))


def _unfinished(path: Path) -> tuple[State, str]:
    """Return the state and problem of an incomplete checkpoint: in progress if it has changed recently."""
    paths = [path]
    if _is_directory(path):
        with os.scandir(path) as listed:
            paths += [Path(each.path) for each in islice(listed, _MAX_LISTED)]
    last = 0.0
    for each in paths:
        with suppress(FileNotFoundError):
            last = max(last, each.lstat().st_mtime)
    if time.time() - last > _WRITING_S:
        return "torn", "was not finished"
    return "writing", "is being deleted" if path.name.endswith(".removing") else "is being written"


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """Return the mode of a path itself, without following links; 0 if it is gone."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _size(path: Path) -> int:
    total = 0
    with os.scandir(path) as listed:
        for number, each in enumerate(listed):
            if number >= _MAX_FILES:
                break
            total += each.stat(follow_symlinks=False).st_size if each.is_file(follow_symlinks=False) else 0
    return total


def _of_file(path: Path, *, verify: bool) -> Checkpoint:
    """Return the checkpoint for a single file of another program."""
    about = path.lstat()
    form: Format = "safetensors" if path.suffix == ".safetensors" else "torch"
    found = check_file(path, verify=verify)
    state, problem = _state_of(found)
    if found.problem and state == "unhashed":
        state, reason = _unfinished(path)
        problem = reason if state == "writing" else problem
    whole = Checkpoint(path, form, state, problem, about.st_size, time_ns=about.st_mtime_ns)
    return replace(whole, model=found.model)


def _of_trainer(path: Path, *, verify: bool) -> Checkpoint:
    """Return the checkpoint for a directory of Hugging Face's Trainer."""
    found, finished = check_trainer(path, verify=verify)
    state, problem = _state_of(found)
    if not finished:
        state, reason = _unfinished(path)
        problem = reason if state == "writing" else problem
    elif found.problem:
        state = "damaged"
    size, time_ns = _size(path), path.lstat().st_mtime_ns
    whole = Checkpoint(path, "trainer", state, problem, size, trainer_step(path), time_ns)
    return replace(whole, model=found.model)


def _state_of(found: Findings) -> tuple[State, str]:
    """Return the state of another program's checkpoint; one that may be half written counts as unhashed."""
    if found.problem:
        half = "cut off" in found.problem or "not a valid file" in found.problem
        return "unhashed" if half else "damaged", found.problem
    return ("verified", "") if found.hashed else ("unhashed", "has no hashes")
