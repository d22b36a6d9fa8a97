"""Lines about launches, for a terminal: counts, a row of the list, what a rank has printed."""

import re
from pathlib import Path

from gipfel_cluster.model import counted

from ..training.launches.state import LaunchState

# What moves the cursor, renames the window or asks the terminal: CSI, OSC and the other strings, the rest.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|[\x1b\x9d][\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]")
#: Characters of a reason in a row; `show` has the rest.
_LONGEST = 120


def row(folder: Path, state: LaunchState, *, everywhere: bool) -> str:
    """Return a launch's line in the list: what it runs, why it was restarted, why it is where it is.

    Its name stands there where the title does not say it.
    """
    which = f"{folder.parents[1].name}/{folder.name}" if everywhere else folder.name
    size = f"{counted(len(state.nodes), 'node')}, {counted(state.ranks, 'rank')}"
    named = "" if state.name in state.title or state.name == "launch" else f"{state.name}: "
    reasons = (*state.restarted[-1:], state.reason) if state.restarts else (state.reason,)
    why = "".join(f"; {_short(each)}" for each in reasons if each)
    return f"{which:>4}  {state.outcome or state.phase:10} {size}  {named}{state.title}{why}"


def _short(text: str) -> str:
    text = printable(" ".join(text.split()), colours=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def printable(text: str, *, colours: bool) -> str:
    """Return what a rank has printed without what would drive the terminal.

    Parameters
    ----------
    colours
        Whether the terminal shows them; they are removed otherwise, too.
    """
    if text.isprintable():
        return text
    text = _SEQUENCE.sub(lambda found: found[0] if colours and _COLOUR.fullmatch(found[0]) else "", text)
    text = _CONTROL.sub("", text) if colours else _CONTROL.sub("", text).replace("\x1b", "")
    return text.encode(errors="replace").decode()
