"""What the OCI configuration of an unpacked image says about its environment.

Read are a runtime bundle (``config.json`` beside ``rootfs``) and an image layout (``index.json``, ``blobs``).
Sources: OCI runtime specification 1.2, OCI image specification 1.1.
"""

import json
import re
from pathlib import Path
from typing import Any

_MOST = 4 << 20  # bytes; a manifest is a few kilobytes
_DIGEST = re.compile(r"(sha256|sha512):[0-9a-f]{64,128}")


def oci_environment(image: Path) -> dict[str, str]:
    """Read the variables that an image's OCI configuration sets; empty where there is none."""
    bundle = image.parent if image.name == "rootfs" else image
    process = _mapping(_mapping(_read(bundle / "config.json")).get("process"))
    variables = _variables(process.get("env"))
    if variables or not (image / "index.json").is_file():
        return variables
    config = _blob(image, _blob(image, _first(_read(image / "index.json"), "manifests")).get("config"))
    return _variables(_mapping(config.get("config")).get("Env"))


def oci_entry_point(image: Path) -> tuple[str, ...]:
    """Read the words of an image layout's entry point; empty where there is none.

    A runtime bundle doesn't tell: in its ``process.args`` entry point and command are one list.
    """
    if not (image / "index.json").is_file():
        return ()
    config = _blob(image, _blob(image, _first(_read(image / "index.json"), "manifests")).get("config"))
    words = _mapping(config.get("config")).get("Entrypoint")
    return tuple(word for word in words if isinstance(word, str)) if isinstance(words, list) else ()


def _variables(listed: object) -> dict[str, str]:
    pairs = (
        [each.partition("=") for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    )
    return {name: value for name, equals, value in pairs if name and equals}


def _first(document: object, key: str) -> object:
    listed = _mapping(document).get(key)
    return listed[0] if isinstance(listed, list) and listed else None


def _blob(image: Path, descriptor: object) -> dict[str, Any]:
    digest = _mapping(descriptor).get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return {}
    algorithm, _, name = digest.partition(":")
    return _mapping(_read(image / "blobs" / algorithm / name))


def _read(path: Path) -> object:
    try:
        if not path.is_file() or path.stat().st_size > _MOST:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
