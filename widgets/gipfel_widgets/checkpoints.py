"""Checkpoints of a training program: asynchronous, sharded, hashed, and complete or absent.

``Checkpoints`` stands on `torch.distributed.checkpoint`. It needs torch and numpy, and every rank uses it in
the same way::

    checkpoints = Checkpoints("checkpoints", keep=2, every="auto")
    start = checkpoints.load(state())
    for step in range(start + 1, steps + 1):
        train(step)
        if checkpoints.due(step):
            checkpoints.save(step, state())
        if checkpoints.ending:
            break
    checkpoints.close()

What is written: ``.step-N.writing`` gets each rank's file and its hashes, then ``.metadata``, then
``manifest.json`` with all hashes; it is synced, read back, verified and renamed to ``step-N``. Then older
ones of the same run beyond `keep` are deleted, each renamed first. So a kill at any moment leaves whole ones.

A training that does not load begins a new run: ``.run.json`` names it, and later loads see its checkpoints
alone, even where an earlier run has left higher steps in the directory.
"""

import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import async_save

from gipfel_extension.data.checkpoints import (
    LEFTOVER,
    MANIFEST_NAME,
    METADATA_NAME,
    RUN_NAME,
    check_files,
    current_run,
    hash_file,
    newest,
    read_manifest,
    run_of,
    step_directories,
    step_of,
)
from gipfel_extension.saturation.settings import Settings
from gipfel_extension.telemetry.files import read_json

from .checkpoint_directory import CheckpointError, delete, finish_replacing, replace, sync
from .checkpoint_interval import History, interval, write_synced

Phase = Literal["write", "hash", "manifest", "verify", "rename", "retention"]

_HISTORY = ".history.json"
_HASHES = ".hashes-{rank}.json"
_MAX_HASHES_BYTES = 16 << 20
#: Seconds of training before the first checkpoint, whose cost is not known.
_FIRST_S = 60.0
_DUE, _ENDING = 1, 2


class Checkpoints:
    """Checkpoints in a directory that all ranks share; ``torch.distributed`` must be initialized.

    Parameters
    ----------
    directory
        Directory of the checkpoints; by default ``$GIPFEL_CHECKPOINT``.
    keep
        Number of verified checkpoints to keep, at least 1.
    every
        Steps between checkpoints; ``"auto"`` chooses the seconds between them by :func:`interval`.
    stagger
        Seconds between the writes of successive ranks of a node.
    failure_s
        Expected seconds between failures of the job; by default Llama 3's rate for as many GPUs. The failures
        in this directory's history are counted in.
    on_phase
        Called in the writing thread with a phase and a step, for example to log progress.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] = "",
        *,
        keep: int = 2,
        every: int | Literal["auto"] = "auto",
        stagger: float = 0.0,
        failure_s: float | None = None,
        on_phase: Callable[[Phase, int], None] = lambda _phase, _step: None,
    ) -> None:
        path = os.fspath(directory) or os.environ.get("GIPFEL_CHECKPOINT", "")
        if not path or keep < 1 or (every != "auto" and every < 1):
            raise CheckpointError("Give a directory, and at least 1 for `keep` and `every`.")
        self.directory = Path(path)
        self.keep, self.every, self.stagger, self.on_phase = keep, every, stagger, on_phase
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.ending = False
        on_gpu = torch.cuda.is_available()
        # Separate groups, so that neither waits for, nor is mixed with, the training's collectives.
        self._writers, self._flags = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_gpu,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=on_gpu,
            )
        )
        self._saving: Future[Any] | None = None
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self._signaled = threading.Event()
        #: Run that the next checkpoint belongs to, on rank 0; None before the first step without `load`.
        self._run: str | None = None
        self._stall_s = self._write_s = 0.0
        self._last = time.monotonic()
        self.history = History(self.directory / _HISTORY)
        self._failure_s = failure_s or 3600.0 * Settings().gpu_hours_per_failure / self.world
        # Without word of a failure the other ranks would wait for this one until a time limit.
        problem = [self._prepare() if self.rank == 0 else ""]
        dist.broadcast_object_list(problem, src=0, group=self._flags)
        if problem[0]:
            raise CheckpointError(problem[0])
        self._handler_before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._handler_before = signal.signal(signal.SIGUSR1, lambda *_: self._signaled.set())

    def load(self, state: dict[str, Any]) -> int:
        """Load the newest whole checkpoint into `state`, and return its step; 0 if there is none.

        Its hashes are verified first. The number of ranks may differ from that of its writers. No checkpoint
        is deleted: that is done after the next `save`.

        Raises
        ------
        CheckpointError
            It does not fit the state, for example since it is of another model, or can't be read.
        """
        found, problem = None, ""
        if self.rank == 0:
            try:
                found = newest(self.directory)
            except OSError as error:
                problem = f"{error.filename or self.directory} can't be read: {error.strerror or error}."
        chosen: list[str | None] = [found.path.name if found else None, problem]
        dist.broadcast_object_list(chosen, src=0, group=self._flags)
        if chosen[1]:
            raise CheckpointError(f"{chosen[1]} Check its permissions.")
        if self.rank == 0 and not found:
            self._run = current_run(self.directory)
            self._warn_of_earlier_run()
        if chosen[0] is None:
            return 0
        path = self.directory / chosen[0]
        try:
            load_state(state, checkpoint_id=path, process_group=self._writers)
        except (Exception, CheckpointException) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise CheckpointError(
                f"{path} can't be loaded into this model: {reason[-1][:300]}. Give another directory."
            ) from error
        if found:
            self._run = found.run
            self._warn_of_earlier_run()
        return step_of(path)

    def due(self, step: int) -> bool:
        """Return whether to save after `step`; the same on every rank, which all must call it every step.

        With ``every="auto"`` and after SIGUSR1 the ranks agree in the background, one step later.
        """
        self._begin_run()
        if self._work is not None:
            self._work.wait()
        agreed = int(self._flag.item())
        self.ending = self.ending or agreed == _ENDING
        is_due = agreed >= _DUE or (self.every != "auto" and step % self.every == 0)
        waited = time.monotonic() - self._last
        wants = not is_due and self.every == "auto" and self.rank == 0 and waited >= self.interval_s()
        self._flag.fill_(_ENDING if self._signaled.is_set() and not self.ending else int(wants))
        self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._flags, async_op=True)
        return is_due

    def interval_s(self) -> float:
        """Return the seconds between checkpoints that ``every="auto"`` uses now."""
        if not self._write_s:
            return _FIRST_S
        return interval(self._stall_s, self._write_s, self.history.failure_s(self._failure_s))

    def save(self, step: int, state: dict[str, Any]) -> float:
        """Copy the state to host memory and write it in the background; return the seconds of waiting.

        A previous checkpoint that is still being written is waited for.

        Raises
        ------
        CheckpointError
            The previous one could not be written or verified.
        """
        began = time.monotonic()
        self.wait()
        self._begin_run()
        work = self.directory / f".step-{step}.writing"
        if self.rank == 0 and work.exists():
            shutil.rmtree(work)
        writer = _Writer(self, step, work)
        dist.barrier(self._writers)
        self._saving = async_save(  # type: ignore[assignment] # without async staging it is a future
            state, storage_writer=writer, process_group=self._writers, async_stager=self._stager
        )
        self._stall_s = writer.stall_s = time.monotonic() - began
        self._last = time.monotonic()
        writer.staged.set()
        return self._stall_s

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on disk and verified. Raises as `save`."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        try:
            saving.result()
        except (Exception, CheckpointException) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise CheckpointError(f"A checkpoint was not written: {reason[-1][:300]}") from error

    def close(self) -> None:
        """Wait for the checkpoint in progress, and record that this run ended as intended."""
        self.wait()
        if self._work is not None:
            self._work.wait()
            self._work = None
        self._stager.close()
        if self.rank == 0:
            self.history.end()
        # The default would end the process if the signal came now.
        if callable(self._handler_before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._handler_before)
            self._handler_before = None
        dist.barrier(self._flags)

    def _prepare(self) -> str:
        """Create the directory and remove what a kill has left; return what is wrong, or an empty string."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            self.history.start()
        except OSError as error:
            return f"{self.directory} can't be used: {error.strerror or error}. Give another directory."
        return ""

    def _finish(self, step: int, work: Path, manifest: dict[str, Any]) -> None:
        """Verify a written checkpoint, install it, and delete older ones; on rank 0, in the background."""
        self.on_phase("manifest", step)
        write_synced(work / MANIFEST_NAME, manifest)
        sync(work)
        target = self.directory / f"step-{step}"
        self.on_phase("verify", step)
        problem = check_files(work, read_manifest(work)["files"], contents=True)
        if problem:
            damaged = self.directory / f".step-{step}.damaged"
            shutil.rmtree(damaged, ignore_errors=True)
            work.rename(damaged)
            raise CheckpointError(f"{target} is damaged: {problem}. Older ones are kept.")
        self.on_phase("rename", step)
        replace(work, target)
        self.on_phase("retention", step)
        self._remove_old(step)
        self._write_s = manifest["write_s"]
        self.history.progress()

    def _remove_old(self, step: int) -> None:
        """Delete what is older than the newest `keep`; the newest has just been verified."""
        older = [
            path for path in step_directories(self.directory) if step_of(path) < step and self._is_own(path)
        ]
        kept = self.keep - 1
        for path in sorted(older, key=step_of, reverse=True):
            if kept and (path / METADATA_NAME).exists():
                kept -= 1
            else:
                delete(path)

    def _is_own(self, path: Path) -> bool:
        """Return whether this run wrote a checkpoint, or no run finished it."""
        run = run_of(path)
        unfinished = not (path / MANIFEST_NAME).exists() and not (path / METADATA_NAME).exists()
        return unfinished if run is None else run == self._run

    def _begin_run(self) -> None:
        """Name a new run in the directory, if this training has not loaded a checkpoint."""
        if self.rank == 0 and self._run is None:
            self._run = uuid.uuid4().hex
            write_synced(self.directory / RUN_NAME, {"run": self._run})

    def _warn_of_earlier_run(self) -> None:
        run = current_run(self.directory)
        steps = [
            step_of(path) for path in step_directories(self.directory) if run_of(path) not in {run, None}
        ]
        if run is not None and steps:
            sys.stderr.write(
                f"gipfel: {self.directory} also has checkpoints of an earlier run, up to step {max(steps)}, "
                f"which are not loaded. To resume from the highest step of all, remove {RUN_NAME} there.\n"
            )

    def _remove_leftovers(self) -> None:
        for path in self.directory.glob(".step-*.removing"):
            if LEFTOVER.fullmatch(path.name):
                finish_replacing(path)
        for path in self.directory.iterdir():
            if LEFTOVER.fullmatch(path.name) and not path.name.endswith(".damaged"):
                shutil.rmtree(path, ignore_errors=True)


class _Writer(FileSystemWriter):
    """Writes a rank's file, then its hashes; rank 0 installs the checkpoint when all have."""

    def __init__(self, owner: Checkpoints, step: int, path: Path) -> None:
        super().__init__(path)
        self.staged = threading.Event()
        self.stall_s = 0.0
        self._owner, self._step, self._began = owner, step, time.monotonic()

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's tensors and their hashes."""
        owner = self._owner
        # In the background: it does not slow down training.
        time.sleep(int(os.environ.get("LOCAL_RANK", "0")) * owner.stagger)
        owner.on_phase("write", self._step)
        done = super().write_data(plan, planner)
        done.wait()
        owner.on_phase("hash", self._step)
        names = sorted({each.storage_data.relative_path for each in done.value()})
        hashes = {name: hash_file(Path(self.path) / name) for name in names}
        write_synced(Path(self.path) / _HASHES.format(rank=owner.rank), hashes)
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        """Write the metadata; on rank 0, when every rank has written."""
        super().finish(metadata, results)
        self.staged.wait()
        owner, work = self._owner, Path(self.path)
        files: dict[str, Any] = {METADATA_NAME: hash_file(work / METADATA_NAME)}
        for rank in range(owner.world):
            path = work / _HASHES.format(rank=rank)
            files |= read_json(path, _MAX_HASHES_BYTES)
            path.unlink()
        manifest = {
            "version": 1,
            "step": self._step,
            "time_ns": time.time_ns(),
            "run": owner._run,  # noqa: SLF001
            "world_size": owner.world,
            "stall_s": self.stall_s,
            "write_s": time.monotonic() - self._began,
            "files": files,
        }
        owner._finish(self._step, work, manifest)  # noqa: SLF001 - one class in two parts
