"""Models of a staging: the request, the files to copy, and the state."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, NodeName, OneLine
from gipfel_cluster.workloads.directory import WorkloadState

from ..manifest import Digest, Summary, parse_summary, read_summary, summary_path
from ..s3 import SCHEME, S3Object, S3Service

#: Directory in a run folder that has the stagings' directories.
TRANSFERS = "transfers"
RENDEZVOUS, ITEMS = "rendezvous.json", "items.json"
_MAX_FILES = 512

Tier = Literal["nvme", "memory"]
OnFailure = Literal["stop", "continue"]


class StageSpec(Frozen):
    """Data to copy to the nodes of a job.

    ``data`` has absolute paths of files or directories, or S3 addresses. ``to`` is the tier; ``auto`` is a
    local disk if it has enough space, else memory. ``nodes`` are nodes of the job; empty for all. With
    ``on_failure`` set to ``continue``, a node that fails reads the shared file system instead. ``max_memory``
    and ``max_disk`` limit all copies of the user on a node, in bytes; None allows half of the free memory and
    90 % of the free disk space.
    """

    data: tuple[OneLine, ...] = Field(min_length=1, max_length=64)
    to: Literal["auto", "nvme", "memory"] = "auto"
    nodes: tuple[NodeName, ...] = Field((), max_length=65536)
    on_failure: OnFailure = "stop"
    max_memory: int | None = Field(None, ge=0)
    max_disk: int | None = Field(None, ge=0)
    silent_s: float = Field(60.0, gt=0)
    """Seconds without progress after which a node has failed."""


class StageItem(Frozen):
    """A file to copy; ``size`` is in bytes.

    ``key`` identifies its content, so that jobs can share a copy. ``root`` and ``chunks`` are the root hash
    and the chunk hashes from the summary beside an image; empty without one. An S3 object has an ``etag``
    instead of a modification time.
    """

    path: OneLine
    size: int = Field(ge=0)
    mtime_ns: int
    key: Digest
    etag: str = ""
    root: str = ""
    chunks: tuple[Digest, ...] = ()

    @property
    def is_remote(self) -> bool:
        """Return whether this is an S3 object."""
        return self.path.startswith(SCHEME)

    @property
    def object(self) -> S3Object:
        """Return this item as an S3 object."""
        return S3Object(self.path, self.size, self.etag)


class NodeCopy(Frozen):
    """Progress of a node, in bytes.

    ``done`` is what the node has, of which ``read`` came from the shared file system, ``received`` from other
    nodes, and ``reused`` was there before.
    """

    node: str
    phase: Literal["waiting", "copying", "staged", "failed"] = "waiting"
    tier: Annotated[str, Field(max_length=16)] = ""
    done: int = 0
    read: int = 0
    received: int = 0
    reused: int = 0
    problem: str = ""


class TransferState(WorkloadState):
    """The state of a staging; ``ready`` is True when every node has its copies, except failed nodes.

    ``total`` is the size of the data in bytes, once per node.
    """

    number: int = 0
    data: tuple[str, ...] = ()
    total: int = 0
    files: int = 0
    ready: bool = False
    ready_ns: int | None = None
    copies: tuple[NodeCopy, ...] = ()

    @property
    def shared_reads(self) -> int:
        """Return the bytes that all nodes together have read from the shared file system."""
        return sum(each.read for each in self.copies)


def list_items(spec: StageSpec, environment: Mapping[str, str] = os.environ) -> tuple[StageItem, ...]:
    """Return the files to copy; S3 objects are listed with the service in `environment`.

    Raises
    ------
    GipfelError
        A path does not exist, is not a file or directory, or a directory has too many files.
    """
    found: dict[str, StageItem] = {}
    service = S3Service(environment) if any(each.startswith(SCHEME) for each in spec.data) else None
    for name in spec.data:
        for item in _objects(service, name) if service and name.startswith(SCHEME) else _local_items(name):
            twice = any(each.key == item.key and each.path != item.path for each in found.values())
            # Two paths with the same content get a copy each, since a copy has only one lock.
            key = _digest(f"{item.key}\0{item.path}") if twice else item.key
            found.setdefault(item.path, item.model_copy(update={"key": key}))
    if not found:
        raise GipfelError(f"There are no files in {spec.data[0]}.", "Check the path.")
    return tuple(found.values())


def _local_items(name: str) -> Iterator[StageItem]:
    for path in _files(Path(name)):
        yield _item(path)


def _objects(service: S3Service, address: str) -> Iterator[StageItem]:
    for each in service.objects(address, _MAX_FILES):
        content = service.summary(each.address) if each.address.endswith(".sqsh") else None
        summary = None if content is None else parse_summary(content, f"{each.address}.json")
        yield _described(each.address, each.size, 0, each.etag, summary)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_absolute():
        raise GipfelError(f"{str(path)!r} is not an absolute path.", "Write it in full.")
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise GipfelError(f"{path} can't be staged: {error.strerror}.", "Check the path.") from error
    if stat.S_ISREG(kind):
        yield path
        return
    if not stat.S_ISDIR(kind):
        raise GipfelError(f"{path} is not a file or a directory.", "Give a file or a directory.")
    count = 0
    for folder, folders, names in os.walk(path, onerror=_raise):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if not stat.S_ISREG(file.lstat().st_mode):
                raise GipfelError(
                    f"{file} is not a regular file.",
                    f"Pack the directory: `gipfel data pack {path} {path}.sqsh`.",
                )
            count += 1
            if count > _MAX_FILES:
                raise GipfelError(
                    f"{path} has more than {_MAX_FILES} files.",
                    f"Pack it into one: `gipfel data pack {path} {path}.sqsh`, and stage that.",
                )
            yield file


def _raise(error: OSError) -> None:
    raise GipfelError(
        f"{error.filename} can't be read: {error.strerror}.", "Check its permissions."
    ) from error


def _item(path: Path) -> StageItem:
    about = path.stat()
    summary = read_summary(path) if summary_path(path).exists() else None
    return _described(str(path), about.st_size, about.st_mtime_ns, "", summary)


def _described(path: str, size: int, mtime_ns: int, etag: str, summary: Summary | None) -> StageItem:
    if summary is not None and summary.bytes != size:
        raise GipfelError(
            f"{path} has {size} bytes, but its summary says {summary.bytes}: it was cut or changed.",
            "Copy it again, or pack it again.",
        )
    # Without a summary the content is unknown before it is read, so path and version identify it.
    identity = f"{path}\0{size}\0{etag or mtime_ns}" if summary is None else summary.root
    return StageItem(
        path=path,
        size=size,
        mtime_ns=mtime_ns,
        etag=etag,
        key=_digest(identity),
        root=summary.root if summary else "",
        chunks=summary.chunks if summary else (),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def describe_copies(copies: tuple[NodeCopy, ...], total: int, *, ready: bool) -> str:
    """Return a sentence on the copies; ``total`` is the size of the data in bytes."""
    failed = [each for each in copies if each.phase == "failed"]
    staged = [each for each in copies if each.phase == "staged"]
    without = f" Not on {', '.join(each.node for each in failed[:4])}: {failed[0].problem}" if failed else ""
    if ready:
        tiers = " and ".join(sorted({each.tier for each in staged}))
        return f"staged on {len(staged)} of {len(copies)} nodes ({tiers}).{without}"
    slow = [each for each in copies if each.problem and each.phase != "failed"]
    doubt = f" {slow[0].node}: {slow[0].problem}" if slow else ""
    return f"{100 * share_copied(copies, total):.0f} % copied.{doubt}{without}"


def share_copied(copies: tuple[NodeCopy, ...], total: int) -> float:
    """Return the share (0 to 1) of the data that the nodes have, without failed nodes."""
    usable = [each for each in copies if each.phase != "failed"]
    wanted = total * len(usable)
    return sum(each.done for each in usable) / wanted if wanted else 1.0
