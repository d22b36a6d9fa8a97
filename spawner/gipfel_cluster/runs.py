"""The run folder: one per job, the record of everything that is shown."""

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .model import GipfelError
from .regular_files import read_regular

_MOST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def runs_root(environment: dict[str, str] | None = None) -> Path:
    """The folder of all run folders: ``$GIPFEL_RUNS``, else ``~/.gipfel/runs``."""
    environment = dict(os.environ) if environment is None else environment
    given = environment.get("GIPFEL_RUNS")
    if given:
        return Path(given).expanduser()
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "runs"


def make_private(folder: Path) -> None:
    """Make a folder and whatever of its parents is missing, each for its owner alone (0700).

    ``mkdir(mode=0o700, parents=True)`` gives its mode to the last one only: ``~/.gipfel`` would be open.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    # One that is no folder is as much of an error as with mkdir.
    folder.mkdir(exist_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never half of it.

    The file is readable by its owner alone (0600).
    """
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class RunFolder:
    """The folder ``<runs>/<cluster>-<job id>`` of one job; its owner alone can enter it (0700)."""

    path: Path

    @classmethod
    def create(cls, root: Path, cluster: str, job_id: str) -> "RunFolder":
        """Make the folder, or take up the one that a requeued job left.

        Raises
        ------
        GipfelError
            The name holds other than letters, digits, dot, dash and underscore, or the folder can't be made.
        """
        name = f"{cluster}-{job_id}"
        if not _NAME.fullmatch(name):
            raise GipfelError(f"{name!r} can't name a run folder.", "Use letters, digits, '.', '-' and '_'.")
        path = root / name
        try:
            make_private(root)
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(0o700)
            (path / "telemetry").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise GipfelError(
                f"The run folder {path} can't be made: {error.strerror}.",
                "Set GIPFEL_RUNS to a folder that you can write to.",
            ) from error
        return cls(path)

    @property
    def name(self) -> str:
        """``<cluster>-<job id>``."""
        return self.path.name

    @property
    def telemetry(self) -> Path:
        """Where the recorder's segments are."""
        return self.path / "telemetry"

    def write_record(self, record: dict[str, Any]) -> None:
        """Write ``record.json``: options, resolved EDF and digest, nodes, versions, command."""
        write_atomically(self.path / "record.json", json.dumps(record, indent=2, sort_keys=True) + "\n")

    def read_record(self) -> dict[str, Any]:
        """The content of ``record.json``, or an empty dictionary where there is none yet."""
        try:
            content = json.loads(read_regular(self.path / "record.json", _MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise GipfelError(f"The record of run {self.name} can't be read: {why}.") from error
        if not isinstance(content, dict):
            raise GipfelError(f"The record of run {self.name} can't be read: it is not a JSON object.")
        return content
