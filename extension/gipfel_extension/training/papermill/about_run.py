"""What an executed notebook says of its run: vetting, saturation and record, out of the run folder."""

import json
from pathlib import Path
from typing import Any

from ...telemetry.files import read_json

_MOST_BYTES = 256 << 10
_MOST_READ_BYTES = 64 << 20
_RECORD = (
    "kind", "cluster", "job_id", "started", "node", "nodes", "edf_digest", "image", "engine", "runtime",
    "options", "versions", "notes",
)  # fmt: skip


def about_run(folder: Path) -> dict[str, Any]:
    """Collect what is known of a run; what is missing, unreadable or too long for a notebook is left out.

    Parameters
    ----------
    folder
        The run folder. Where it holds no ``score.json``, the score is that of its telemetry until now.
    """
    record = _read(folder / "record.json")
    edf = record.get("edf")
    found: dict[str, Any] = {"run": folder.name}
    if record:
        found["record"] = {name: record[name] for name in _RECORD if record.get(name) is not None}
        if isinstance(edf, dict):
            found["record"]["edf"] = edf.get("name")
    if vetting := _read(folder / "vetting.json"):
        found["vetting"] = _short(vetting)
    if score := _read(folder / "score.json") or _score(folder):
        found["saturation"] = _short(score)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path, _MOST_READ_BYTES)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _short(document: dict[str, Any]) -> dict[str, Any]:
    """The document, or where it is too long what of it is no list or table."""
    if len(json.dumps(document)) <= _MOST_BYTES:
        return document
    plain = {name: value for name, value in document.items() if not isinstance(value, list | dict)}
    return {**plain, "shortened": True}


def _score(folder: Path) -> dict[str, Any]:
    """The score of what was recorded so far; nothing where there are no samples of a GPU."""
    if not (folder / "telemetry").is_dir():
        return {}
    try:
        from ...saturation import advise, document_of, score_table  # noqa: PLC0415 - half a second
        from ...telemetry.imports import open_recording  # noqa: PLC0415

        found = open_recording(folder)
        job = score_table(found.table, ranks=found.ranks)
        document: dict[str, Any] = json.loads(json.dumps(document_of(job, advise(found.table, job))))
    except Exception:  # noqa: BLE001 - a notebook that ran must not fail for its score
        return {}
    return document
