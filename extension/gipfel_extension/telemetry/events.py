"""Events of a recording, beside its samples: lines in ``telemetry/<node>-<recorder>.events.jsonl``."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .files import read_regular

#: Ending of the files that hold events.
SUFFIX = ".events.jsonl"
_MOST_BYTES = 64 << 20

#: Every kind of event, and its meaning.
KINDS: Mapping[str, str] = {
    "recorder_started": "a recorder began",
    "recorder_ended": "a recorder was asked to stop, and wrote what it held",
    "recorder_lost": "a recorder died, and is started again",
    "recorder_stalled": "a recorder stalled, and samples are missing",
    "second_recorder": "two recorders of one name write into one folder",
    "late_join": "a node's recorder came later than the others",
    "node_lost": "a node's recorder stopped sending",
    "node_back": "a node's recorder that was silent sends again",
    "source_lost": "a source can't be read",
    "source_back": "a source can be read again",
    "disk_full": "samples can't be written, and wait",
    "disk_back": "samples can be written again",
    "samples_lost": "more samples waited for the disk than memory holds",
    "clock_step": "the node's clock was set",
    "xid": "the driver reports an error of a GPU",
    "gpu_lost": "a GPU doesn't answer any more",
    "throttle": "a GPU is slowed down by its temperature or by its supply of power",
}


@dataclass(frozen=True)
class Event:
    """An event of a recording, such as an XID or a full disk.

    Parameters
    ----------
    time_ns
        UTC since the epoch.
    kind
        One of :data:`KINDS`; a later version may know others.
    device
        UUID of the GPU that it concerns, else empty.
    message
        One sentence for a person.
    """

    time_ns: int
    node: str
    kind: str
    device: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the event as a dictionary that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Event":
        """Return the event of :meth:`to_json`; keys of a later version are left out.

        Raises
        ------
        ValueError
            It is none.
        """
        try:
            texts = (content["node"], content["kind"], content.get("device", ""), content["message"])
            time_ns = content["time_ns"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an event: {error!r}") from error
        if type(time_ns) is not int or abs(time_ns) >= 2**63 or not all(isinstance(t, str) for t in texts):
            raise ValueError("not an event: a value is of another type")
        return cls(time_ns, *texts)


@dataclass(frozen=True)
class Events:
    """The events of a folder, by time.

    Parameters
    ----------
    damaged
        Lines that are not events, such as the last one of a process that was killed, and files that can't be
        read.
    """

    events: tuple[Event, ...] = ()
    damaged: int = 0


def events_file(telemetry: Path, node: str, recorder: str) -> Path:
    """Return the path of a recorder's events."""
    return telemetry / f"{file_name(node) or 'node'}-{file_name(recorder)}{SUFFIX}"


def read_event_files(telemetry: Path) -> Events:
    """Return the events of every recorder of a run, and how many lines were damaged."""
    found: list[Event] = []
    damaged = 0
    for path in sorted(telemetry.glob(f"*{SUFFIX}")):
        try:
            lines = read_regular(path, _MOST_BYTES).split(b"\n")
        except OSError:
            damaged += 1
            continue
        for line in filter(None, lines):
            try:
                found.append(Event.from_json(json.loads(line)))
            except (ValueError, RecursionError):
                damaged += 1
    return Events(tuple(sorted(found, key=lambda event: event.time_ns)), damaged)


def read_events(telemetry: Path) -> tuple[Event, ...]:
    """Return the events of every recorder of a run, by time, without damaged lines."""
    return read_event_files(telemetry).events


def file_name(name: str) -> str:
    """Return the name of a node or recorder as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
