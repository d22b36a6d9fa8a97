"""Read samples as fast as possible for some time: the program of each worker of ``trial.py``.

It needs only the standard library. On standard input it reads a line of JSON with ``kind`` (``files`` or
``shards``), ``samples`` (a list of paths for each sample or shard) and ``seconds``, and then a line that says
that all workers are ready. It prints a line of JSON: samples, bytes, seconds, how many elements of the list
it has begun, and an error if there was one.
"""

import json
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    """Read the task, wait for the start, read the samples, and print what was read."""
    task = json.loads(sys.stdin.readline())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    started = time.perf_counter()
    samples = total = place = 0
    problem = ""
    try:
        for number, size in _sizes(task["kind"], task["samples"]):
            samples, total, place = samples + 1, total + size, number
            if time.perf_counter() - started > task["seconds"]:
                break
    except (OSError, tarfile.TarError) as error:
        problem = str(error)
    seconds = time.perf_counter() - started
    found = {"samples": samples, "bytes": total, "begun": place, "seconds": seconds, "problem": problem}
    sys.stdout.write(json.dumps(found) + "\n")


def _sizes(kind: str, listed: list[list[str]]) -> Iterator[tuple[int, int]]:
    """Yield for each sample the number of elements of the list begun so far, and the sample's bytes."""
    read = _read_files if kind == "files" else _read_shards
    for number, paths in enumerate(listed, start=1):
        for size in read(paths):
            yield number, size


def _read_files(paths: list[str]) -> Iterator[int]:
    """Yield the size in bytes of a sample, which may consist of several files."""
    size = 0
    for path in paths:
        with Path(path).open("rb") as file:
            size += len(file.read())
    yield size


def _read_shards(paths: list[str]) -> Iterator[int]:
    """Yield the size of each sample of tar files; a sample's members share the name up to its first dot."""
    for path in paths:
        before: tuple[str, str] | None = None
        size = 0
        with tarfile.open(path, "r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                head, _, name = member.name.rpartition("/")
                key = (head, name.partition(".")[0])
                if before is not None and key != before:
                    yield size
                    size = 0
                before, size = key, size + len(content.read())
        if before is not None:
            yield size


if __name__ == "__main__":
    main()
