"""The user's runs: what there is to look at and to compare."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder, runs_root

_MOST = 200
_NAME = re.compile(r"[A-Za-z0-9][\w.+@-]{0,199}")


def list_runs(environment: Mapping[str, str], current: str) -> list[dict[str, Any]]:
    """The newest runs that have samples, the newest first; `current` is the name of this server's own."""
    root = runs_root(dict(environment))
    found = []
    for folder in newest_runs(root):
        record = _record(folder)
        edf = record.get("edf")
        found.append(
            {
                "run": folder.name,
                "job_id": str(record.get("job_id", "")),
                "cluster": str(record.get("cluster", "")),
                "kind": str(record.get("kind", "")),
                "started": str(record.get("started", "")),
                "node": str(record.get("node", "")),
                "nodes": len(record.get("nodes") or ()),
                "edf": str(edf.get("name", "")) if isinstance(edf, dict) else "",
                "current": folder.name == current,
            }
        )
    return found


def run_folder(environment: Mapping[str, str], name: str) -> Path:
    """The folder of a run by its name.

    Raises
    ------
    GipfelError
        There is none of that name.
    """
    path = runs_root(dict(environment)) / name
    if not _NAME.fullmatch(name) or not (path / "telemetry").is_dir():
        raise GipfelError("There is no such run.", "Choose one of the list.")
    return path


def newest_runs(root: Path) -> list[Path]:
    """List the run folders that have samples, the newest first, at most 200."""
    try:
        folders = [
            (path.stat().st_mtime, path) for path in root.iterdir() if _has_samples(path / "telemetry")
        ]
    except OSError:
        return []
    return [path for _, path in sorted(folders, reverse=True)[:_MOST]]


def _has_samples(telemetry: Path) -> bool:
    """Return whether anything was recorded: a vetting, for one, leaves a run without samples."""
    return any(telemetry.glob("*.arrows")) or any(telemetry.glob("*.parquet"))


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = RunFolder(folder).read_record()
    except (OSError, ValueError, GipfelError):
        return {}
    return record if isinstance(record, dict) else {}
