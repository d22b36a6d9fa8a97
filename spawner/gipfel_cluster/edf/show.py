"""What ``edf check`` and ``edf show`` say of a resolved EDF, as values."""

from typing import Any

from .resolve import Resolution


def as_json(resolution: Resolution, *, origin: bool = False) -> dict[str, Any]:
    """Give the answer of ``--json``: ``file``, ``valid``, ``diagnostics``, and ``edf`` or null.

    With ``origin`` also ``origins``: from a key, ``env.A`` or ``mounts[0]``, to the file of its value.
    """
    edf = resolution.edf
    answer = {
        "file": resolution.file.encode("utf-8", "replace").decode(),
        "valid": edf is not None,
        "diagnostics": [each.model_dump(mode="json") for each in resolution.diagnostics],
        "edf": None if edf is None else {**edf.model_dump(mode="json"), "digest": edf.digest},
    }
    return answer | {"origins": resolution.origins} if origin else answer


def show_edf(resolution: Resolution, *, origin: bool = False) -> list[str]:
    """Write a resolved EDF as lines for a terminal, with ``origin`` also the file of each value."""
    edf = resolution.edf
    if edf is None:
        return [str(each) for each in resolution.diagnostics]
    # From the key that is shown and the one in `origins`, to the value.
    rows: list[tuple[str, str, object]] = []
    for key, value in edf.content.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{name}", f"{key}.{name}", item) for name, item in value.items()]
        elif isinstance(value, list):
            items = [str(mount) for mount in edf.mounts] if key == "mounts" else value
            rows += [(key, f"{key}[{position}]", item) for position, item in enumerate(items)]
        else:
            rows.append((key, key, value))
    lines = []
    origins = resolution.origins if origin else {}
    for shown, key, value in rows:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        source = f"    # {origins.get(key, 'default')}" if origin else ""
        lines.append(f"{shown} = {text}{source}")
    return lines
