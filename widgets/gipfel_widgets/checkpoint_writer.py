"""One rank's part of a checkpoint: its files with their hashes, and the times at which ranks write.

`RankWriter` writes to the directory of the checkpoints, or to storage of the node, from which a separate
process copies it there. `History` counts failures and costs, from which `interval` and `turns` are computed.
"""

import math
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from gipfel_extension.data.checkpoints import METADATA_NAME, hash_file
from gipfel_extension.saturation.advice.checkpoint import daly
from gipfel_extension.telemetry.files import read_json

from .checkpoint_directory import crc32_of, work_directory, write_part, write_synced

if TYPE_CHECKING:
    from .checkpoints import Checkpoints

_MAX_HISTORY_BYTES = 1 << 20
#: Shortest interval, as a multiple of the seconds that writing takes.
_MIN_WRITES = 2.0
#: Number of checkpoints in the history, and the fields of their manifests that are kept.
_MAX_WRITES = 500
_KEPT = ("step", "time_ns", "world_size", "run", "stall_s", "write_s", "rank_seconds")


class RankWriter(FileSystemWriter):
    """Writes a rank's file and its hashes.

    After all ranks have written, rank 0 writes the manifest, verifies the files, and gives the work directory
    the checkpoint's name. With storage of the node, the process that copies does this.
    """

    def __init__(self, owner: "Checkpoints", step: int) -> None:
        staging = owner._staging  # noqa: SLF001 - one class in two parts
        self._work = work_directory(owner.directory, step)
        super().__init__(staging.path(step) if staging else self._work, sync_files=staging is None)
        #: Set when the tensors are in host memory and `stall_s` is known.
        self.in_host_memory = threading.Event()
        self.stall_s, self.slot_s, self.at_a_time = 0.0, 0.0, 1
        #: Random number of this try to save the step; files of earlier tries are not copied from the node.
        self.attempt = 0
        self._owner, self._step, self._began = owner, step, time.time()

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's tensors and their hashes."""
        owner, staging = self._owner, self._owner._staging  # noqa: SLF001
        delay = owner._turn // self.at_a_time * self.slot_s  # noqa: SLF001
        if staging and not staging.has_room(_bytes(plan)):
            self.path, self.sync_files, staging = self._work, True, None
        if staging is None:
            # This runs in a background thread, so waiting for the rank's turn does not stop training.
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
            # The process that copies computes SHA-256. Here only a CRC-32 is computed, which takes less
            # of the CPU time that training needs.
            staging.put(
                self._step, owner.rank, part | {"files": {each.name: crc32_of(each) for each in paths}}
            )
        else:
            write_part(self._work, owner.rank, {each.name: hash_file(each) for each in paths}, seconds)
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        """Write the metadata and install the checkpoint; called on rank 0 after all have written."""
        super().finish(metadata, results)
        self.in_host_memory.wait()
        world = self._owner.world
        facts = {
            "step": self._step, "world_size": world, "stall_s": self.stall_s, "began": self._began,
            "spread_s": self.slot_s * world / self.at_a_time,
        }  # fmt: skip
        metadata = Path(self.path) / METADATA_NAME
        is_local = Path(self.path) != self._work
        files = {METADATA_NAME: crc32_of(metadata) if is_local else hash_file(metadata)}
        self._owner._finish(self._step, facts, files)  # noqa: SLF001


class MatchingPlanner(DefaultLoadPlanner):
    """Planner that refuses a tensor whose saved and current dtype differ, which PyTorch converts silently.

    Two floating-point dtypes may differ, since mixed precision changes them on purpose.
    If a part of the state, such as the optimizer, is loaded, a warning names the checkpoint's values of that
    part for which the state has no place, for example the moments if the optimizer has not run yet. Parts
    that are not loaded at all cause no warning.
    """

    def set_up_planner(
        self,
        state_dict: Any,
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Prepare loading. Raises ValueError for a tensor whose type does not match."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        for name, saved in (metadata.state_dict_metadata if metadata else {}).items():
            tensor = self.state_dict.get(name)
            if isinstance(tensor, torch.Tensor) and isinstance(saved, TensorStorageMetadata):
                before, now = saved.properties.dtype, tensor.dtype
                if before != now and not (before.is_floating_point and now.is_floating_point):
                    raise ValueError(f"Type mismatch between saved {before} and current {now} for {name}")
        lost = self._lost(metadata) if is_coordinator and metadata else []
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            sys.stderr.write(
                "gipfel: The state has no place for these values of the checkpoint, so they are not loaded: "
                f"{lost[0][:200]}{more}.\n"
            )

    def _lost(self, metadata: Metadata) -> list[str]:
        """Return the names of saved values that are not loaded, while others of the same part are."""
        paths: dict[str, Any] = metadata.planner_data or {}
        loaded = {str(path[0]) for path in self.mappings.values() if len(path) > 1}
        return [
            name
            for name in metadata.state_dict_metadata
            if name not in self.state_dict and str(paths.get(name, (name,))[0]) in loaded
        ]


def make_stager(*, on_gpu: bool) -> DefaultStager:
    """Return the object that copies tensors to host memory, before they are written."""
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=on_gpu, use_shared_memory=False,
            use_async_staging=False, use_non_blocking_copy=on_gpu,
        )
    )  # fmt: skip


def _bytes(plan: Any) -> int:
    """Return the approximate number of bytes that a plan writes: those of its tensors."""
    tensors = [each.tensor_data for each in plan.items if each.tensor_data is not None]
    return sum(each.chunk.sizes.numel() * each.properties.dtype.itemsize for each in tensors)


class History:
    """History of a directory of checkpoints: starts, intended ends, seconds of training, cost of checkpoints.

    Only rank 0 reads and writes the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()
        self.starts = self.ends = 0
        self._before = 0.0
        self._writes: list[dict[str, Any]] = []

    def start(self) -> None:
        """Read the file, and count this start; replace an invalid file by a new one."""
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
        """Return the estimated seconds between failures; `expected_s`, M, is the estimate without a history.

        With k failures in T seconds it is (T + M/2) / (k + 1/2), which is M without a history, and approaches
        T / k after many failures. It is the inverse of the posterior mean rate with the prior
        Gamma(shape 1/2, rate M/2): the shape of Jeffreys' prior of a Poisson rate, and the mean 1/M.
        """
        seconds = self._before + time.monotonic() - self._began
        return (seconds + expected_s / 2) / (self.failures + 0.5)

    def progress(self, manifest: dict[str, Any] | None = None) -> None:
        """Write the file; with a manifest, add its checkpoint's cost, which stays when that is deleted."""
        if manifest is not None:
            size = sum(each for each, _ in manifest["files"].values())
            kept = {name: manifest[name] for name in _KEPT}
            self._writes = [*self._writes, kept | {"bytes": size}][-_MAX_WRITES:]
        seconds = self._before + time.monotonic() - self._began
        document = {"starts": self.starts, "ends": self.ends, "seconds": seconds, "writes": self._writes}
        write_synced(self._path, document)


def interval(stall_s: float, write_s: float, failure_s: float) -> float:
    """Return the seconds of training between two checkpoints.

    It is Daly's optimum (equation 37 of doi:10.1016/j.future.2004.11.016), which refines Young's sqrt(2 d M)
    (doi:10.1145/361147.361115), but at least twice `write_s`.

    Parameters
    ----------
    stall_s
        Seconds that training waits for a checkpoint, its cost d.
    write_s
        Seconds that writing a checkpoint takes in the background.
    failure_s
        Seconds between failures, M.
    """
    return max(daly(stall_s, failure_s), _MIN_WRITES * write_s)


def turns(rank_seconds: Sequence[float], window_s: float) -> tuple[float, int]:
    """Return the seconds between two turns of writing, and how many ranks write in each turn.

    A turn is as long as the slowest rank took the last time. One rank writes in each turn if all ranks then
    finish within `window_s` seconds; otherwise as many as are necessary. All write at once if the times are
    unknown.

    Parameters
    ----------
    rank_seconds
        Seconds that writing each rank's files took the last time; empty if unknown.
    """
    seconds = max(rank_seconds, default=0.0)
    if window_s <= 0 or seconds <= 0:
        return 0.0, max(1, len(rank_seconds))
    at_a_time = max(1, math.ceil(seconds * len(rank_seconds) / window_s))
    return seconds, at_a_time


def turn_order(nodes: Sequence[str]) -> list[int]:
    """Return each rank's position in the order of writing: first one rank of each node, then second ones."""
    count: dict[str, int] = {}
    places = []
    for rank, node in enumerate(nodes):
        places.append((count.setdefault(node, 0), rank))
        count[node] += 1
    order = {rank: place for place, (_, rank) in enumerate(sorted(places))}
    return [order[rank] for rank in range(len(nodes))]
