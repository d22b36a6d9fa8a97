"""Requests to look into the ranks of a running launch, as files that the ranks poll, and their answers.

`request_look` asks for stacks, a flame graph, a trace of torch's profiler or a snapshot of GPU memory, and
`request_dumps` for the flight recorder's dumps. A `Look` is one request with its answers, in the
launch's directory ``deeper/<id>/``, which is kept. `earlier_looks` returns the looks of a launch.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.regular_files import modified_ns
from gipfel_cluster.runs import write_atomically

from ...telemetry.files import read_regular
from ..flight_recorder.report import name_ranks
from ..record import read_rank_records, read_state

DUMP, STACKS, TRACE = "dump", "stacks.json", "trace.json"
What = Literal["stacks", "flame", "trace", "memory"]
Method = Literal["auto", "py-spy", "signal"]
_DIRECTORY, _REQUEST = "deeper", "request.json"
_IDENTIFIER = re.compile(r"(stacks|flame|trace|memory)-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4,16}")
_STAMP = "%Y%m%dT%H%M%SZ"
_MAX_BYTES = 1 << 20
_MOST_LOOKS = 50
#: Maximum number of bytes that are read of a rank's stacks.
MAX_STACK_BYTES = 4 << 20
#: Minimum time in seconds between two requests: ranks poll at least once a second, and a request that follows
#: sooner might replace one that they have not read.
_TURN_S = 2.0
_LOOK_S = 0.2
#: The line that faulthandler writes for each thread; that of the current thread comes last.
_THREAD = re.compile(r"^(?:Thread|Current thread) 0x", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_PY_SPY_THREAD = re.compile(r"^Thread \d+ .*$", re.MULTILINE)
_PY_SPY_FRAME = re.compile(r"^    (.*) \((.*?)(?::(\d+))?\)$")
_LIBRARY = re.compile(
    r"-packages/|/lib/python[0-9.]+/|^<|/launches/[0-9]+/(run|program|gipfel_rank_files|rank_requests|rank_looks|rank_writes|step_hooks)\.py"
)


class LookRequest(Frozen, extra="ignore"):
    """Request to look into ranks.

    ``seconds`` is the duration of a flame graph, ``steps`` that of a trace or snapshot. ``method`` ``auto``
    is py-spy where it is installed and may attach, else the signal, or for a flame graph the rank's own
    sampler. ``native`` adds the frames of C and C++, which only py-spy sees.
    """

    what: What
    ranks: tuple[int, ...] = Field(min_length=1, max_length=100_000)
    seconds: int = Field(10, ge=1, le=600)
    steps: int = Field(3, ge=1, le=1000)
    method: Method = "auto"
    native: bool = False


class RankAnswer(Frozen, extra="ignore"):
    """Answer of a rank: the path and size of what it wrote, or why it could not.

    ``note`` says why py-spy was not used, or what else is unusual.
    """

    rank: int
    path: str = ""
    bytes: int = 0
    error: str = ""
    method: str = ""
    note: str = ""


class Look:
    """One request and its answers by rank, each from a file that the rank writes once it is done.

    Parameters
    ----------
    folder
        The launch's directory.
    identifier
        Name of the request's directory.
    """

    def __init__(self, folder: Path, identifier: str, request: LookRequest) -> None:
        self.identifier = identifier
        self.request = request
        self.directory = folder / _DIRECTORY / identifier
        self.answers: dict[int, RankAnswer] = {}

    @property
    def time_ms(self) -> int:
        """Return the time of the request in UTC milliseconds."""
        stamp = datetime.strptime(self.identifier.split("-")[1], _STAMP).replace(tzinfo=UTC)
        return int(stamp.timestamp() * 1000)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that the request is for."""
        return self.request.ranks

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have not answered."""
        return tuple(rank for rank in self.ranks if rank not in self.answers)

    def poll(self) -> tuple[RankAnswer, ...]:
        """Return the answers that have arrived since the last call."""
        new = []
        for rank in self.missing:
            path = self.directory / f"answer-{rank}.json"
            if path.exists():
                try:
                    answer = RankAnswer.model_validate_json(read_regular(path, _MAX_BYTES))
                except (OSError, ValidationError) as error:
                    answer = RankAnswer(rank=rank, error=f"its answer can't be read: {error}")
                self.answers[rank] = answer
                new.append(answer)
        return tuple(new)

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

    def file(self, rank: int) -> Path:
        """Return the path of a rank's result."""
        suffix = {"stacks": ".txt", "flame": ".speedscope.json", "trace": ".json", "memory": ".pickle"}
        return self.directory / f"rank-{rank}{suffix[self.request.what]}"

    def text(self, rank: int) -> str:
        """Return the stacks of a rank; empty if there are none."""
        try:
            return read_regular(self.file(rank), MAX_STACK_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def place(self, rank: int) -> str:
        """Return the innermost line of the user's code in a rank's main thread; empty if unknown."""
        return innermost_line(self.text(rank))


def request_look(folder: Path, request: LookRequest) -> Look:
    """Write a request for ranks; they answer within seconds, or after the steps that it asks for.

    Raises
    ------
    GipfelError
        The launch or a rank is not running, or the directory can't be written to.
    """
    check_running(folder, request.ranks)
    name = STACKS if request.what in {"stacks", "flame"} else TRACE
    _wait_for_turn(folder / name)
    stamp = datetime.now(UTC).strftime(_STAMP)
    look = Look(folder, f"{request.what}-{stamp}-{secrets.token_hex(3)}", request)
    content = json.dumps({"id": look.identifier, **request.model_dump(mode="json")})
    try:
        look.directory.mkdir(mode=0o700, parents=True)
        write_atomically(look.directory / _REQUEST, content)
        write_atomically(folder / name, content)
    except OSError as error:
        raise GipfelError(
            f"{folder} can't be written: {error.strerror}.",
            "Only the launch's owner may look into its ranks.",
        ) from error
    return look


def request_dumps(folder: Path) -> int:
    """Request the flight recorder's dumps of all ranks; return the time in ns after which files are new."""
    path = folder / DUMP
    path.touch(mode=0o600)
    return path.stat().st_mtime_ns


def check_running(folder: Path, ranks: Sequence[int]) -> None:
    """Raise a `GipfelError` unless the launch and these ranks of it run."""
    if read_state(folder).phase != "running":
        raise GipfelError(
            f"Launch {folder.name} does not run, and only running ranks can be looked into.",
            f"See what it left: `gipfel launch show {folder.name}`, `gipfel flight-recorder {folder.name}`.",
        )
    running = running_ranks(folder)
    absent = [rank for rank in ranks if rank not in running]
    if absent:
        raise GipfelError(
            f"Rank {absent[0]} of launch {folder.name} is not running.",
            f"Running: {name_ranks(running)}." if running else "No rank is running.",
        )


def running_ranks(folder: Path) -> tuple[int, ...]:
    """Return the ranks of a launch that have started and not ended."""
    return tuple(rank for rank, each in read_rank_records(folder).items() if each.ended_ns is None)


def earlier_looks(folder: Path) -> list[Look]:
    """Return the looks into a launch with their answers, the newest first; only the last ones if many."""
    try:
        names = [each.name for each in (folder / _DIRECTORY).iterdir() if _IDENTIFIER.fullmatch(each.name)]
    except OSError:
        return []
    newest = sorted(names, key=lambda each: each.split("-")[1:], reverse=True)[:_MOST_LOOKS]
    return [look for name in newest if (look := find_look(folder, name)) is not None]


def find_look(folder: Path, identifier: str) -> Look | None:
    """Return a look by its name, with its answers; None if there is none, or it can't be read."""
    if not _IDENTIFIER.fullmatch(identifier):
        return None
    try:
        content = read_regular(folder / _DIRECTORY / identifier / _REQUEST, _MAX_BYTES)
        look = Look(folder, identifier, LookRequest.model_validate_json(content))
    except (OSError, ValidationError):
        return None
    look.poll()
    return look


def _wait_for_turn(path: Path) -> None:
    age_s = time.time() - modified_ns(path) / 1e9
    if 0 <= age_s < _TURN_S:
        time.sleep(_TURN_S - age_s)


def main_frames(stacks: str) -> tuple[tuple[str, str, str], ...]:
    """Return function, file and line of the main thread's frames, the innermost first.

    faulthandler writes the main thread last, and py-spy first.
    """
    if stacks.startswith("Process "):
        parts = _PY_SPY_THREAD.split(stacks)
        lines = parts[1].splitlines() if len(parts) > 1 else []
        matches = [found for line in lines if (found := _PY_SPY_FRAME.match(line))]
        return tuple((each[1], each[2], each[3] or "") for each in matches)
    lines = _THREAD.split(stacks)[-1].splitlines()
    return tuple((each[3], each[1], each[2]) for line in lines if (each := _FRAME.match(line)))


def innermost_line(stacks: str) -> str:
    """Return the innermost line of the user's code in the main thread, as ``function (file:line)``.

    If all frames are in packages, return the innermost frame.
    """
    frames = main_frames(stacks)
    # Native frames have a library in place of a file, and often no line.
    users = [each for each in frames if each[2] and ".so" not in each[1] and not _LIBRARY.search(each[1])]
    chosen = next(iter(users or frames), None)
    return f"{chosen[0]} ({chosen[1].rpartition('/')[2]}:{chosen[2]})" if chosen else ""
