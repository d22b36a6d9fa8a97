"""Devices that have a name: what the specifications of the Container Device Interface on this machine say.

Source: Container Device Interface Specification 1.1. Its hooks are not run: what they would do for a library
is done by links beside it (`driver`).
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import GipfelError

FOLDERS = ("/etc/cdi", "/var/run/cdi")
_MOST = 1 << 20  # characters; NVIDIA's are about 30 kB
_DEEPEST = 50  # levels; the specification has six
_SHOWN = 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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
        There is one of its kind, and it knows no such device; or it is in none, and one can't be read.
    """
    kind, _, wanted = name.partition("=")
    known: dict[str, None] = {}
    unreadable: GipfelError | None = None
    for path in _specifications(folders):
        try:
            spec = _read(path)
            if spec.get("kind") != kind:
                continue
            devices = [each for each in _list(spec.get("devices")) if isinstance(each, dict)]
            for device in devices:
                if str(device.get("name")) == wanted:
                    # What the whole specification adds comes once, whatever the device.
                    return _edits(spec.get("containerEdits"), device.get("containerEdits"))
            known |= dict.fromkeys(f"{kind}={each.get('name')}" for each in devices)
        except (OSError, ValueError, RecursionError) as error:
            unreadable = unreadable or _unreadable(path, error)
    if unreadable:
        raise unreadable
    if known:
        more = ", …" if len(known) > _SHOWN else ""
        raise GipfelError(
            f"This machine has no device {name!r}.", f"Choose one of {', '.join([*known][:_SHOWN])}{more}."
        )
    return None


def unasked_device(name: str, folders: Iterable[str] = FOLDERS) -> Edits | None:
    """Look up a device that no EDF asks for: where it can't be had, there is none."""
    try:
        return named_device(name, folders)
    except GipfelError:
        return None


def _specifications(folders: Iterable[str]) -> list[Path]:
    files = (path for folder in folders for path in sorted(Path(folder).glob("*.*")))
    # os.path, which says no where a Path would raise: in a folder that others may not enter.
    return [path for path in files if path.suffix in {".json", ".yaml", ".yml"} and os.path.isfile(path)]  # noqa: PTH113


def _unreadable(path: Path, error: Exception) -> GipfelError:
    why = error.strerror if isinstance(error, OSError) else error
    return GipfelError(
        f"The device specification {path} can't be read: {why}.",
        "Make it again with 'nvidia-ctk cdi generate'.",
    )


def _read(path: Path) -> Mapping[str, Any]:
    with path.open(encoding="utf-8") as file:
        text = file.read(_MOST + 1)
    if len(text) > _MOST:
        raise ValueError("it is larger than 1 MiB")
    content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    return content if isinstance(content, dict) else {}


def _yaml(text: str) -> object:
    import yaml  # noqa: PLC0415 - only where a specification is written in it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                # The parser in C would end the process.
                raise ValueError("it is nested too deeply")
        return yaml.load(text, Loader=loader)  # noqa: S506 - both are safe
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
            if isinstance(node, dict) and "path" in node:
                nodes[_path(node["path"])] = _path(node.get("hostPath") or node["path"])
        for mount in _list(edits.get("mounts")):
            if isinstance(mount, dict) and "containerPath" in mount:
                files[_path(mount["containerPath"])] = _path(mount.get("hostPath") or mount["containerPath"])
        for line in _list(edits.get("env")):
            variable, _, value = str(line).partition("=")
            if not _VARIABLE.fullmatch(variable) or "\0" in value:
                raise ValueError(f"{line!r} sets no variable")
            environment[variable] = value
    return Edits(
        nodes=tuple((host, path) for path, host in nodes.items()),
        files=tuple((host, path) for path, host in files.items()),
        environment=tuple(environment.items()),
    )


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError(f"{value!r} is no absolute path")
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
