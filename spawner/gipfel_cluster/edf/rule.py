"""Base classes of the lint rules: each finds one kind of valid value that is most likely a mistake."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .document import Document, Entry
from .model import DIALECTS, Diagnostic, Dialect, Edf, Mount, Severity, shortened

#: Spellings of "on" that users write; hooks accept only ``true``.
_TRUE_SPELLINGS = frozenset(("true", "1", "yes", "on", "enabled"))


@dataclass(frozen=True)
class LintContext:
    """An EDF and its files, as the lint rules read them."""

    #: The EDF and its bases, merged and not expanded.
    document: Document
    #: Each file separately, the EDF's own last.
    documents: Sequence[Document]
    #: Every value of the merged document.
    entries: tuple[Entry, ...]
    #: The texts of all entries, one per line, which a rule searches first to skip the loop over entries.
    all_text: str
    #: The resolved EDF; values that could not be expanded are empty.
    edf: Edf
    #: Every mount with its entry; duplicates are kept.
    mounts: tuple[tuple[Entry, Mount], ...]
    #: The caller's home directory, or an empty string.
    home: str
    dialect: Dialect
    #: Keys whose values could not be expanded or are not valid.
    failed_keys: frozenset[str]
    #: Whether every file could be read.
    is_complete: bool

    def annotation(self, name: str) -> str:
        """Return the value of an annotation, or an empty string."""
        return self.edf.annotations.get(name, "")

    def hook_is_enabled(self, name: str) -> bool:
        """Return whether a hook is enabled."""
        return self.annotation(f"com.hooks.{name}.enabled") == "true"

    def hook_is_intended(self, name: str) -> bool:
        """Return whether the author meant to enable a hook, even in a spelling that hooks do not read."""
        return any(
            name in key and entry.text.strip().lower() in _TRUE_SPELLINGS
            for key, entry in self.document.annotations.items()
        )


class Rule(ABC):
    """A check for one kind of mistake; its texts may have fields in braces, which `diagnostic` fills in."""

    #: Identifies the rule in diagnostics and in the table of the README.
    code: ClassVar[str]
    #: The mistake.
    reason: ClassVar[str]
    #: Consequence of the mistake.
    consequence: ClassVar[str]
    fix: ClassVar[str]
    severity: ClassVar[Severity] = "warning"
    #: Whether to report the mistake even if the same value already has an error.
    reported_with_errors: ClassVar[bool] = False
    #: The dialects that the rule applies to.
    dialects: ClassVar[tuple[Dialect, ...]] = DIALECTS

    @abstractmethod
    def check(self, context: LintContext) -> Iterator[Diagnostic]:
        """Yield a diagnostic for each mistake; called only for the rule's dialects."""

    def diagnostic(self, entry: Entry, **fields: str) -> Diagnostic:
        """Return the diagnostic about one value, with the fields of the texts filled in."""
        fields = {name: shortened(value) for name, value in fields.items()}
        message = f"{self.reason.format(**fields)}: {self.consequence.format(**fields)}."
        return entry.diagnostic(self.code, message, self.fix.format(**fields), severity=self.severity)


class MountRule(Rule):
    """A check that judges each mount separately; its texts may use ``{destination}``."""

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for entry, mount in context.mounts:
            if self.is_mistake(mount):
                yield self.diagnostic(entry, destination=mount.destination, **self.fields(mount))

    def fields(self, mount: Mount) -> dict[str, str]:  # noqa: ARG002 - for rules that name more
        """Return further fields for the texts, by name."""
        return {}

    @abstractmethod
    def is_mistake(self, mount: Mount) -> bool:
        """Return whether this mount is a mistake."""
