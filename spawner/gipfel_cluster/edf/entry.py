"""A value as it is written in an EDF, the place where it stands, and all values of one file together."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .lines import Lines, Path
from .model import Diagnostic, Severity
from .setup import Steps


class Source:
    """One file that values come from."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.size = len(text)
        self._text = text
        self._lines: Lines | None = None

    def line(self, path: Path) -> int | None:
        """Give the line of a value; the file is searched when the first one is asked for."""
        if self._lines is None:
            self._lines = Lines(self._text)
        return self._lines.of(*path)


@dataclass(slots=True)
class Entry:
    """A value as written, and where."""

    text: str
    path: Path
    source: Source

    @property
    def key(self) -> str:
        """The key as people write it: ``env.HOME``, ``mounts[1]``."""
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)[1:]

    @property
    def file(self) -> str:
        """The file that it stands in."""
        return self.source.file

    @property
    def line(self) -> int | None:
        """The line that it stands on, counted from 1."""
        return self.source.line(self.path)

    def diagnostic(
        self, code: str, message: str, fix: str = "", *, severity: Severity = "error"
    ) -> Diagnostic:
        """Say something about this value."""
        return Diagnostic(
            severity=severity,
            code=code,
            file=self.file,
            line=self.line,
            key=self.key,
            message=message,
            fix=fix,
        )


@dataclass
class Document:
    """The keys of one file, or of several merged."""

    base: tuple[Entry, ...] = ()
    #: ``image``, ``workdir``, ``entrypoint`` and ``writable``; the last two as ``true`` or ``false``.
    scalars: dict[str, Entry] = field(default_factory=dict)
    mounts: tuple[Entry, ...] = ()
    devices: tuple[Entry, ...] = ()
    env: dict[str, Entry] = field(default_factory=dict)
    annotations: dict[str, Entry] = field(default_factory=dict)
    #: What stands beside the file.
    setup: tuple[Steps, ...] = ()
    #: The file; None where several are merged.
    source: Source | None = None

    @property
    def size(self) -> int:
        """Return how many values there are."""
        arrays = len(self.base) + len(self.mounts) + len(self.devices)
        return arrays + len(self.scalars) + len(self.env) + len(self.annotations)

    def entries(self) -> Iterator[Entry]:
        """Every value, in no particular order."""
        yield from self.base
        yield from self.scalars.values()
        yield from self.mounts
        yield from self.devices
        yield from self.env.values()
        yield from self.annotations.values()
