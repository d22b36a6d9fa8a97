"""``python -m gipfel_cluster.edf.draft``: check an EDF that is not on disk yet, and save it.

It reads a `Draft` as JSON from its input, as the user whose file it becomes, and answers one JSON document
with ``toml``, ``valid``, ``diagnostics`` and ``edf``; with ``saved`` and ``name``, or ``problem``, where it
was to be saved.
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
from .check import as_json, with_local_checks
from .keys import WrittenEdf
from .lookup import search_path
from .resolve import resolve_text

MOST_CHARACTERS = 64 << 10


class Draft(Frozen):
    """An EDF as text, or as the values of its keys; with ``save`` it becomes ``~/.edf/<name>.toml``."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,99}$")] = "new"
    toml: Annotated[str, Field(max_length=MOST_CHARACTERS)] = ""
    values: dict[str, Any] | None = None
    save: bool = False
    #: Whether a file of this name may be overwritten.
    replace: bool = False


def answer(draft: Draft, environment: Mapping[str, str], directory: Path) -> dict[str, Any]:
    """Check a draft, and save it where that was asked for and nothing is wrong with it."""
    text = draft.toml
    if draft.values is not None:
        try:
            text = edf_toml(WrittenEdf.model_validate(draft.values).model_dump(exclude_defaults=True))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, first["loc"][:2])) or "the EDF"
            return {"problem": one_line(f"{key}: {first['msg']}."), "key": str(first["loc"][0])}
    path = Path(environment.get("HOME") or Path.home()) / ".edf" / f"{draft.name}.toml"
    resolution = resolve_text(text, file=str(path), environment=environment, directory=directory)
    # As the file will be checked when a server starts with it; one that is not here yet may be saved.
    document = as_json(with_local_checks(resolution)) | {"toml": text}
    if not draft.save:
        return document
    if resolution.edf is None:
        return document | {"problem": "It is not saved: put right what is wrong with it first."}
    return document | _save(path, text, replace=draft.replace, environment=environment)


def _save(path: Path, text: str, *, replace: bool, environment: Mapping[str, str]) -> dict[str, Any]:
    target = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.new") if replace else path
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Exclusive: it is made only where nothing is, whoever else writes at this moment.
        with open(target, "x", encoding="utf-8", opener=_private) as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
        if replace:
            target.replace(path)
    except FileExistsError:
        return {"problem": f"{path} is there already.", "exists": True}
    except OSError as error:
        # Half a file is not an EDF, and would be in the way of the next attempt.
        with contextlib.suppress(OSError):
            target.unlink()
        return {"problem": f"{path} can't be written: {error.strerror}."}
    listed = path.parent in search_path(environment)
    return {"saved": str(path), "name": path.stem if listed else f"~/.edf/{path.name}"}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def edf_toml(values: Mapping[str, object]) -> str:
    """Return an EDF as TOML text: its scalars and arrays first, then its tables, each in the order given."""
    return tomli_w.dumps(values, indent=2)


def main() -> int:
    """Answer the draft on standard input; return 0, or 2 where it is not valid."""
    try:
        draft = Draft.model_validate_json(sys.stdin.read())
    except (ValidationError, ValueError) as error:
        sys.stderr.write(f"{one_line(str(error))[:300]}\n")
        return 2
    try:
        directory = Path.cwd()
    except OSError:
        directory = Path("/")
    sys.stdout.write(json.dumps(answer(draft, dict(os.environ), directory)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
