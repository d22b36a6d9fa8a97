"""One thing that is allowed in an EDF and yet most likely a mistake."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..dialects import DIALECTS, Dialect
from ..entry import Document, Entry
from ..model import Diagnostic, Edf, Mount, Severity


@dataclass(frozen=True)
class Subject:
    """What rules look at."""

    #: The EDF and its bases as written.
    document: Document
    #: Every value of it.
    entries: tuple[Entry, ...]
    #: The same, expanded; empty where a value could not be.
    edf: Edf
    #: Every mount with the entry that asks for it, also the same one twice.
    mounts: tuple[tuple[Entry, Mount], ...]
    #: The caller's home folder, or nothing.
    home: str
    dialect: Dialect

    def annotation(self, name: str) -> str:
        """Give the value of an annotation, or nothing."""
        return self.edf.annotations.get(name, "")

    def hook(self, name: str) -> bool:
        """Whether a hook is switched on."""
        return self.annotation(f"com.hooks.{name}.enabled") == "true"


class Rule(ABC):
    """Finds one kind of mistake; the texts may name words in braces that `at` is given."""

    #: For programs, and the name of the rule's line on the page about rules.
    code: ClassVar[str]
    #: What is wrong.
    reason: ClassVar[str]
    #: What that causes.
    consequence: ClassVar[str]
    fix: ClassVar[str]
    severity: ClassVar[Severity] = "warning"
    #: Where the rule holds.
    dialects: ClassVar[tuple[Dialect, ...]] = DIALECTS

    @abstractmethod
    def look(self, subject: Subject) -> Iterator[Diagnostic]:
        """Yield what this rule finds; it is asked only where it holds."""

    def at(self, entry: Entry, **words: str) -> Diagnostic:
        """Say it about one value."""
        message = f"{self.reason.format(**words)}: {self.consequence.format(**words)}."
        return entry.diagnostic(self.code, message, self.fix.format(**words), severity=self.severity)


class MountRule(Rule):
    """Finds mounts each of which is a mistake by itself; its texts may name the ``{destination}``."""

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry, mount in subject.mounts:
            if self.is_mistake(mount):
                yield self.at(entry, destination=mount.destination)

    @abstractmethod
    def is_mistake(self, mount: Mount) -> bool:
        """Whether to say it about this mount."""
