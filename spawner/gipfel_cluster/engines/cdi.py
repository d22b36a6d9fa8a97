"""Devices that have a name: what the specifications of the Container Device Interface on this machine say.

Source: Container Device Interface Specification 1.1. Its hooks are not run: what they would do for a library
is done by links beside it (`driver`).
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import GipfelError

FOLDERS = ("/etc/cdi", "/var/run/cdi")
_MOST = 4 << 20  # bytes; NVIDIA's are about 30 kB
_NAME = re.compile(r"[a-zA-Z][\w.-]*[a-zA-Z0-9]/[a-zA-Z][\w.-]*=[\w.:-]+")


@dataclass(frozen=True)
class Edits:
    """What a device adds to a container: nodes and files as pairs (host, container), variables."""

    nodes: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def is_named(device: str) -> bool:
    """Tell a name such as ``nvidia.com/gpu=all`` from the path of a node."""
    return bool(_NAME.fullmatch(device))


def named_device(name: str, folders: Iterable[str] = FOLDERS) -> Edits | None:
    """Look a device up in the specifications; None where no specification is of its kind.

    Raises
    ------
    GipfelError
        There is one of its kind, and it knows no such device; or one can't be read.
    """
    kind, _, wanted = name.partition("=")
    known: list[str] = []
    for spec in _specifications(folders):
        if spec.get("kind") != kind:
            continue
        devices = [each for each in _list(spec.get("devices")) if isinstance(each, dict)]
        for device in devices:
            if str(device.get("name")) == wanted:
                # What the whole specification adds comes once, whatever the device.
                return _edits(spec.get("containerEdits"), device.get("containerEdits"))
        known += [str(each.get("name")) for each in devices]
    if known:
        raise GipfelError(
            f"This machine has no device {name!r}.",
            f"Choose one of {', '.join(f'{kind}={each}' for each in known)}.",
        )
    return None


def _specifications(folders: Iterable[str]) -> list[Mapping[str, Any]]:
    files = (path for folder in folders for path in sorted(Path(folder).glob("*")) if path.is_file())
    return [_read(path) for path in files if path.suffix in {".json", ".yaml", ".yml"}]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open() as file:
            text = file.read(_MOST)
        content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (OSError, ValueError, RecursionError) as error:
        raise GipfelError(
            f"The device specification {path} can't be read: {error}.",
            "Make it again with 'nvidia-ctk cdi generate'.",
        ) from error
    return content if isinstance(content, dict) else {}


def _yaml(text: str) -> object:
    import yaml  # noqa: PLC0415 - only where a specification is written in it

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _edits(*several: object) -> Edits:
    nodes: dict[str, str] = {}
    files: dict[str, str] = {}
    environment: dict[str, str] = {}
    for edits in several:
        if not isinstance(edits, dict):
            continue
        for node in _list(edits.get("deviceNodes")):
            if isinstance(node, dict) and isinstance(path := node.get("path"), str):
                nodes[path] = str(node.get("hostPath") or path)
        for mount in _list(edits.get("mounts")):
            if isinstance(mount, dict) and isinstance(path := mount.get("containerPath"), str):
                files[path] = str(mount.get("hostPath") or path)
        for line in _list(edits.get("env")):
            if isinstance(line, str):
                variable, _, value = line.partition("=")
                environment[variable] = value
    return Edits(
        nodes=tuple((host, path) for path, host in nodes.items()),
        files=tuple((host, path) for path, host in files.items()),
        environment=tuple(environment.items()),
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
