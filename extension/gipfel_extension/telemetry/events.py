"""Events of a recording: lines in ``telemetry/<node>-<recorder>.events.jsonl``."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .files import append_text, read_regular

#: Ending of the files that hold events.
SUFFIX = ".events.jsonl"
_MAX_BYTES = 64 << 20
_MAX_MESSAGE = 2000

#: Meaning of each kind of event.
KINDS: Mapping[str, str] = {
    "recorder_started": "a recorder started",
    "recorder_ended": "a recorder was stopped and wrote its last samples",
    "recorder_lost": "a recorder died and is restarted",
    "recorder_stalled": "a recorder stalled; samples are missing",
    "second_recorder": "two recorders of the same name write into one directory",
    "late_join": "a node's recorder started later than the others",
    "node_lost": "a node's recorder stopped sending",
    "node_back": "a node's recorder resumed sending",
    "source_lost": "a source cannot be read",
    "source_back": "a source can be read again",
    "disk_full": "samples can't be written and wait in memory",
    "disk_back": "samples can be written again",
    "samples_lost": "samples were dropped because too many waited for the disk",
    "clock_step": "the node's clock was set",
    "xid": "the driver reported a GPU error",
    "gpu_lost": "a GPU no longer responds",
    "throttle": "a GPU is throttled because of its temperature or power supply",
    "gpu_errors": "an error counter of a GPU rises",
    "nic_errors": "an error counter of a NIC rises",
    "network_destination": "a program of the job connects to a new destination outside of the cluster",
    "network_listener": "a program of the job listens on all network interfaces",
    "network_allowed": "a program of the job reaches a new destination through its gate",
    "network_refused": "the gate of the job refuses a destination",
    "network_ungated": "ranks run outside of their gate",
    "network_closed": "an operator cut the network at the job's gates, or ended the job for its connections",
    "malicious_file": "a file that was scanned is malicious",
    "network_rate": "the job reaches many new destinations in a minute",
    "network_volume": "the job has sent much data outside of the cluster",
    "gpus_idle": "all GPUs of a node have been idle for 20 minutes",
    "checkpoint_space": "the next checkpoint won't fit on its file system",
    "rule": "the condition of a rule was met",
    "workload_failed": "a notebook or a launch failed",
    "hang": "the ranks of a launch make no progress",
    "hang_over": "the ranks of a launch continue",
}


@dataclass(frozen=True)
class Event:
    """An event of a recording, such as an XID or a full disk.

    Parameters
    ----------
    time_ns
        UTC since the epoch.
    kind
        A key of :data:`KINDS`, or a kind that a later version of Gipfel added.
    device
        UUID of the affected GPU; empty where none is affected.
    message
        One sentence for users.
    """

    time_ns: int
    node: str
    kind: str
    device: str
    message: str

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Event":
        """Return the event of a dictionary of its fields; ignore keys of later versions.

        Raises
        ------
        ValueError
            The dictionary is not an event.
        """
        try:
            texts = (content["node"], content["kind"], content.get("device", ""), content["message"])
            time_ns = content["time_ns"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an event: {error!r}") from error
        if type(time_ns) is not int or abs(time_ns) >= 2**63 or not all(isinstance(t, str) for t in texts):
            raise ValueError("not an event: a value has the wrong type")
        return cls(time_ns, *texts)


@dataclass(frozen=True)
class Events:
    """The events of a telemetry directory, sorted by time.

    Parameters
    ----------
    damaged_lines
        Number of lines that are not valid events, such as the truncated last line of a killed process, plus
        the number of unreadable files.
    """

    events: tuple[Event, ...] = ()
    damaged_lines: int = 0


def events_file(telemetry: Path, node: str, recorder: str) -> Path:
    """Return the path of a recorder's events file."""
    return telemetry / f"{file_name(node) or 'node'}-{file_name(recorder)}{SUFFIX}"


def append_event(telemetry: Path, event: Event, writer: str) -> None:
    """Append an event to the events file of a writer that is not a recorder; do nothing if that fails."""
    with suppress(OSError):
        append_text(events_file(telemetry, event.node, writer), json.dumps(asdict(event)) + "\n")


def report_to_job(environment: Mapping[str, str], kind: str, message: str, writer: str) -> None:
    """Record an event in the run folder of this process's job; do nothing outside of jobs."""
    run = environment.get("GIPFEL_RUN")
    if run:
        node = environment.get("GIPFEL_NODE") or os.uname().nodename.partition(".")[0]
        event = Event(time.time_ns(), node, kind, "", message[:_MAX_MESSAGE])
        append_event(Path(run) / "telemetry", event, writer)


def report_failure(environment: Mapping[str, str], reason: str) -> None:
    """Record in the run folder of this process's job why its workload failed; do nothing outside of jobs."""
    report_to_job(environment, "workload_failed", reason, "workload")


def read_event_files(telemetry: Path) -> Events:
    """Return the events of every recorder of a run, and the number of damaged lines."""
    found: list[Event] = []
    damaged_lines = 0
    for path in sorted(telemetry.glob(f"*{SUFFIX}")):
        try:
            lines = read_regular(path, _MAX_BYTES).split(b"\n")
        except OSError:
            damaged_lines += 1
            continue
        for line in filter(None, lines):
            try:
                found.append(Event.from_json(json.loads(line)))
            except (ValueError, RecursionError):
                damaged_lines += 1
    return Events(tuple(sorted(found, key=lambda event: event.time_ns)), damaged_lines)


def read_events(telemetry: Path) -> tuple[Event, ...]:
    """Return the events of every recorder of a run, sorted by time; skip damaged lines."""
    return read_event_files(telemetry).events


def file_name(name: str) -> str:
    """Return the name of a node or recorder with only the characters that a file name may have."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
