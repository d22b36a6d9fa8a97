"""One rank's part of a checkpoint: when it is written, its files in the directory or on the node, and hashes.

`interval` and `turns` are computed from what was measured.
"""

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

import math
import sys
from collections.abc import Sequence

from gipfel_extension.saturation.advice.checkpoint import daly
from gipfel_extension.telemetry.files import read_json

from .checkpoint_directory import write_synced

_MAX_HISTORY_BYTES = 1 << 20
#: Shortest interval, as a multiple of the seconds that writing takes.
_MIN_WRITES = 2.0
#: Checkpoints that the history remembers, and what of each.
_MAX_WRITES = 500
_KEPT = ("step", "time_ns", "world_size", "run", "stall_s", "write_s", "rank_seconds")


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


class History:
    """Starts, intended ends and seconds of training in a directory of checkpoints; rank 0 writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()
        self.starts = self.ends = 0
        self._before = 0.0
        self._writes: list[dict[str, Any]] = []

    def start(self) -> None:
        """Read the file, and count this start. A file that is not valid is begun again."""
        try:
            found = read_json(self._path, _MAX_HISTORY_BYTES)
            self.starts, self.ends = int(found["starts"]), int(found["ends"])
            self._before = float(found["seconds"])
            self._writes = [each for each in found.get("writes", []) if isinstance(each, dict)]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.stderr.write(f"gipfel: {self._path} can't be read and is begun again: {error}\n")
        self.starts += 1
        self.progress()

    def end(self) -> None:
        """Count an end that was intended."""
        self.ends += 1
        self.progress()

    @property
    def failures(self) -> int:
        """Return the number of starts before this one that did not end as intended."""
        return max(0, self.starts - 1 - self.ends)

    def failure_s(self, expected_s: float) -> float:
        """Return the seconds between failures: the mean rate of a Gamma(k + 1/2) posterior.

        With k failures in T seconds it is (T + M/2) / (k + 1/2): M, the expected one, without any
        history, and T / k after many. Source: Jeffreys' prior of a Poisson rate, scaled to the mean 1/M.
        """
        seconds = self._before + time.monotonic() - self._began
        return (seconds + expected_s / 2) / (self.failures + 0.5)

    def progress(self, manifest: dict[str, Any] | None = None) -> None:
        """Write the file, with what a checkpoint cost, also when that is deleted one day."""
        if manifest is not None:
            size = sum(each for each, _ in manifest["files"].values())
            kept = {name: manifest[name] for name in _KEPT}
            self._writes = [*self._writes, kept | {"bytes": size}][-_MAX_WRITES:]
        seconds = self._before + time.monotonic() - self._began
        document = {"starts": self.starts, "ends": self.ends, "seconds": seconds, "writes": self._writes}
        write_synced(self._path, document)


def interval(stall_s: float, write_s: float, failure_s: float) -> float:
    """Return the seconds of training between two checkpoints.

    The optimum of Daly, equation 37 of doi:10.1016/j.future.2004.11.016, which refines Young's sqrt(2 d M)
    (doi:10.1145/361147.361115), with the seconds that training waits as the cost d of a checkpoint and the
    seconds between failures as M. No shorter than twice the time that writing one takes in the background.
    """
    return max(daly(stall_s, failure_s), _MIN_WRITES * write_s)


def turns(rank_seconds: Sequence[float], window_s: float) -> tuple[float, int]:
    """Return the seconds between two turns of writing, and how many ranks write in each turn.

    One rank after the other, each for the seconds that it took before, if all of them have finished in
    `window_s`; otherwise as many at a time as are needed for that.

    Parameters
    ----------
    rank_seconds
        Seconds that each rank's files took the last time; empty if that is unknown.
    """
    seconds = max(rank_seconds, default=0.0)
    if window_s <= 0 or seconds <= 0:
        return 0.0, max(1, len(rank_seconds))
    at_a_time = max(1, math.ceil(seconds * len(rank_seconds) / window_s))
    return seconds, at_a_time


def turn_order(nodes: Sequence[str]) -> list[int]:
    """Return the place of each rank in the order of writing: first one of each node, then the second ones."""
    count: dict[str, int] = {}
    places = []
    for rank, node in enumerate(nodes):
        places.append((count.setdefault(node, 0), rank))
        count[node] += 1
    order = {rank: place for place, (_, rank) in enumerate(sorted(places))}
    return [order[rank] for rank in range(len(nodes))]
