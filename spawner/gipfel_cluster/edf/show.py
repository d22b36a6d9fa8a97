"""What ``edf check`` and ``edf show`` say of a resolved EDF, as values."""

from collections.abc import Iterator
from typing import Any

from .resolve import Resolution


def as_json(resolution: Resolution, *, origin: bool = False) -> dict[str, Any]:
    """Give the answer of ``--json``: ``file``, ``valid``, ``diagnostics``, and ``edf`` or null.

    ``setup`` lists the set-up steps as path, digest and text. With ``origin`` also ``origins``: from a key,
    ``env.A`` or ``mounts[0]``, to the file of its value; that of ``setup[0]`` is the EDF beside it.
    """
    edf = resolution.edf
    answer = {
        "file": resolution.file.encode("utf-8", "replace").decode(),
        "valid": resolution.valid,
        "diagnostics": [each.model_dump(mode="json") for each in resolution.diagnostics],
        "edf": None if edf is None else {**edf.model_dump(mode="json"), "digest": edf.digest},
    }
    if edf is not None and resolution.setup:
        answer["setup"] = [
            {"path": each.path, "digest": each.digest, "text": each.text} for each in resolution.setup
        ]
    return answer | {"origins": resolution.origins} if origin else answer


def show_edf(resolution: Resolution, *, origin: bool = False) -> list[str]:
    """Write a resolved EDF as lines for a terminal, with ``origin`` also the file of each value."""
    edf = resolution.edf
    if edf is None:
        return [str(each) for each in resolution.diagnostics]
    # From the key that is shown and the one in `origins`, to the value.
    rows: list[tuple[str, str, object]] = []
    for key, value in edf.content.items():
        if key == "setup":
            continue
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
        text = f"= {str(value).lower() if isinstance(value, bool) else value}"
        if key.startswith("env.") and not value:
            text = "is unset"
        source = f"    # {origins.get(key, 'default')}" if origin else ""
        lines.append(_plain(f"{shown} {text}{source}"))
    return [*lines, *_shown_steps(resolution, origin=origin)]


def _shown_steps(resolution: Resolution, *, origin: bool) -> Iterator[str]:
    for steps in resolution.setup:
        yield f"setup = {steps.path}" + (f"    # {steps.edf}" if origin else "")
        for line in steps.text.removesuffix("\n").split("\n"):
            yield f"    {_plain(line)}"


def _plain(line: str) -> str:
    """What a terminal would obey is shown, not obeyed."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() or each == "\t" else repr(each)[1:-1] for each in line)
