"""Pack a directory into a SquashFS image: the same names, contents and modes give the same bytes.

The image is written in a hidden, locked directory beside its final path, and moved there when it is complete.
Files that an interrupted packing left behind are removed by the next one.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, one_line

from ..telemetry.files import open_regular, read_tail, sync_directory
from .manifest import (
    CHUNK_BYTES,
    CROISSANT_PATH,
    MAX_CROISSANT_BYTES,
    Base,
    Entry,
    Origin,
    Summary,
    display_path,
    earlier_summary_path,
    is_earlier_image,
    parse_croissant,
    root_of,
    summary_path,
    write_summary,
)
from .options import Access, Compression, Packer, Plan, arguments, find_packer, plan_packing
from .source import Source, scan
from .squashfs import SUFFIX
from .stream import SourceStream

#: Number of files read at the same time: on a shared file system, most of the time for a small file is
#: latency.
READERS = 8

# mksquashfs takes a quarter of the machine's memory by default, which may be more than the job has.
_MEMORY = "1G"
_PIPE_BYTES = 1 << 20
_MAX_EPOCH = 2**32 - 1
_LOG_BYTES = 4096


@dataclass(frozen=True)
class PackRequest:
    """Source, target and settings of an image.

    `scan` lists the source, and `check` may refuse it by raising, for example for a layer. `previous` is the
    summary of the image that the new one is made from; its packing, origin, base and metadata are then kept.
    `on_progress` gets the bytes read so far.
    """

    source: Path
    target: Path
    access: Access = "random"
    compression: Compression = "auto"
    replace: bool = False
    readers: int = READERS
    base: Base | None = None
    previous: Summary | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    scan: Callable[[Path], Source] = scan
    check: Callable[[Source], None] = lambda _: None
    on_plan: Callable[[Source, Plan], None] = lambda _source, _plan: None
    on_progress: Callable[[int], None] = lambda _: None


def pack(request: PackRequest) -> Summary:
    """Pack a directory; return the summary that is written beside the image.

    Raises
    ------
    GipfelError
        A file can't be packed or changed meanwhile, the target exists or can't be written, or mksquashfs
        failed. The target is then unchanged.
    """
    target = _check_target(request)
    epoch = _epoch(request.environment)
    packer = find_packer()
    source = request.scan(request.source)
    if source.path != target and target.is_relative_to(source.path):
        raise GipfelError(f"{target} is inside the directory to be packed.", "Give a path outside of it.")
    request.check(source)
    plan = _plan(request, source, packer)
    request.on_plan(source, plan)
    stream = SourceStream(source, plan.packing, request.readers, request.on_progress)
    with work_directory(target) as work:
        # Each packing uses another name: the mksquashfs of a killed packing removes its own file when it
        # ends.
        image = work / f"{os.getpid()}-{target.name}"
        options = (*arguments(plan.packing), "-root-mode", f"{source.mode:o}")
        times = ("-mkfs-time", str(epoch), "-all-time", str(epoch))
        entries, manifest = _run(stream, image, (*options, *times), request.environment)
        chunks, previous = hash_chunks(image), request.previous
        size = image.stat().st_size
        summary = Summary(
            bytes=size,
            root=root_of(size, chunks),
            manifest=manifest,
            files=sum(each.kind in {"file", "hardlink"} for each in entries),
            data_bytes=sum(each.size for each in entries),
            packing=plan.packing,
            origin=previous.origin if previous else origin_of(source, f"mksquashfs {packer.version}"),
            base=previous.base if previous else request.base,
            removals=previous.removals if previous else (),
            croissant=previous.croissant if previous else _croissant(source),
            chunks=chunks,
        )
        _install(image, target, summary)
    return summary


def _croissant(source: Source) -> dict[str, Any] | None:
    """Return the Croissant metadata among the entries of a source, wherever the source keeps them."""
    for each in source.entries:
        if each.entry.path == CROISSANT_PATH and each.entry.kind in {"file", "hardlink"}:
            try:
                with source.open(each) as file:
                    content = file.read(MAX_CROISSANT_BYTES + 1)
            except OSError as error:
                raise GipfelError(
                    f"{display_path(CROISSANT_PATH)} can't be read: {error.strerror}.", "Check the file."
                ) from error
            return parse_croissant(content) if len(content) <= MAX_CROISSANT_BYTES else None
    return None


def hash_chunks(image: Path) -> tuple[str, ...]:
    """Return the SHA-256 of each 4 MiB of a file, computed in parallel."""
    with open_regular(image) as file:
        descriptor = file.fileno()
        starts = range(0, os.fstat(descriptor).st_size, CHUNK_BYTES)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return tuple(pool.map(lambda start: hash_chunk(descriptor, start), starts))


def hash_chunk(descriptor: int, start: int) -> str:
    """Return the SHA-256 of the 4 MiB of an open file from `start`, or of fewer bytes at its end."""
    return hashlib.sha256(os.pread(descriptor, CHUNK_BYTES, start)).hexdigest()


def _check_target(request: PackRequest) -> Path:
    target = request.target.absolute()
    if target.suffix != SUFFIX:
        raise GipfelError(f"{target.name} does not end with {SUFFIX}.", f"Give a name such as data{SUFFIX}.")
    if not target.parent.is_dir():
        raise GipfelError(f"The directory {target.parent} does not exist.", "Create it first.")
    if target.exists() and not (request.replace and target.is_file()):
        raise GipfelError(f"{target} exists already.", "Use --replace, or give another name.")
    return target.parent.resolve() / target.name


def _epoch(environment: Mapping[str, str]) -> int:
    """Return the time to give all files, in seconds since 1970. Source: reproducible-builds.org/specs."""
    text = environment.get("SOURCE_DATE_EPOCH", "") or "0"
    if not (text.isascii() and text.isdecimal() and int(text) <= _MAX_EPOCH):
        raise GipfelError(
            f"SOURCE_DATE_EPOCH={text!r} is not a valid time.", "Give seconds since 1970, or unset it."
        )
    return int(text)


def _plan(request: PackRequest, source: Source, packer: Packer) -> Plan:
    if request.previous:
        packing = request.previous.packing
        fraction = min(1.0, request.previous.bytes / max(1, request.previous.data_bytes))
        return Plan(packing, fraction, int(fraction * source.data_bytes))
    return plan_packing(source, request.access, request.compression, packer.compressors)


def origin_of(source: Source, packer: str) -> Origin:
    """Return the origin of a source that is packed now; `packer` names the program."""
    text = os.fsencode(source.path).decode("utf-8", "backslashreplace")
    return Origin(source=text, packed=utc_now(), packer=packer)


def utc_now() -> str:
    """Return the current UTC time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def work_directory(target: Path) -> Iterator[Path]:
    """Create a locked, empty directory beside the target, and remove it at the end."""
    work = target.with_name(f".{target.name}.packing")
    try:
        work.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise GipfelError(
            f"{target} can't be written: {error.strerror}.",
            "Give a path in a directory that you can write to.",
        ) from error
    try:
        state = os.fstat(descriptor)
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            # In a world-writable directory, another user could replace the image between hashing and
            # renaming.
            raise GipfelError(
                f"{work} belongs to another user, or others can write to it.",
                "Remove it, or give a path in a directory of your own.",
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _is_being_packed(target) from error
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}:
                raise
            # On a file system without locks, two packings of the same target are not detected.
        if not _is_same_directory(work, descriptor):
            # The other packing ended between opening and locking, and has removed the directory.
            raise _is_being_packed(target)
        for leftover in work.iterdir():
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(descriptor)


def _is_being_packed(target: Path) -> GipfelError:
    return GipfelError(f"{target} is being packed by another process.", "Wait for it.")


def _is_same_directory(path: Path, descriptor: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _run(
    stream: SourceStream, image: Path, options: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[tuple[Entry, ...], str]:
    """Write the image through mksquashfs; return the entries and the hash of the manifest."""
    argv = (
        *("mksquashfs", "-", str(image), "-tar", "-noappend", "-quiet", "-no-progress", "-exit-on-error"),
        *("-no-recovery", "-all-root", "-mem", _MEMORY, *options),
    )
    # With both this variable and the options for times, mksquashfs refuses to run.
    variables = {name: value for name, value in environment.items() if name != "SOURCE_DATE_EPOCH"}
    log = image.with_name("log")
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # In a separate session, so that Ctrl-C reaches only this process, which ends it and removes its
        # files.
        process = subprocess.Popen(
            argv,
            bufsize=_PIPE_BYTES,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=variables,
            start_new_session=True,
        )
    finally:
        os.close(output)
    pipe = process.stdin
    assert pipe is not None  # noqa: S101 - PIPE
    found = None
    try:
        # mksquashfs ends at the archive's end, and may not read the padding that follows it.
        with suppress(BrokenPipeError):
            found = stream.write(pipe, image.parent)
            pipe.close()
        status = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        with suppress(OSError):
            # mksquashfs has ended, so no process reads the rest of the buffer.
            pipe.close()
    if status or found is None:
        lines = [
            line for line in read_tail(log, _LOG_BYTES).decode(errors="replace").splitlines() if line.strip()
        ]
        fatal = [line for line in lines if "FATAL" in line] or lines[-1:] or [f"exit status {status}"]
        reason = one_line(fatal[-1]).removeprefix("FATAL ERROR: ").rstrip(".")
        raise GipfelError(f"mksquashfs failed: {reason}.", "Check the free space beside the target.")
    return found


def _install(image: Path, target: Path, summary: Summary) -> None:
    """Move a complete image to its final path, after its summary, so that no image lacks a summary.

    The summary of a replaced image is kept until then, so that the old image can still be verified after a
    kill in between.
    """
    with open_regular(image) as file:
        os.fsync(file.fileno())
    mode = stat.S_IMODE(image.stat().st_mode)
    write_summary(image, summary, mode)
    beside, earlier = summary_path(target), earlier_summary_path(target)
    if target.exists() and beside.exists() and not is_earlier_image(target):
        beside.replace(earlier)
    try:
        summary_path(image).replace(beside)
        image.replace(target)
    except BaseException:
        if image.exists():
            beside.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                earlier.replace(beside)
        raise
    sync_directory(target.parent)
    earlier.unlink(missing_ok=True)
