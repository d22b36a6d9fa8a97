"""Run the processes that read samples for a trial, mount a packed data set, and drop cached content."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError

_READY_S, _MOUNT_S, _END_S = 60.0, 30.0, 5.0
_READER = Path(__file__).with_name("sample_reader.py")


def run_readers(tasks: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Run a process for each task, all at the same time; return their answers."""
    with ExitStack() as stack:
        processes = []
        for task in tasks:
            process = subprocess.Popen(
                [sys.executable, "-I", str(_READER)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                start_new_session=True,
            )  # fmt: skip
            stack.callback(_end, process)
            processes.append(process)
            _send(process, task)
        deadline = time.monotonic() + _READY_S
        for process in processes:
            _line(process, deadline)
        for process in processes:
            _send(process, "go")
        # A file system that hangs may block a worker for longer than the time of the measurement.
        deadline = time.monotonic() + seconds + _READY_S
        return [json.loads(_line(process, deadline)) for process in processes]


def _send(process: "subprocess.Popen[str]", line: str) -> None:
    if process.stdin is not None:
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _line(process: "subprocess.Popen[str]", deadline: float) -> str:
    pipe = process.stdout
    if pipe is None or not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise GipfelError("A worker does not answer.", "The file system may hang: `stat` on it shows that.")
    line = pipe.readline()
    if not line:
        raise GipfelError("A worker ended early.", "Try fewer workers: memory or processes may be limited.")
    return line


def _end(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


@contextmanager
def mounted(image: Path) -> Iterator[Path]:
    """Mount an image for as long as the block runs; yield the directory.

    Raises
    ------
    GipfelError
        It can't be mounted here.
    """
    program = shutil.which("squashfuse_ll") or shutil.which("squashfuse")
    unmount = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None or unmount is None:
        raise GipfelError(
            "There is no squashfuse here.", "Install squashfuse, or measure in a container that has it."
        )
    folder = Path(tempfile.mkdtemp(prefix="gipfel-try-"))
    process = subprocess.Popen(
        [program, "-f", str(image), str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        # In a separate session, so that Ctrl-C reaches only this program, which then unmounts.
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + _MOUNT_S
        while not folder.is_mount():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                _, error = process.communicate()
                lines = (error or "").strip().splitlines()
                reason = lines[-1].rstrip(".") if lines else "squashfuse gave no reason"
                raise GipfelError(
                    f"{image} can't be mounted: {reason}.",
                    "`gipfel data verify` checks it; /dev/fuse must be accessible.",
                )
            time.sleep(0.02)
        yield folder
    finally:
        if folder.is_mount():
            subprocess.run([unmount, "-u", str(folder)], check=False, capture_output=True)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()
        with suppress(OSError):
            folder.rmdir()


def drop_content(paths: Sequence[str]) -> None:
    """Drop the cached content of files."""
    for path in paths:
        with suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                # Content that is not yet on disk can't be dropped from the cache.
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
