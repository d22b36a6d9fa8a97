"""Requests to the ranks of a running launch, as files that they look at, and their answers.

`request_dumps` asks for the flight recorder's dumps, `request_stacks` for the stacks of all threads, and
`request_trace` for a trace of torch's profiler or a snapshot of a GPU's memory. `Answers` reads what came.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically

from ...telemetry.files import read_regular

DUMP, STACKS, TRACE = "dump", "stacks.json", "trace.json"
What = Literal["trace", "memory"]
_MAX_BYTES = 64 << 10
#: Largest part of a rank's stacks that is read, from its end: several dumps are in one file.
_MAX_STACK_BYTES = 4 << 20
_LOOK_S = 0.2
#: The line that faulthandler writes for each thread; that of the current thread comes last.
_THREAD = re.compile(rb"^(Thread|Current thread) 0x", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_LIBRARY = re.compile(
    r"-packages/|/lib/python[0-9.]+/|^<|/launches/[0-9]+/(run|program|rank_requests|step_hooks)\.py"
)


class RankAnswer(Frozen, extra="ignore"):
    """Answer of a rank: the path and size of what it wrote, or why it could not."""

    rank: int
    path: str = ""
    bytes: int = 0
    error: str = ""


def request_dumps(folder: Path) -> int:
    """Ask all ranks for the flight recorder's dumps; return the time in ns from which files are new."""
    path = folder / DUMP
    path.touch(mode=0o600)
    return path.stat().st_mtime_ns


def request_stacks(folder: Path, ranks: Sequence[int]) -> "StackAnswers":
    """Ask ranks for the stacks of all their threads.

    Raises
    ------
    GipfelError
        The directory can't be written to.
    """
    return StackAnswers(folder, _request(folder, STACKS, ranks), tuple(ranks))


def request_trace(folder: Path, ranks: Sequence[int], steps: int, what: What = "trace") -> "Answers":
    """Ask ranks for a trace of a number of optimizer steps, or for a snapshot of GPU memory after them.

    Raises
    ------
    GipfelError
        The directory can't be written to.
    """
    return Answers(folder, _request(folder, TRACE, ranks, steps=steps, what=what), tuple(ranks))


def _request(folder: Path, name: str, ranks: Sequence[int], **more: object) -> str:
    identifier = secrets.token_hex(8)
    content = {"id": identifier, "ranks": list(ranks), **more}
    try:
        write_atomically(folder / name, json.dumps(content))
    except OSError as error:
        raise GipfelError(
            f"{folder / name} can't be written: {error.strerror}.",
            "Only the launch's owner may look into its ranks.",
        ) from error
    return identifier


class Answers:
    """Answers to one request, each a file that its rank writes once it is done."""

    def __init__(self, folder: Path, identifier: str, ranks: tuple[int, ...]) -> None:
        self._folder = folder
        self._identifier = identifier
        self.ranks = ranks
        self.found: dict[int, RankAnswer] = {}

    def poll(self) -> tuple[RankAnswer, ...]:
        """Return the answers that are new."""
        new = []
        for rank in self.ranks:
            path = self._folder / "answers" / f"{self._identifier}-{rank}.json"
            if rank not in self.found and path.exists():
                try:
                    answer = RankAnswer.model_validate_json(read_regular(path, _MAX_BYTES))
                except (OSError, ValidationError) as error:
                    answer = RankAnswer(rank=rank, error=f"its answer can't be read: {error}")
                self.found[rank] = answer
                new.append(answer)
        return tuple(new)

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not answered."""
        return tuple(rank for rank in self.ranks if rank not in self.found)

    def wait(
        self,
        limit_s: float,
        on_answer: Callable[[RankAnswer], None] | None = None,
        ended: Callable[[], bool] | None = None,
    ) -> None:
        """Wait until all ranks have answered, the launch has `ended`, or `limit_s` seconds have passed."""
        deadline = time.monotonic() + limit_s
        while True:
            for answer in self.poll():
                if on_answer is not None:
                    on_answer(answer)
            if not self.missing or time.monotonic() > deadline or (ended is not None and ended()):
                return
            time.sleep(_LOOK_S)


class StackAnswers(Answers):
    """Answers to a request for stacks, which are appended to a file of each rank."""

    def __init__(self, folder: Path, identifier: str, ranks: tuple[int, ...]) -> None:
        super().__init__(folder, identifier, ranks)
        self._sizes = {rank: _size(self._path(rank)) for rank in ranks}

    def poll(self) -> tuple[RankAnswer, ...]:
        """Return the answers that are new and whose stacks are written."""
        known = dict(self.found)
        super().poll()
        for rank, answer in tuple(self.found.items()):
            # The signal is sent before the answer, and its handler may be slower.
            if rank not in known and not answer.error and _size(self._path(rank)) <= self._sizes[rank]:
                del self.found[rank]
        return tuple(answer for rank, answer in self.found.items() if rank not in known)

    def text(self, rank: int) -> str:
        """Return the stacks that a rank has written since the request; empty if it has not."""
        try:
            written = read_regular(self._path(rank), 64 * _MAX_STACK_BYTES)[self._sizes[rank] :]
        except OSError:
            return ""
        return written[-_MAX_STACK_BYTES:].decode(errors="replace")

    def place(self, rank: int) -> str:
        """Return the innermost line of the user's code in a rank's main thread; empty if unknown."""
        return innermost_line(self.text(rank))

    def _path(self, rank: int) -> Path:
        return self._folder / "stacks" / f"rank-{rank}.txt"


def innermost_line(stacks: str) -> str:
    """Return the innermost line of user code, as ``function (file:line)``, of the last of these stacks.

    faulthandler writes the main thread last. Where all its frames are of packages, the first is returned.
    """
    threads = _THREAD.split(stacks.encode())
    frames = [found for line in threads[-1].decode().splitlines() if (found := _FRAME.match(line))]
    users = [each for each in frames if not _LIBRARY.search(each[1])]
    chosen = next(iter(users or frames), None)
    return f"{chosen[3]} ({chosen[1].rpartition('/')[2]}:{chosen[2]})" if chosen else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
