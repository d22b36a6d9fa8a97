"""Checkpoints of a training program: asynchronous, sharded, hashed, and either complete or absent.

``Checkpoints`` uses `torch.distributed.checkpoint`. It needs torch and numpy, and every rank calls it in
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

The directory ``.step-N.writing`` gets each rank's file and its hashes, then ``.metadata``, then
``manifest.json`` with all hashes. It is synced, read back, verified and renamed to ``step-N``. Then older
checkpoints of the same run beyond `keep` are deleted, each after it was renamed. So a kill at any moment
leaves only complete checkpoints under their names. With `local`, ranks write to memory or a disk of their
node, and a process per node does the rest (``checkpoint_drain``).

A training that does not call `load` begins a new run, whose ID is in ``.run.json``. Later calls of `load` use
only checkpoints of this run, even if an earlier run has left higher steps in the directory.
"""

import os
import random
import shutil
import signal
import threading
import time
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import async_save

from gipfel_extension.data.checkpoints import (
    HISTORY_NAME,
    RUN_NAME,
    current_run,
    newest,
    step_directories,
    step_of,
)
from gipfel_extension.saturation.settings import Settings

from .checkpoint_directory import (
    CheckpointError,
    Installer,
    OnPhase,
    SpaceWatch,
    begin,
    remove_leftovers,
    warn_of_earlier_run,
    write_synced,
)
from .checkpoint_drain import NodeStaging
from .checkpoint_writer import History, MatchingPlanner, RankWriter, interval, make_stager, turn_order, turns

_MEMORY = "/dev/shm"  # noqa: S108 - a directory of the user's own is made in it
#: Seconds of training before the first checkpoint; there is no measured cost yet.
_FIRST_S = 60.0
#: Values of the flag on which ranks agree: save now; save now, since the training ends.
_DUE, _ENDING = 1, 2
_GPU_HOURS = Settings().gpu_hours_per_failure


class Checkpoints:
    """Checkpoints in a directory that all ranks share; ``torch.distributed`` must be initialized.

    Parameters
    ----------
    directory
        Directory of the checkpoints, such as ``keep:runs/7``; by default ``$GIPFEL_CHECKPOINT``.
    keep
        Number of verified checkpoints to keep, at least 1.
    every
        Steps between checkpoints; ``"auto"`` computes the seconds between them with :func:`interval`.
    stagger
        Seconds between the turns of successive ranks, one rank of each node first. ``"auto"`` computes them
        with :func:`turns`, so that all ranks finish within half of the time between two checkpoints.
    local
        Where each node's ranks write first: ``"fast"`` (the site's storage class), ``"memory"``, or a
        directory; by default ``$GIPFEL_CHECKPOINT_LOCAL``, and without it directly to `directory`. A rank
        whose files would take more than half of the free space there also writes to `directory`.
    limit
        Bytes per second at which a node copies a rank's files from `local`; 0 for no limit.
    failure_s
        Expected seconds between failures of the job; by default ``$GIPFEL_FAILURE_S``, which a launch sets
        from your vettings of its nodes and the site's ``$GIPFEL_NODE_FAILURE_S``, else the rate published for
        Llama 3, scaled to this number of GPUs.
        Failures in the history of the directory then correct it.
    on_phase
        Called in the writing thread with a phase and a step, for example to log progress.

    Attributes
    ----------
    ending
        True after SIGUSR1 to any rank, as soon as all ranks agree: save, and leave the training loop.

    Raises
    ------
    CheckpointError
        An argument is not valid, or a directory can't be used; on all ranks.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] = "",
        *,
        keep: int = 2,
        every: int | Literal["auto"] = "auto",
        stagger: float | Literal["auto"] = "auto",
        local: str | os.PathLike[str] = "",
        limit: float = 0.0,
        failure_s: float | None = None,
        on_phase: OnPhase = lambda _phase, _step: None,
    ) -> None:
        path = _resolve_path(os.fspath(directory) or os.environ.get("GIPFEL_CHECKPOINT", ""))
        if not path or keep < 1 or (every != "auto" and every < 1):
            raise CheckpointError("Give a directory, and at least 1 for `keep` and `every`.")
        self.directory = Path(path)
        self.keep, self.every, self.stagger, self.on_phase = keep, every, stagger, on_phase
        self.rank, self.world, self.limit = dist.get_rank(), dist.get_world_size(), limit
        self.ending = False
        # Separate groups, so that neither waits for, nor is mixed with, the training's collectives.
        self._writers, self._flags = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
        self._stager = make_stager(on_gpu=torch.cuda.is_available())
        self._saving: Future[Any] | None = None
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None
        self._signaled = threading.Event()
        #: Run that the next checkpoint belongs to, on rank 0; None before the first step without `load`.
        self._run: str | None = None
        self._stall_s = self._write_s = self._steps_s = 0.0
        self._rank_seconds: list[float] = []
        #: Set when the rest of a checkpoint is waited for, so that no rank waits for its turn.
        self._hurry = threading.Event()
        self._last = time.monotonic()
        self.history = History(self.directory / HISTORY_NAME)
        self._space = SpaceWatch(self.directory, os.environ)
        self._failure_s = failure_s or _site_failure_s() or 3600.0 * _GPU_HOURS / self.world
        self._staging = self._stage(os.fspath(local) or os.environ.get("GIPFEL_CHECKPOINT_LOCAL", ""))
        # All ranks must learn of a failure; otherwise the others would wait for rank 0 until a time limit.
        self._agree(self._prepare() if self.rank == 0 else "")
        if self._staging and self._leads:
            # Starting it takes longer than a step.
            self._staging.start()
        self._handler_before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._handler_before = signal.signal(signal.SIGUSR1, lambda *_: self._signaled.set())

    def load(self, state: dict[str, Any]) -> int:
        """Load the run's newest complete checkpoint into `state`, and return its step; 0 if there is none.

        Its hashes are verified first. The number of ranks may differ from the number that wrote it. No
        checkpoint is deleted before the next `save`.

        Raises
        ------
        CheckpointError
            The checkpoint does not fit the state, for example because it is of another model, or can't be
            read.
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
            warn_of_earlier_run(self.directory)
        if chosen[0] is None:
            return 0
        path = self.directory / chosen[0]
        try:
            load_state(state, checkpoint_id=path, process_group=self._writers, planner=MatchingPlanner())
        except (Exception, CheckpointException) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise CheckpointError(
                f"{path} can't be loaded into this model: {reason[-1][:300]}. Give another directory."
            ) from error
        if found:
            self._run = found.run
            warn_of_earlier_run(self.directory)
        return step_of(path)

    def due(self, step: int) -> bool:
        """Return whether to save after `step`, the same on every rank; every rank must call it in every step.

        With ``every="auto"``, and after SIGUSR1, the ranks agree in the background, which delays it by one
        step.
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
        """Copy the state to host memory and write it in the background; return the seconds of this call.

        If the previous checkpoint is still being written, wait for it first.

        Raises
        ------
        CheckpointError
            The previous one could not be written or verified.
        """
        began = time.monotonic()
        self.wait()
        self._begin_run()
        writer = RankWriter(self, step)
        if self._staging and self._leads:
            for path in step_directories(self._staging.root):
                shutil.rmtree(path, ignore_errors=True)
            self._staging.start()
        writer.slot_s, writer.at_a_time, writer.attempt = self._plan_writes(step)
        self._saving = async_save(  # type: ignore[assignment] # without async staging it is a future
            state, storage_writer=writer, process_group=self._writers, async_stager=self._stager
        )
        now = time.monotonic()
        self._stall_s, self._steps_s, self._last = now - began, now - self._last, now
        writer.stall_s = self._stall_s
        writer.in_host_memory.set()
        return self._stall_s

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on disk and verified. Raises as `save`."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        self._hurry.set()
        if self._staging and self._leads:
            self._staging.hurry()
        try:
            saving.result()
        except (Exception, CheckpointException) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise CheckpointError(f"A checkpoint was not written: {reason[-1][:300]}") from error
        finally:
            self._hurry.clear()

    def close(self) -> None:
        """Wait for the checkpoint in progress, and record that this run ended as intended."""
        self.wait()
        if self._work is not None:
            self._work.wait()
            self._work = None
        self._stager.close()
        if self._staging and self._leads:
            self._staging.stop()
        if self.rank == 0:
            self.history.end()
        # The default handler would end the process if a signal came later.
        if callable(self._handler_before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._handler_before)
            self._handler_before = None
        dist.barrier(self._flags)

    def _stage(self, local: str) -> NodeStaging | None:
        """Return this node's staging, if any, after copying what an earlier training left there."""
        named = {"memory": _MEMORY, "fast": "fast:"}.get(local, local)
        place = Path(_resolve_path(named)).absolute() if local else None
        nodes: list[Any] = [None] * self.world
        dist.all_gather_object(nodes, f"{os.uname().nodename} {place}", group=self._flags)
        self._turn = turn_order(nodes)[self.rank]
        #: Whether this rank starts and stops the node's process.
        self._leads = nodes.index(nodes[self.rank]) == self.rank
        if all(each.endswith(" None") for each in nodes):
            return None
        staging, problem = None, "" if place else "Give the same kind of `local` to all ranks."
        try:
            # Files that were left on the node can only be copied if the directory of the checkpoints exists.
            staging = NodeStaging(place, self.directory) if place else None
            if staging is not None and self._leads and self.directory.is_dir():
                staging.recover()
        except (CheckpointError, OSError) as error:
            problem = str(error)
        self._agree(problem)
        return staging

    def _agree(self, problem: str) -> None:
        """Raise an error on every rank if one of them has a problem."""
        problems: list[Any] = [None] * self.world
        dist.all_gather_object(problems, problem, group=self._flags)
        if any(problems):
            raise CheckpointError(next(filter(None, problems)))

    def _prepare(self) -> str:
        """Create the directory and remove what killed processes left; return the problem, if any."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.directory)
            self.history.start()
        except OSError as error:
            return f"{self.directory} can't be used: {error.strerror or error}. Give another directory."
        return ""

    def _plan_writes(self, step: int) -> tuple[float, int, int]:
        """Begin a checkpoint on rank 0; return seconds and ranks of a turn, and the attempt's number."""
        plan = torch.zeros(3, dtype=torch.float64)
        if self.rank == 0:
            attempt = random.getrandbits(48)
            begin(self.directory, step, attempt)
            between = self.interval_s() if self.every == "auto" else self._steps_s
            slot, at_a_time = turns(self._rank_seconds, 0.0 if self.ending else between / 2)
            if self.stagger != "auto":
                slot, at_a_time = self.stagger, 1
            plan = torch.tensor([slot, at_a_time, attempt], dtype=torch.float64)
        dist.broadcast(plan, 0, group=self._writers)
        return float(plan[0]), int(plan[1]), int(plan[2])

    def _finish(self, step: int, facts: dict[str, Any], files: dict[str, Any]) -> None:
        """Install a checkpoint that all ranks have written; called on rank 0 in a background thread."""
        if self._staging is None:
            installer = Installer(self.directory, self._run, self.keep, self.on_phase)
            manifest = installer.install(step, facts, files)
        else:
            asked = {"run": self._run, "keep": self.keep, "files": files}
            manifest = self._staging.install(step, facts | asked)
        self._space.check(self.directory / f"step-{step}")
        # Verification slows down training, too, but the manifest was written before it.
        ended = {"time_ns": time.time_ns(), "write_s": max(0.0, time.time() - facts["began"])}
        self._write_s, self._rank_seconds = ended["write_s"], manifest["rank_seconds"]
        self.history.progress(manifest | ended)

    def _begin_run(self) -> None:
        """Name a new run in the directory, if this training has not loaded a checkpoint."""
        if self.rank == 0 and self._run is None:
            self._run = uuid.uuid4().hex
            write_synced(self.directory / RUN_NAME, {"run": self._run})


def _resolve_path(text: str) -> str:
    """Return a path with the class's directory instead of a prefix ``shared:``, ``keep:`` or ``fast:``."""
    if not text.startswith(("shared:", "keep:", "fast:")):
        return text
    try:
        from gipfel_cluster.storage_classes import resolve_path  # noqa: PLC0415 - pydantic, in few images
    except ImportError as error:
        raise CheckpointError(
            f"{text[:200]!r} needs {error.name} in this image: install it, or write the path in full."
        ) from error
    return resolve_path(text, os.environ)


def _site_failure_s() -> float:
    """Return the seconds between failures in ``$GIPFEL_FAILURE_S``, which a launch sets; 0 without it."""
    try:
        return max(0.0, float(os.environ.get("GIPFEL_FAILURE_S", "") or 0))
    except ValueError:
        return 0.0
