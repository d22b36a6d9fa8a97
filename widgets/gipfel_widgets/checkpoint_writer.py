"""One rank's part of a checkpoint: its files in the directory or on the node, checksums and metadata."""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from gipfel_extension.data.checkpoints import METADATA_NAME, hash_file

from .checkpoint_directory import crc32_of, work_directory, write_part

if TYPE_CHECKING:
    from .checkpoints import Checkpoints


class RankWriter(FileSystemWriter):
    """Writes a rank's file, then its hashes; rank 0 installs the checkpoint when all have."""

    def __init__(self, owner: "Checkpoints", step: int) -> None:
        staging = owner._staging  # noqa: SLF001 - one class in two parts
        self._work = work_directory(owner.directory, step)
        super().__init__(staging.path(step) if staging else self._work, sync_files=staging is None)
        self.staged = threading.Event()
        self.stall_s, self.slot_s, self.at_a_time, self.attempt = 0.0, 0.0, 1, 0
        self._owner, self._step, self._began = owner, step, time.time()

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's tensors and their hashes."""
        owner, staging = self._owner, self._owner._staging  # noqa: SLF001
        delay = owner._turn // self.at_a_time * self.slot_s  # noqa: SLF001
        if staging and not staging.has_room(_bytes(plan)):
            self.path, self.sync_files, staging = self._work, True, None
        if staging is None:
            # In the background: it does not slow down training.
            owner._hurry.wait(delay)  # noqa: SLF001
        owner.on_phase("write", self._step)
        began = time.monotonic()
        try:
            done = super().write_data(plan, planner)
            done.wait()
        except Exception as error:
            owner._space.check_failure(error)  # noqa: SLF001
            raise
        seconds = time.monotonic() - began
        owner.on_phase("hash", self._step)
        names = sorted({each.storage_data.relative_path for each in done.value()})
        paths = [Path(self.path) / name for name in names]
        if staging:
            part = {"attempt": self.attempt, "rate": owner.limit, "not_before": time.time() + delay}
            # The process that copies hashes what it reads; this costs training a sixth of that.
            staging.put(
                self._step, owner.rank, part | {"files": {each.name: crc32_of(each) for each in paths}}
            )
        else:
            write_part(self._work, owner.rank, {each.name: hash_file(each) for each in paths}, seconds)
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        """Write the metadata; on rank 0, when every rank has written."""
        super().finish(metadata, results)
        self.staged.wait()
        world = self._owner.world
        facts = {
            "step": self._step, "world_size": world, "stall_s": self.stall_s, "began": self._began,
            "spread_s": self.slot_s * world / self.at_a_time,
        }  # fmt: skip
        metadata = Path(self.path) / METADATA_NAME
        is_local = Path(self.path) != self._work
        files = {METADATA_NAME: crc32_of(metadata) if is_local else hash_file(metadata)}
        self._owner._finish(self._step, facts, files)  # noqa: SLF001


def make_stager(*, on_gpu: bool) -> DefaultStager:
    """Return what copies tensors to memory of the host."""
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=on_gpu, use_shared_memory=False,
            use_async_staging=False, use_non_blocking_copy=on_gpu,
        )
    )  # fmt: skip


def _bytes(plan: Any) -> int:
    """Return the bytes of the tensors that a plan writes, about."""
    tensors = [each.tensor_data for each in plan.items if each.tensor_data is not None]
    return sum(each.chunk.sizes.numel() * each.properties.dtype.itemsize for each in tensors)
