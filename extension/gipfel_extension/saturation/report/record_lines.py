"""The record of a run in ten lines."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...telemetry.redaction import shown_command_line, shown_record

_LONGEST = 400
_MOST = 10


def record_lines(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Name and value of what ``record.json`` says, ten at most; what it doesn't say has no line."""
    return tuple((name, _cut(value)) for name, value in _lines(shown_record(record)) if value)[:_MOST]


def _lines(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    job = " ".join(_text(record.get(key)) for key in ("cluster", "job_id")).strip()
    yield "job", " · ".join(part for part in (_text(record.get("kind")), job) if part)
    ended = _text(record.get("ended")) or "not ended"
    yield "time", f"{_text(record.get('started'))} to {ended}" if record.get("started") else ""
    yield "exit status", _text(record.get("exit_status"))
    nodes = record.get("nodes")
    names = [_text(node) for node in nodes] if isinstance(nodes, list) else []
    yield "nodes", f"{len(names)}: {', '.join(names)}" if names else _text(record.get("node"))
    edf = record.get("edf")
    name = _text(edf.get("name")) if isinstance(edf, dict) else ""
    yield "environment", " · ".join(part for part in (name, _text(record.get("edf_digest"))[:19]) if part)
    image = record.get("image")
    yield "image", _text(image.get("path")) if isinstance(image, dict) else ""
    command = record.get("command")
    words = [_text(word) for word in command] if isinstance(command, list) else []
    yield "command", shown_command_line(words)
    options = record.get("options")
    yield "options", _pairs(options)
    interval = record.get("interval")
    yield "sampling", f"every {interval} s" if isinstance(interval, int | float) else ""
    yield "versions", _pairs(record.get("versions"))


def _pairs(given: Any) -> str:
    if not isinstance(given, dict):
        return ""
    return ", ".join(f"{_text(name)} {_text(value)}" for name, value in given.items() if _text(value))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
