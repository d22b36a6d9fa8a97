"""What the OCI configuration of an unpacked image says about its environment.

Read are a runtime bundle (``config.json`` beside ``rootfs``) and an image layout (``index.json``, ``blobs``).
Sources: OCI runtime specification 1.2, OCI image specification 1.1.
"""

import json
import re
from pathlib import Path
from typing import Any

from .inside import read_inside

_MOST = 4 << 20  # bytes; a manifest is a few kilobytes
_DIGEST = re.compile(r"(sha256|sha512):[0-9a-f]{64,128}")


def oci_environment(image: Path) -> dict[str, str]:
    """Read the variables that an image's OCI configuration sets; empty where there is none."""
    bundle = image.parent if image.name == "rootfs" else image
    process = _mapping(_mapping(_read(bundle, "config.json")).get("process"))
    return _variables(process.get("env")) or _variables(_layout(image).get("Env"))


def oci_entry_point(image: Path) -> tuple[str, ...]:
    """Read the words of an image layout's entry point; empty where there is none that can be run.

    A runtime bundle doesn't tell: in its ``process.args`` entry point and command are one list.
    """
    words = _layout(image).get("Entrypoint")
    listed = [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
    return tuple(listed) if all(map(_is_carried, listed)) else ()


def _layout(image: Path) -> dict[str, Any]:
    """What the first manifest of an image layout says about how to run it."""
    config = _blob(image, _blob(image, _first(_read(image, "index.json"), "manifests")).get("config"))
    return _mapping(config.get("config"))


def _variables(listed: object) -> dict[str, str]:
    pairs = (
        [each.partition("=") for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    )
    return {name: value for name, equals, value in pairs if name and equals and _is_carried(name + value)}


def _is_carried(text: str) -> bool:
    """Whether a process can be given it: JSON also has the NUL and halves of characters."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


def _first(document: object, key: str) -> object:
    listed = _mapping(document).get(key)
    return listed[0] if isinstance(listed, list) and listed else None


def _blob(image: Path, descriptor: object) -> dict[str, Any]:
    digest = _mapping(descriptor).get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return {}
    algorithm, _, name = digest.partition(":")
    return _mapping(_read(image, f"blobs/{algorithm}/{name}"))


def _read(folder: Path, name: str) -> object:
    content = read_inside(folder, (name,), _MOST + 1) if folder.is_dir() else None
    if content is None or len(content) > _MOST:
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
