"""Where the live streams of a run are on one node: ``<run>/live-<node>.json``, as long as they are there."""

import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .regular_files import read_regular
from .runs import write_atomically
from .scratch import ScratchFolder

_MOST_BYTES = 64 << 10


@dataclass(frozen=True)
class LiveFolder:
    """A private folder for sockets, and the note in the run folder that leads to it."""

    scratch: ScratchFolder
    note: Path

    @classmethod
    def beside(cls, run: Path, node: str) -> "LiveFolder | None":
        """Make both; None where they can't be made, since a run is recorded without a stream too.

        Parameters
        ----------
        node
            This node's name; of several that make one for it the last is found.
        """
        try:
            scratch = ScratchFolder.create()
        except OSError:
            return None
        note = _note(run, node)
        try:
            write_atomically(note, json.dumps({"node": node, "sockets": str(scratch.path)}) + "\n")
        except OSError:
            scratch.remove()
            return None
        return cls(scratch, note)

    @property
    def path(self) -> Path:
        """Where sockets go."""
        return self.scratch.path

    def remove(self) -> None:
        """Remove both."""
        if live_sockets(self.note.parent, self.note.stem.removeprefix("live-")) == self.path:
            with suppress(OSError):
                self.note.unlink()
        self.scratch.remove()


def live_sockets(run: Path, node: str) -> Path | None:
    """The folder of a run's sockets on this node; None where there is none that is this user's own."""
    try:
        path = Path(json.loads(read_regular(_note(run, node), _MOST_BYTES))["sockets"])
        about = path.lstat()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    # A run folder may be somebody else's, and lead anywhere.
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return path if own and not stat.S_IMODE(about.st_mode) & 0o077 else None


def _note(run: Path, node: str) -> Path:
    return run / f"live-{''.join(c if c.isalnum() or c in '._-' else '_' for c in node)}.json"
