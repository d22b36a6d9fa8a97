"""Measure how fast samples of a data set can be read: as small files, packed and mounted, and as shards.

Each measurement reads with a number of processes for some seconds, first cold and then warm. Cold samples are
samples that this trial has not read before; on local disks, their cached content is dropped as well. Caches
of file servers can't be emptied from here. Only reading is measured: decoding takes additional time.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gipfel_cluster.model import Frozen, GipfelError, pluralize

from ..telemetry.sources.file_systems import read_mounts
from .pack import PackRequest, pack
from .shards import check_shard_names, read_index
from .trial_workers import drop_content, mounted, run_readers
from .webdataset import ShardRequest, write_shards

#: Formats, ordered by how much a training program has to change for them, least first.
FORMATS = ("files", "squashfs", "shards")
#: Most bytes and samples that are packed for a trial, and most samples in one measurement.
_PACK_BYTES, _PACK_SAMPLES, _MOST_SAMPLES = 256 << 20, 20_000, 50_000
_MOST_FILES = 2_000_000
_LEAST_SAMPLES = 20

Samples = list[list[str]]


class Rate(Frozen):
    """Samples per second of a format with a number of workers; None if not measured.

    `sample_bytes` is the mean size of a sample.
    """

    format: str
    workers: int
    cold: float | None
    warm: float | None
    sample_bytes: float


class Trial(Frozen):
    """Result of a trial.

    Parameters
    ----------
    tier
        Kind of file system that holds the data: ``memory``, ``local``, ``shared``, ``image`` or ``unknown``.
    samples, bytes
        Number of samples and of bytes in the whole data set, or in the part that was listed if it has very
        many files; 0 samples of shards without an index.
    notes
        Lines on what was not measured, and on what a measurement does not show.
    """

    data: str
    tier: str
    samples: int
    bytes: int
    rates: tuple[Rate, ...]
    notes: tuple[str, ...]
    complete: bool = True


@dataclass
class TrialRequest:
    """Data set and settings of a trial.

    Parameters
    ----------
    data
        A directory of files, a directory of tar shards, or a packed image.
    workers
        Numbers of processes to try, ascending.
    seconds
        Duration of each measurement.
    scratch
        Directory for packed samples, on the same file system as the data set; None for the data set's parent
        directory. Not used if `formats` has only the data set's own format.
    """

    data: Path
    workers: tuple[int, ...]
    seconds: float = 3.0
    formats: tuple[str, ...] = FORMATS
    scratch: Path | None = None
    seed: int = 0
    on_rate: Callable[[Rate], None] = lambda _: None
    on_stage: Callable[[str], None] = lambda _: None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def default_workers(cores: int) -> tuple[int, ...]:
    """Return 1, 2, 4, 8 and 16 workers, up to twice the cores."""
    return tuple(number for number in (1, 2, 4, 8, 16) if number <= max(2, 2 * cores))


def try_data(request: TrialRequest) -> Trial:
    """Measure a data set; after Ctrl-C, return the measurements so far with `complete` False.

    Raises
    ------
    GipfelError
        It can't be read, or has no samples.
    """
    run = _Run(request)
    complete = True
    try:
        run.measure_all()
    except KeyboardInterrupt:
        if not run.rates:
            raise
        complete = False
    return Trial(
        data=str(request.data), tier=run.tier, samples=run.samples, bytes=run.bytes, rates=tuple(run.rates),
        notes=tuple(dict.fromkeys(run.notes)), complete=complete,
    )  # fmt: skip


class _Run:
    def __init__(self, request: TrialRequest) -> None:
        self._request = request
        self._path = request.data.resolve()
        mount = read_mounts().of_path(str(self._path))
        self.tier = "unknown" if mount is None else mount.tier
        self.samples = self.bytes = 0
        self.rates: list[Rate] = []
        self.notes: list[str] = []

    def measure_all(self) -> None:
        """Measure the data set in its own format, and some samples of a directory also in the others."""
        if self._path.is_file():
            self._measure_image(self._path)
            return
        shards = sorted(str(path) for path in self._path.glob("*.tar")) if self._path.is_dir() else []
        if shards:
            self.samples, self.bytes = _size_of_shards(self._path, shards)
            self._measure("shards", "shards", [[each] for each in shards], drop=shards)
            return
        self._request.on_stage("listing files")
        samples, sizes = _list_samples(self._path)
        if not samples:
            raise GipfelError(
                f"{self._path} has no files.", "Give a directory of files, of tar shards, or a .sqsh."
            )
        self.samples, self.bytes = len(samples), sum(sizes)
        order = list(range(len(samples)))
        random.Random(self._request.seed).shuffle(order)  # noqa: S311 - no secret
        shuffled = [samples[place] for place in order]
        if "files" in self._request.formats:
            self._measure("files", "files", shuffled, drop=[])
        self._measure_packed(shuffled, [sizes[place] for place in order])

    def _measure_packed(self, samples: Samples, sizes: Sequence[int]) -> None:
        wanted = [each for each in ("squashfs", "shards") if each in self._request.formats]
        if not wanted:
            return
        parent = self._request.scratch or self._path.parent
        if not os.access(parent, os.W_OK):
            self.notes.append(
                f"{parent} can't be written to, so no other format was tried. --scratch DIR on the same file "
                "system makes room for it."
            )
            return
        with tempfile.TemporaryDirectory(prefix=".gipfel-try-", dir=parent) as name:
            part = Path(name) / "part"
            count, total = 0, 0
            self._request.on_stage("copying samples")
            for paths, size in zip(samples, sizes, strict=True):
                if count >= _PACK_SAMPLES or total + size > _PACK_BYTES:
                    break
                for path in paths:
                    target = part / os.path.relpath(path, self._path)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
                count, total = count + 1, total + size
            if count < min(len(samples), _LEAST_SAMPLES):
                self.notes.append("The samples are so large that too few fit into a trial of packed formats.")
                return
            if count < len(samples):
                self.notes.append(f"Packed formats were tried with {count} of {len(samples)} samples.")
            for each in wanted:
                try:
                    self._measure_format(each, part, Path(name), total)
                except GipfelError as error:
                    self.notes.append(f"{each} was not tried: {error.problem}")

    def _measure_format(self, kind: str, part: Path, work: Path, total: int) -> None:
        self._request.on_stage(f"packing {kind}")
        if kind == "squashfs":
            image = work / "part.sqsh"
            pack(PackRequest(part, image, environment=self._request.environment))
            self._measure_image(image)
            return
        # Each worker reads different shards, so there must be one for each.
        number = max(self._request.workers)
        index = write_shards(ShardRequest(part, work / "shards", max(1, total // number)))
        shards = [str(work / "shards" / each.url) for each in index.shardlist]
        self._measure("shards", "shards", [[each] for each in shards], drop=shards)

    def _measure_image(self, image: Path) -> None:
        whole = not self.samples
        with mounted(image) as folder:
            samples, sizes = _list_samples(folder)
        if not samples:
            raise GipfelError(f"{image} has no files.", "Give another data set.")
        if whole:
            self.samples, self.bytes = len(samples), sum(sizes)
        names = [[os.path.relpath(path, folder) for path in each] for each in samples]
        random.Random(self._request.seed).shuffle(names)  # noqa: S311 - no secret
        for workers in self._request.workers:
            self._request.on_stage(f"squashfs, workers: {workers}")
            drop_content([str(image)])
            with mounted(image) as folder:
                part = [[str(folder / path) for path in each] for each in names[:_MOST_SAMPLES]]
                self._add("squashfs", workers, *self._cold_and_warm("files", workers, part))

    def _measure(self, name: str, kind: str, samples: Samples, *, drop: Sequence[str]) -> None:
        """Measure with each number of workers: each measurement reads other files, but the same shards."""
        share = len(samples) // len(self._request.workers)
        for place, workers in enumerate(self._request.workers):
            self._request.on_stage(f"{name}, workers: {workers}")
            part = samples
            if kind == "files":
                few = share < _LEAST_SAMPLES * workers
                part = samples if few else samples[place * share : (place + 1) * share][:_MOST_SAMPLES]
                if few:
                    self.notes.append(
                        "There are too few samples for each measurement to read different ones, so later "
                        "cold rates may come from a cache."
                    )
                if self.tier != "shared":
                    drop_content([path for each in part for path in each])
            drop_content(drop)
            if kind == "shards" and len(part) < workers:
                self.notes.append(f"{pluralize(len(part), 'shard')} can't keep {workers} workers busy.")
            self._add(name, workers, *self._cold_and_warm(kind, workers, part))

    def _cold_and_warm(
        self, kind: str, workers: int, samples: Samples
    ) -> tuple[float | None, float | None, float]:
        parts = [samples[number::workers] for number in range(workers)]
        cold, size, begun = self._read(kind, parts)
        # For the warm measurement, repeat the same samples as often as the time allows.
        again = [(part[:count] * 1000)[:_MOST_SAMPLES] for part, count in zip(parts, begun, strict=True)]
        warm, _, _ = self._read(kind, again)
        return cold, warm, size

    def _add(self, name: str, workers: int, cold: float | None, warm: float | None, size: float) -> None:
        rate = Rate(format=name, workers=workers, cold=cold, warm=warm, sample_bytes=round(size, 1))
        self.rates.append(rate)
        self._request.on_rate(rate)
        if cold and warm and self.tier == "shared" and name == "files" and cold > 0.9 * warm:
            self.notes.append(
                "Cold files were as quick as warm ones: this node had them in its cache. Try on another."
            )

    def _read(self, kind: str, parts: Sequence[Samples]) -> tuple[float | None, float, list[int]]:
        """Return samples per second, mean bytes of a sample, and how many of each part were begun."""
        tasks = [
            json.dumps({"kind": kind, "samples": part, "seconds": self._request.seconds})
            for part in parts
            if part
        ]
        answers = run_readers(tasks, self._request.seconds)
        for each in answers:
            if each["problem"]:
                self.notes.append(f"A worker stopped early: {each['problem']}")
        count = sum(int(each["samples"]) for each in answers)
        begun = iter([int(each["begun"]) for each in answers])
        counts = [next(begun, 0) if part else 0 for part in parts]
        # The time is that of the slowest worker, even if others ran out of samples earlier.
        seconds = max((float(each["seconds"]) for each in answers), default=0.0)
        size = sum(int(each["bytes"]) for each in answers) / count if count else 0.0
        return (round(count / seconds, 1) if seconds and count else None), size, counts


def _list_samples(root: Path) -> tuple[Samples, list[int]]:
    """Return the files of each sample (the same path up to the first dot), and the bytes of each sample."""
    found: dict[tuple[str, str], tuple[list[str], int]] = {}
    count = 0
    waiting = [str(root)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError as error:
            raise GipfelError(
                f"{error.filename} can't be listed: {error.strerror}.", "Check its permissions."
            ) from error
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_file(follow_symlinks=False) and not entry.name.startswith(".gipfel-"):
                folder, _, name = entry.path.rpartition("/")
                key = (folder, name.partition(".")[0])
                paths, size = found.get(key, ([], 0))
                found[key] = ([*paths, entry.path], size + entry.stat(follow_symlinks=False).st_size)
                count += 1
        if count > _MOST_FILES:
            break
    return [sorted(paths) for paths, _ in found.values()], [size for _, size in found.values()]


def _size_of_shards(folder: Path, shards: Sequence[str]) -> tuple[int, int]:
    """Return the number of samples and bytes of shards; 0 samples if no index has their number.

    Raises
    ------
    GipfelError
        The shards differ from the index.
    """
    index = read_index(folder)
    if index is not None:
        check_shard_names(folder, index, [Path(each).name for each in shards])
    total = sum(Path(each).stat().st_size for each in shards)
    return (0 if index is None else sum(each.nsamples for each in index.shardlist)), total
