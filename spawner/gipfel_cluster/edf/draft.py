"""``python -m gipfel_cluster.edf.draft``: check an EDF that is not on disk, and save it on request.

The hub runs it as the user who saves the EDF. It reads a `Draft` as JSON from standard input and prints one
JSON document with ``toml``, ``valid``, ``diagnostics`` and ``edf``; if the draft was to be saved, also with
``saved`` and ``name``, or with ``problem``.
"""

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field, ValidationError

from ..model import Frozen, one_line
from .check import add_local_checks, as_json
from .lookup import current_directory, search_path
from .model import EdfFile
from .resolve import resolve_text

MAX_DRAFT_CHARACTERS = 64 << 10


class Draft(Frozen):
    """An EDF as text, or as the values of its keys; ``save`` writes it to ``~/.edf/<name>.toml``."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,99}$")] = "new"
    toml: Annotated[str, Field(max_length=MAX_DRAFT_CHARACTERS)] = ""
    values: dict[str, Any] | None = None
    save: bool = False
    #: Whether an existing file of this name may be overwritten.
    replace: bool = False


def check_draft(draft: Draft, environment: Mapping[str, str], directory: Path) -> dict[str, Any]:
    """Check a draft, and save it if ``save`` is set and it has no errors."""
    text = draft.toml
    if draft.values is not None:
        try:
            text = edf_toml(EdfFile.model_validate(draft.values).model_dump(exclude_defaults=True))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, first["loc"][:2])) or "the EDF"
            return {"problem": one_line(f"{key}: {first['msg']}."), "key": str(first["loc"][0])}
    path = Path(environment.get("HOME") or Path.home()) / ".edf" / f"{draft.name}.toml"
    resolution = resolve_text(text, file=str(path), environment=environment, directory=directory)
    # The same checks run when a server starts with it; a path that is missing on this machine may be saved.
    document = as_json(add_local_checks(resolution)) | {"toml": text}
    if not draft.save:
        return document
    if resolution.edf is None:
        return document | {"problem": "The EDF was not saved because it has errors. Fix them and save again."}
    return document | _save(path, text, replace=draft.replace, environment=environment)


def _save(path: Path, text: str, *, replace: bool, environment: Mapping[str, str]) -> dict[str, Any]:
    """Write an EDF; return ``saved`` and ``name``, or ``problem`` if that failed."""
    target = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.new") if replace else path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Mode "x" fails if the file exists, even if another process creates it at the same moment.
        with open(target, "x", encoding="utf-8", opener=_open_private) as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
        if replace:
            target.replace(path)
    except FileExistsError:
        return {"problem": f"{path} exists already.", "exists": True}
    except OSError as error:
        # A partial file is not an EDF, and would block the next attempt.
        with contextlib.suppress(OSError):
            target.unlink()
        return {"problem": f"{path} can't be written: {error.strerror}."}
    listed = path.parent in search_path(environment)
    return {"saved": str(path), "name": path.stem if listed else f"~/.edf/{path.name}"}


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def edf_toml(values: Mapping[str, object]) -> str:
    """Return an EDF as TOML text: scalars and arrays first, then tables, each in the given order."""
    return tomli_w.dumps(values, indent=2)


def main() -> int:
    """Check the draft on standard input; return 0, or 2 if the input is not valid."""
    try:
        draft = Draft.model_validate_json(sys.stdin.read())
    except ValueError as error:
        sys.stderr.write(f"{one_line(str(error))[:300]}\n")
        return 2
    sys.stdout.write(json.dumps(check_draft(draft, dict(os.environ), current_directory())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
