"""One thing that is allowed in an EDF and yet most likely a mistake."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .document import Document, Entry
from .model import DIALECTS, Diagnostic, Dialect, Edf, Mount, Severity, shortened

#: What people write who mean it; only the first is read by hooks.
_MEANS_TRUE = frozenset(("true", "1", "yes", "on", "enabled"))


@dataclass(frozen=True)
class Subject:
    """An EDF as the lint rules see it."""

    #: The EDF and its bases as written, merged.
    document: Document
    #: Each file by itself, the EDF's own last.
    documents: Sequence[Document]
    #: Every value of it.
    entries: tuple[Entry, ...]
    #: All their texts, a line each: a cheap first look at all of them.
    text: str
    #: The same, expanded; empty where a value could not be.
    edf: Edf
    #: Every mount with the entry that asks for it, also the same one twice.
    mounts: tuple[tuple[Entry, Mount], ...]
    #: The caller's home directory, or nothing.
    home: str
    dialect: Dialect
    #: Keys of which the value could not be made.
    failed: frozenset[str]
    #: Whether every file could be read.
    whole: bool

    def annotation(self, name: str) -> str:
        """Return the value of an annotation, or nothing."""
        return self.edf.annotations.get(name, "")

    def hook(self, name: str) -> bool:
        """Return whether a hook is switched on."""
        return self.annotation(f"com.hooks.{name}.enabled") == "true"

    def hook_is_meant(self, name: str) -> bool:
        """Return whether a hook was meant to be on, perhaps written in a way that it does not see."""
        return any(
            name in key and entry.text.strip().lower() in _MEANS_TRUE
            for key, entry in self.document.annotations.items()
        )


class Rule(ABC):
    """Finds one kind of mistake; its texts may have fields in braces, which `at` fills in."""

    #: For programs, and the name of the rule's line on the page about rules.
    code: ClassVar[str]
    #: What is wrong.
    reason: ClassVar[str]
    #: What that causes.
    consequence: ClassVar[str]
    fix: ClassVar[str]
    severity: ClassVar[Severity] = "warning"
    #: Whether it is a mistake of its own also where the value is refused anyway.
    beside_errors: ClassVar[bool] = False
    #: Where the rule holds.
    dialects: ClassVar[tuple[Dialect, ...]] = DIALECTS

    @abstractmethod
    def look(self, subject: Subject) -> Iterator[Diagnostic]:
        """Yield what this rule finds; it is asked only where it holds."""

    def at(self, entry: Entry, **words: str) -> Diagnostic:
        """Return the diagnostic about one value."""
        words = {name: shortened(word) for name, word in words.items()}
        message = f"{self.reason.format(**words)}: {self.consequence.format(**words)}."
        return entry.diagnostic(self.code, message, self.fix.format(**words), severity=self.severity)


class MountRule(Rule):
    """Finds mounts each of which is a mistake by itself; its texts may name the ``{destination}``."""

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry, mount in subject.mounts:
            if self.is_mistake(mount):
                yield self.at(entry, destination=mount.destination, **self.words(mount))

    def words(self, mount: Mount) -> dict[str, str]:  # noqa: ARG002 - for rules that name more
        """Return further values for the texts."""
        return {}

    @abstractmethod
    def is_mistake(self, mount: Mount) -> bool:
        """Return whether this mount is a mistake."""
