"""Inheritance by ``base_environment``: read the files of an EDF and merge their values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .document import Document, Entry
from .expand import EXPANDERS, ExpansionError, Lookup, no_variables
from .lookup import read_edf_text, read_steps
from .model import (
    MAX_BASE_LEVELS,
    MAX_FILES,
    MAX_SETUP_BYTES,
    MAX_TOTAL_BYTES,
    MAX_VALUES,
    Diagnostic,
    Dialect,
    EdfError,
    shortened,
)
from .parse import parse

Find = Callable[[str], Path]


@dataclass
class BaseCache:
    """A cache of bases, which many EDFs share."""

    #: Expanded names of bases, and the file of each.
    paths: dict[str, Path] = field(default_factory=dict)
    #: Parsed files and the diagnostics about each.
    documents: dict[Path, tuple[Document, list[Diagnostic]]] = field(default_factory=dict)


class BaseChain:
    """The files of one EDF, the base first, and diagnostics about them.

    Parameters
    ----------
    find
        Returns the file of a name or path; raises `EdfError`.
    lookup
        Returns the value of a variable in the name of a base.
    base_cache
        Bases that were read for other EDFs of the same dialect, with the same variables and directory; new
        ones are added.
    """

    def __init__(
        self, find: Find, lookup: Lookup, base_cache: BaseCache | None = None, *, dialect: Dialect = "ce"
    ) -> None:
        self._find = find
        self._lookup = lookup
        self._base_cache = BaseCache() if base_cache is None else base_cache
        self._dialect: Dialect = dialect
        self._tried = 0
        #: Bytes, values, and bytes of set-up steps.
        self._sizes = (0, 0, 0)
        #: Whether the files exceed a limit of an EDF; files after that are not read.
        self.exceeds_limits = False
        #: The documents in the order of merging; a base may occur more than once.
        self.documents: list[Document] = []
        self.sources: list[str] = []
        self.diagnostics: list[Diagnostic] = []

    def read(self, path: Path) -> None:
        """Read a file and, before it, its bases."""
        try:
            text = read_edf_text(path)
        except EdfError as error:
            self.diagnostics.extend(error.diagnostics)
            return
        self.read_text(text, path)

    def read_text(self, text: str, path: Path) -> None:
        """Parse a file's text and, before it, read its bases."""
        self._add(*self._parsed(text, path), path, ())

    def _parsed(self, text: str, path: Path) -> tuple[Document, list[Diagnostic]]:
        """Parse a file, and read the set-up steps beside it."""
        file = str(path)
        document, diagnostics = parse(text, file, self._dialect)
        if file.startswith("/"):
            document.setup, setup_diagnostics = read_steps(file)
            diagnostics += setup_diagnostics
        return document, diagnostics

    def _add(
        self, document: Document, diagnostics: list[Diagnostic], path: Path, above: tuple[Path, ...]
    ) -> None:
        is_new = str(path) not in self.sources
        if is_new:
            self.diagnostics.extend(diagnostics)
            self._count_size(document, path)
        for entry in document.base_environment:
            self._read_base(entry, (*above, path))
        self.documents.append(document)
        if is_new and str(path) not in self.sources:
            self.sources.append(str(path))

    def _count_size(self, document: Document, path: Path) -> None:
        """Add a file's size to the totals, and report the file that exceeds a limit."""
        size, values, steps = self._sizes
        if document.source:
            size += document.source.size
        values += document.size
        steps += sum(len(each.text) for each in document.setup) if document.setup else 0
        self._sizes = (size, values, steps)
        if self.exceeds_limits or (
            size <= MAX_TOTAL_BYTES and values <= MAX_VALUES and steps <= MAX_SETUP_BYTES
        ):
            return
        self.exceeds_limits = True
        limit = "64 KiB of set-up steps" if steps > MAX_SETUP_BYTES else f"{MAX_VALUES} values"
        if size > MAX_TOTAL_BYTES:
            limit = f"{MAX_TOTAL_BYTES >> 20} MiB"
        self.diagnostics.append(
            Diagnostic(
                severity="error",
                code="too-large",
                file=str(path),
                line=None,
                key="",
                message=f"with this file the EDF and its bases hold more than {limit}.",
                fix="Remove values or bases.",
            )
        )

    def _read_base(self, entry: Entry, chain: tuple[Path, ...]) -> None:
        self._tried += 1
        if self.exceeds_limits or self._tried > MAX_FILES:
            if self._tried == MAX_FILES + 1:
                self._refuse(entry, "files", f"more than {MAX_FILES} bases in all.", "List each base once.")
            return
        try:
            name = EXPANDERS[self._dialect](entry.text, self._lookup, no_variables)
            if not name and len(entry.path) == 1:
                # A variable with an empty value is the documented default: no base.
                return
            base = self._base_cache.paths.get(name) or self._find(name)
        except ExpansionError as error:
            self._refuse(entry, error.code, error.message, error.fix)
            return
        except EdfError as error:
            cause = error.diagnostics[0]
            message = f"the base {shortened(cause.file)!r} can't be used: {cause.message}"
            self._refuse(entry, "base", message, cause.fix)
            return
        self._base_cache.paths[name] = base
        # Sarus counts the EDF itself as a level.
        levels = MAX_BASE_LEVELS - (self._dialect == "sarus")
        if _is_circular(base, chain):
            message = f"the bases form a cycle: {_joined(chain, base)}."
            self._refuse(entry, "cycle", message, "Remove one of them.")
        elif len(chain) > levels:
            message = f"more than {levels} levels of bases: {_joined(chain, base)}."
            self._refuse(entry, "levels", message, "Merge some of them into one file.")
        else:
            self._add_base(base, chain)

    def _refuse(self, entry: Entry, code: str, message: str, fix: str) -> None:
        self.diagnostics.append(entry.diagnostic(code, message, fix))

    def _add_base(self, path: Path, chain: tuple[Path, ...]) -> None:
        documents = self._base_cache.documents
        if path not in documents:
            try:
                documents[path] = self._parsed(read_edf_text(path), path)
            except EdfError as error:
                documents[path] = (Document(), list(error.diagnostics))
        self._add(*documents[path], path, chain)


def _is_circular(base: Path, chain: tuple[Path, ...]) -> bool:
    # With a single file above, a link to it is detected one level further down.
    return base in chain or (len(chain) > 1 and base.resolve() in {each.resolve() for each in chain})


def _joined(chain: tuple[Path, ...], base: Path) -> str:
    return " -> ".join(str(each) for each in (*chain, base))


def merge(documents: Sequence[Document]) -> Document:
    """Merge several documents: later values win; mounts, devices and set-up steps are appended.

    A document that occurs more than once is merged once: its mounts, devices and set-up steps at its first
    position, its other values at its last.
    """
    merged = Document()
    unique = _unique(documents)
    for document in unique:
        # This sets the order of keys: a key keeps the position of its first occurrence.
        if len(unique) < len(documents):
            for table, more in _tables(merged, document):
                table.update(more)
        merged.mounts += document.mounts
        merged.devices += document.devices
        merged.setup += tuple(each for each in document.setup if each not in merged.setup)
    by_last_position = unique if len(unique) == len(documents) else reversed(_unique(documents[::-1]))
    for document in by_last_position:
        for table, more in _tables(merged, document):
            table.update(more)
    return merged


def _unique(documents: Sequence[Document]) -> list[Document]:
    return list({id(each): each for each in documents}.values())


def _tables(first: Document, second: Document) -> tuple[tuple[dict[str, Entry], dict[str, Entry]], ...]:
    return (
        (first.scalars, second.scalars),
        (first.env, second.env),
        (first.annotations, second.annotations),
    )
