"""The dump of one rank: what it called in each process group, and how far each call came.

Source of the format: ``torch/csrc/distributed/c10d/FlightRecorder{,Detail}.hpp`` of torch 2.13 (version 2.10
of the dump). Older versions lack ``pg_status``, ``p2p_seq_id`` or ``collective_seq_id`` (then ``seq_id``);
the JSON form writes 0 for a time that is missing and leaves an empty list of entries out. Backends other
than NCCL leave the state of a call as it was and only mark it as retired, and gloo leaves ``pg_config``
empty.
"""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LARGEST = 1 << 63
_MAX_ENTRIES = 200_000
_MAX_NAME = 200
#: Maximum length in characters of a list of ranks: a hundred thousand ranks as torch writes them.
_MAX_RANKS_TEXT = 800_000
_MAX_GROUPS = 20_000
#: Finished calls that are kept of each process group: the last one for its frame, the others for arrival
#: times and to compare them with ranks that have not finished them.
_KEPT_CALLS = 32
#: Collectives of each group whose times are kept.
_KEPT_TIMES = 128
#: Collectives that no rank finishes before all have called.
_SYNCHRONIZING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
_FRAMES_OF_TORCH = ("torch/", "/torch")
P2P = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})$")


@dataclass(frozen=True, slots=True)
class GroupId:
    """A process group: names repeat between ranks of different groups, so its members count too."""

    name: str
    members: tuple[int, ...] = ()

    def __hash__(self) -> int:
        # Not of all members: groups of thousands of ranks are looked up once for each call.
        return hash((self.name, len(self.members), self.members[:1]))


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of a rank, or one batch of point-to-point calls; times are nanoseconds since the epoch.

    ``sequence`` is its number in the group, ``order`` counts all calls of the rank. ``frame`` is the line of
    the user's code. ``sends`` and ``receives`` are the peers of point-to-point calls, as positions in the
    group. A call that has ``finished`` but not ``has_succeeded`` may have failed: gloo does not record which.
    ``shapes`` and ``dtypes`` are those of inputs and outputs.
    """

    group: GroupId
    sequence: int
    operation: str
    order: int
    started: bool = False
    finished: bool = False
    has_succeeded: bool = False
    is_p2p: bool = False
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    shapes: tuple[Any, Any] = ((), ())
    dtypes: tuple[Any, Any] = ((), ())
    created_ns: int | None = None
    timeout_ms: int = 0
    frame: str = ""


@dataclass(slots=True)
class GroupLog:
    """Calls of a rank in one group.

    ``enqueued`` and ``completed`` are the sequence numbers of the last call that was enqueued, and completed.
    ``times`` has three numbers for each of the last finished collectives that synchronize their group:
    sequence number, time of the call, and time when its end was seen, or 0, in nanoseconds.
    """

    enqueued: int = 0
    completed: int = 0
    has_p2p: bool = False
    calls: dict[int, Call] = field(default_factory=dict)
    p2p: list[Call] = field(default_factory=list)
    times: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def unfinished(self) -> list[Call]:
        """Return the collectives that have not finished, the oldest first."""
        return [each for each in self.calls.values() if not each.finished]


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank.

    ``last`` is the rank's last call, ``entries`` the number of entries in the file. ``is_whole`` is False if
    the ring buffer has lost its oldest entries; ``written_ns`` is the modification time of the file.
    ``oldest_ns`` and ``newest_ns`` are the creation times of its entries.
    """

    rank: int
    groups: dict[GroupId, str] = field(default_factory=dict)
    logs: dict[GroupId, GroupLog] = field(default_factory=dict)
    last: Call | None = None
    entries: int = 0
    is_whole: bool = True
    oldest_ns: int | None = None
    newest_ns: int | None = None
    written_ns: int | None = None


#: Entries of a rank by name of their group, whether they are point-to-point, and number; entries of a
#: coalesced call share this key, and the last of them has the call's state.
Bundles = Mapping[tuple[str, bool, int], Sequence[Mapping[str, Any]]]


def dump_of(raw: Any, rank: int, also: Callable[[Dump, Bundles], None] | None = None) -> Dump:
    """Return the dump of a rank from the plain value of its file.

    Parameters
    ----------
    also
        Called with the dump and all entries of the file; the dump itself keeps only the last calls.

    Raises
    ------
    ValueError
        The value is not a dump.
    """
    if not isinstance(raw, Mapping) or not ("entries" in raw or "pg_config" in raw):
        raise ValueError("it is not a dump of a flight recorder")
    entries = _list(raw.get("entries"))
    groups = _groups(raw.get("pg_config"))
    found = _Entries(groups)
    for each in entries[-_MAX_ENTRIES:]:
        if isinstance(each, Mapping):
            found.add(each)
    dump = Dump(
        rank=rank,
        groups={GroupId(name, members): label for name, (members, label) in groups.items()},
        logs=found.logs(),
        last=found.last,
        entries=len(entries),
        is_whole=found.first_record == 0 or not entries,
        oldest_ns=min(found.times, default=None),
        newest_ns=max(found.times, default=None),
    )
    _add_status(dump, found.local_ids, raw.get("pg_status"))
    if also is not None:
        also(dump, found.bundles)
    return dump


class _Entries:
    """Collects entries by group and number; entries of a coalesced call share both."""

    def __init__(self, groups: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        self._ids = {name: GroupId(name, members) for name, (members, _) in groups.items()}
        self.bundles: dict[tuple[str, bool, int], list[Mapping[str, Any]]] = {}
        self.local_ids: dict[str, int] = {}
        self.times: list[int] = []
        self.first_record: int | None = None
        self.last: Call | None = None
        self._order = 0

    def add(self, raw: Mapping[str, Any]) -> None:
        """Add an entry; one without a group or a number is left out."""
        group, local = raw.get("process_group"), number_of(raw.get("pg_id"))
        name = group[0] if isinstance(group, list | tuple) and group else local
        is_p2p = raw.get("is_p2p") is True
        number = number_of(raw.get("p2p_seq_id" if is_p2p else "collective_seq_id", raw.get("seq_id")))
        if number is None or not isinstance(name, str | int):
            return
        name = str(name)[:_MAX_NAME]
        if self.first_record is None:
            self.first_record = number_of(raw.get("record_id", raw.get("id"))) or 0
        if local is not None and self.local_ids.get(name, local) < local:
            # The program has destroyed the group and made it again: its sequence numbers restart.
            for key in [each for each in self.bundles if each[0] == name]:
                del self.bundles[key]
        if local is not None:
            self.local_ids[name] = local
        if (at := number_of(raw.get("time_created_ns"))) is not None:
            self.times.append(at)
        if len(self._ids) < _MAX_GROUPS:
            self._ids.setdefault(name, GroupId(name))
        if name in self._ids:
            self.bundles.setdefault((name, is_p2p, number), []).append(raw)

    def logs(self) -> dict[GroupId, GroupLog]:
        """Return the calls of each group, and set `last` to the rank's last call."""
        logs: dict[GroupId, GroupLog] = {}
        recent: dict[str, int] = {}
        for name, is_p2p, number in self.bundles:
            if not is_p2p:
                recent[name] = max(recent.get(name, 0), number)
        for order, ((name, is_p2p, number), entries) in enumerate(self.bundles.items()):
            log = logs.setdefault(self._ids[name], GroupLog())
            log.has_p2p |= is_p2p
            is_finished = _is_finished(entries[-1])
            if is_abandoned(entries):
                continue
            if not is_p2p:
                log.enqueued = max(log.enqueued, number)
                log.completed = max(log.completed, number if is_finished else 0)
                if is_finished and number > recent[name] - _KEPT_TIMES:
                    _add_times(log.times, number, entries[-1])
                if is_finished and number <= recent[name] - _KEPT_CALLS:
                    continue
            call = _call(self._ids[name], number, order, is_p2p, entries)
            if is_p2p:
                log.p2p.append(call)
            else:
                log.calls[number] = call
            if self.last is None or call.order > self.last.order:
                self.last = call
        return logs


def _add_times(times: "array[int]", number: int, entry: Mapping[str, Any]) -> None:
    name = operation_of(entry).lstrip("_").replace("_", "").lower()
    created = number_of(entry.get("time_created_ns"))
    if created and name.startswith(_SYNCHRONIZING):
        times.extend((number, created, number_of(entry.get("time_discovered_completed_ns")) or 0))


def is_abandoned(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a batch was begun and never submitted, so that no rank can be waiting in it."""
    return len(entries) > 1 and "coalesced" not in _text(entries[-1].get("profiling_name"))


def _call(
    group: GroupId,
    number: int,
    order: int,
    is_p2p: bool,  # noqa: FBT001 - part of the key of an entry
    entries: Sequence[Mapping[str, Any]],
) -> Call:
    last = entries[-1]
    # A coalesced call ends with an entry of its own, and only that one is kept up to date.
    parts = entries[:-1] or entries
    names = [operation_of(each) for each in parts]
    found = [match for name in names if is_p2p and (match := P2P.search(name))]
    return Call(
        group=group,
        sequence=number,
        operation=", ".join(dict.fromkeys(names[:8]))[:_MAX_NAME],
        order=order,
        started=last.get("state") == "started",
        finished=_is_finished(last),
        has_succeeded=last.get("state") == "completed",
        is_p2p=is_p2p,
        sends=tuple(int(each[4]) for each in found if each[1] == "send"),
        receives=tuple(int(each[4]) for each in found if each[1] == "recv"),
        shapes=(_shapes(parts, "input_sizes"), _shapes(parts, "output_sizes")),
        dtypes=(_names(parts, "input_dtypes"), _names(parts, "output_dtypes")),
        created_ns=number_of(last.get("time_created_ns")),
        timeout_ms=number_of(last.get("timeout_ms")) or 0,
        frame=user_frame(last.get("frames") or parts[0].get("frames")),
    )


def operation_of(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry's call without that of its backend."""
    name = _text(entry.get("profiling_name"))
    return name.partition(":")[2] or name


def _add_status(dump: Dump, local_ids: Mapping[str, int], raw: Any) -> None:
    """Add the counters of the groups, which torch keeps by a number that only this process knows.

    Counters of groups with point-to-point calls count those as well, and so do gloo's, which lists no
    members.
    """
    status = {int(key): value for key, value in _mapping(raw).items() if number_of(key) is not None}
    names = {group.name: group for group in dump.groups if group.members}
    known = {name: local for name, local in local_ids.items() if name in names}
    numeric = sorted((name for name in names if name.isdecimal()), key=int)
    # Both are numbered in the order in which this rank made its groups.
    in_order = dict(zip(numeric, sorted(status), strict=False)) if len(numeric) == len(status) else {}
    if in_order and all(in_order.get(name) == local for name, local in known.items()):
        known = in_order
    for name, local in known.items():
        log = dump.logs.setdefault(names[name], GroupLog())
        counters = _mapping(status.get(local))
        if not log.has_p2p:
            log.enqueued = max(log.enqueued, number_of(counters.get("last_enqueued_collective")) or 0)
            log.completed = max(log.completed, number_of(counters.get("last_completed_collective")) or 0)


def _is_finished(raw: Mapping[str, Any]) -> bool:
    return raw.get("state") == "completed" or (raw.get("retired") is True and not _timed_out(raw))


def _timed_out(raw: Mapping[str, Any]) -> bool:
    # NCCL's watchdog also retires a call that has timed out; calls that it ran have a start or an end.
    return _text(raw.get("profiling_name")).startswith("nccl") and raw.get("state") in (
        "started",
        "scheduled",
    )


def _groups(raw: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return members and description of each group that has a name."""
    groups = {}
    for key, value in list(_mapping(raw).items())[:_MAX_GROUPS]:
        about = _mapping(value)
        name = str(key)[:_MAX_NAME]
        if members := _ranks(about.get("ranks")):
            groups[name] = (members, _text(about.get("desc"))[:_MAX_NAME])
    return groups


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group, which torch writes as a list in text form."""
    if isinstance(value, str):
        return tuple(int(each) for each in re.findall(r"\d{1,9}", value[:_MAX_RANKS_TEXT]))
    return tuple(each for each in value if isinstance(each, int)) if isinstance(value, list | tuple) else ()


def _shapes(entries: Sequence[Mapping[str, Any]], key: str) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of all tensors of a call."""
    shapes = [tuple(_list(shape)[:16]) for raw in entries[:64] for shape in _list(raw.get(key))[:256]]
    if not all(isinstance(each, int) for sizes in shapes for each in sizes):
        raise ValueError("its values are not those of a flight recorder (sizes)")
    return tuple(shapes)


def _names(entries: Sequence[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    return tuple(_text(each)[:40] for raw in entries[:64] for each in _list(raw.get(key))[:256])


def user_frame(frames: Any) -> str:
    """Return file, line and function of the innermost frame outside of torch."""
    for frame in _list(frames)[:256] if isinstance(frames, list | tuple) else ():
        file = frame.get("filename") if isinstance(frame, Mapping) else None
        if isinstance(file, str) and file and not any(each in file for each in _FRAMES_OF_TORCH):
            function = frame.get("name")
            inside = f" in {function}" if isinstance(function, str) and function else ""
            return f"{file[-200:]}:{number_of(frame.get('line')) or '?'}{inside[:_MAX_NAME]}"
    return ""


def _list(value: Any) -> list[Any] | tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError("its values are not those of a flight recorder (a list)")  # noqa: TRY004 - of a file
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("its values are not those of a flight recorder (a text)")  # noqa: TRY004 - of a file
    return value


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def number_of(value: Any) -> int | None:
    """Return an integer, which torch's JSON may contain as text; None if it is not one, or is too large."""
    if type(value) is int:
        return value if abs(value) < _LARGEST else None
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < _LARGEST else None
