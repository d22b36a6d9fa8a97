"""The lint rules' class and decorators: each rule finds one kind of valid value that is likely a mistake."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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


#: A value with a mistake, and the fields of its rule's texts.
Mistake = tuple[Entry, Mapping[str, str]]
Find = Callable[[LintContext], Iterable[Mistake]]


@dataclass(frozen=True)
class Rule:
    """A check for one kind of mistake, made of a function by `rule`.

    ``find`` yields the mistakes; it is called only for ``dialects``. The texts may have fields in braces.
    """

    #: Identifies the rule in diagnostics and in the table of the README.
    code: str
    #: The mistake.
    reason: str
    #: Consequence of the mistake.
    consequence: str
    fix: str
    severity: Severity
    dialects: tuple[Dialect, ...]
    #: Whether to report the mistake even if the same value already has an error.
    reported_with_errors: bool
    find: Find

    def check(self, context: LintContext) -> Iterator[Diagnostic]:
        """Yield a diagnostic for each mistake, with the fields of the texts filled in."""
        for entry, found in self.find(context):
            fields = {name: shortened(value) for name, value in found.items()}
            message = f"{self.reason.format(**fields)}: {self.consequence.format(**fields)}."
            yield entry.diagnostic(self.code, message, self.fix.format(**fields), severity=self.severity)


def rule(
    code: str,
    *,
    reason: str,
    consequence: str,
    fix: str,
    severity: Severity = "warning",
    dialects: tuple[Dialect, ...] = DIALECTS,
    reported_with_errors: bool = False,
) -> Callable[[Find], Rule]:
    """Return the decorator that makes a `Rule` of the function that finds its mistakes."""
    return partial(Rule, code, reason, consequence, fix, severity, dialects, reported_with_errors)


def each_mount(is_mistake: Callable[[Mount], bool]) -> Find:
    """Return the function for a rule about single mounts, whose texts may use ``{destination}``."""
    return lambda context: (
        (entry, {"destination": mount.destination}) for entry, mount in context.mounts if is_mistake(mount)
    )
