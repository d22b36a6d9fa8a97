"""Processes that hold a GPU beside the job's ranks, stored in ``telemetry/<node>-<recorder>.gpus.json``.

A recorder keeps the file of its node up to date (:class:`GpuProcessFile`) and removes it at its end;
:func:`read_gpu_processes` reads the files.
"""

import json
import os
import pwd
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .events import file_name
from .files import read_json, replace_file
from .ranks import read_environment

_SUFFIX = ".gpus.json"
_MAX_BYTES = 1 << 20
_MAX_PROCESSES = 200
_MAX_NAME = 200


@dataclass(frozen=True)
class GpuProcess:
    """One process on one GPU.

    Parameters
    ----------
    pid
        Process id on its node.
    name
        ``the kernel of <notebook>``, else the name of the program; empty if the process can't be seen.
    user
        Name of the user; empty for the recorder's own, and if the process can't be seen.
    """

    pid: int
    gpu_uuid: str
    node: str
    name: str
    user: str

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "GpuProcess":
        """Return the process in a dictionary; ignore keys of later versions.

        Raises
        ------
        ValueError
            The dictionary is not a process.
        """
        try:
            texts = (str(content[name])[:_MAX_NAME] for name in ("gpu_uuid", "node", "name", "user"))
            return cls(int(content["pid"]), *texts)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a process on a GPU: {error!r}") from error


def read_gpu_processes(telemetry: Path) -> tuple[GpuProcess, ...]:
    """Return the processes of a run's nodes that are being recorded; skip damaged files."""
    found: list[GpuProcess] = []
    for path in sorted(telemetry.glob(f"*{_SUFFIX}")):
        with suppress(OSError, ValueError, TypeError):
            found += [GpuProcess.from_json(each) for each in read_json(path, _MAX_BYTES)]
    return tuple(dict.fromkeys(found))[:_MAX_PROCESSES]


class GpuProcessFile:
    """The file of one recorder with the processes on its node's GPUs."""

    def __init__(self, telemetry: Path, node: str, recorder: str, proc: Path = Path("/proc")) -> None:
        self._path = telemetry / f"{file_name(node) or 'node'}-{file_name(recorder)}{_SUFFIX}"
        self._node = node
        self._proc = proc
        self._known: tuple[GpuProcess, ...] = ()

    def update(self, holders: Sequence[tuple[int, str]], ranks: Collection[int]) -> None:
        """Write the file if something changed.

        Parameters
        ----------
        holders
            Processes that use a GPU, each with the GPU's UUID.
        ranks
            Process ids of the job's ranks, which are left out.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        others = [each for each in sorted(set(holders)) if each[0] not in ranks][:_MAX_PROCESSES]
        found = tuple(GpuProcess(pid, uuid, self._node, *self._describe(pid)) for pid, uuid in others)
        if found != self._known:
            replace_file(self._path, json.dumps([asdict(each) for each in found]) + "\n")
            self._known = found

    def remove(self) -> None:
        """Remove the file, because it is no longer kept up to date."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _describe(self, pid: int) -> tuple[str, str]:
        folder = self._proc / str(pid)
        try:
            uid = folder.stat().st_uid
            name = (folder / "comm").read_text(errors="replace").strip()
        except OSError:
            return "", ""
        if uid != os.getuid():
            with suppress(KeyError):
                return _printable(name), pwd.getpwuid(uid).pw_name
            return _printable(name), str(uid)
        with suppress(OSError):
            notebook = read_environment(folder).get(b"JPY_SESSION_NAME", b"").decode(errors="replace")
            name = f"the kernel of {Path(notebook).name}" if notebook else name
        return _printable(name), ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_MAX_NAME]
