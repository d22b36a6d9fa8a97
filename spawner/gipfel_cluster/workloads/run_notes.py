"""The notes of a run: a name, tags, a text and a pin, which its user sets at any time.

They are in ``notes.json`` of the run folder, apart from ``record.json``, which only the job writes.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from ..model import Frozen, GipfelError, OneLine, one_line
from ..regular_files import read_regular
from ..runs import write_atomically

NOTES_FILE = "notes.json"
_MAX_BYTES = 64 << 10
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

Tag = Annotated[str, StringConstraints(pattern=r"^[\w][\w.:/-]{0,39}$")]


class RunNotes(Frozen):
    """Name, tags, pin and note that a user gave a run; all empty by default."""

    display_name: OneLine = Field("", max_length=100)
    note: str = Field("", max_length=4000)
    tags: tuple[Tag, ...] = Field((), max_length=20)
    pinned: bool = False


def read_notes(folder: Path) -> RunNotes:
    """Return the notes of a run folder; empty ones if there are none, or if they can't be read."""
    try:
        return RunNotes.model_validate_json(read_regular(folder / NOTES_FILE, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return RunNotes()


def change_notes(folder: Path, changes: Mapping[str, Any]) -> RunNotes:
    """Change some fields of a run's notes, and return the result.

    Parameters
    ----------
    changes
        New values by field of `RunNotes`; ``add_tags`` and ``remove_tags`` change the tags one by one.

    Raises
    ------
    GipfelError
        A value is not valid, or the notes can't be written.
    """
    old = read_notes(folder)
    tags = [*changes.get("tags", old.tags), *changes.get("add_tags", ())]
    kept = [tag for tag in dict.fromkeys(tags) if tag not in changes.get("remove_tags", ())]
    values = {key: value for key, value in changes.items() if key in RunNotes.model_fields}
    if isinstance(values.get("note"), str):
        values["note"] = _CONTROL.sub(" ", values["note"]).strip()
    try:
        notes = RunNotes.model_validate({**old.model_dump(), **values, "tags": kept})
    except ValidationError as error:
        raise GipfelError(_reason(error), "A tag has letters, digits and . : / - _, up to 40.") from error
    try:
        write_atomically(folder / NOTES_FILE, json.dumps(notes.model_dump(), indent=2) + "\n")
    except OSError as error:
        raise GipfelError(
            f"The notes of {folder.name} can't be written: {error.strerror}.", "Ask the owner of the run."
        ) from error
    return notes


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    return one_line(f"The {str(first['loc'][0]).replace('_', ' ')} is not valid: {first['msg']}.")
