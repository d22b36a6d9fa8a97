"""``base_environment``: which files an EDF is made of, and their values merged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .document import Document, Entry
from .expand import EXPANDERS, ExpansionError, Lookup, never
from .lookup import read_edf_text
from .model import ALL_BYTES, FILES, LEVELS, STEPS_BYTES, VALUES, Diagnostic, Dialect, EdfError, shortened
from .parse import parse
from .setup import read_steps

Find = Callable[[str], Path]


@dataclass
class Bases:
    """Bases that many EDFs share, as the first of them found and read them."""

    #: Names as they are written, expanded, and the file of each.
    found: dict[str, Path] = field(default_factory=dict)
    #: Files with what is wrong with each.
    read: dict[Path, tuple[Document, list[Diagnostic]]] = field(default_factory=dict)


class Chain:
    """The files of one EDF, the base first, and what is wrong with them.

    Parameters
    ----------
    find
        Turns a name or path into the file; raises `EdfError`.
    lookup
        The variables that names of bases may hold.
    bases
        What was read before for another EDF of the same dialect, found by the same variables and from the
        same directory; bases are added.
    """

    def __init__(
        self, find: Find, lookup: Lookup, bases: Bases | None = None, *, dialect: Dialect = "ce"
    ) -> None:
        self._find = find
        self._lookup = lookup
        self._bases = Bases() if bases is None else bases
        self._dialect: Dialect = dialect
        self._tried = 0
        #: Bytes, values, and bytes of set-up steps.
        self._sizes = (0, 0, 0)
        #: Whether the files hold more than an EDF may; what is beyond was not read.
        self.is_full = False
        #: The documents in the order in which they are merged; one may be there more than once.
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
        """Read a file of which the text is known already and, before it, its bases."""
        self._add(*self._parsed(text, path), path, ())

    def _parsed(self, text: str, path: Path) -> tuple[Document, list[Diagnostic]]:
        """Parse a file, and read the set-up steps beside it."""
        file = str(path)
        document, diagnostics = parse(text, file, self._dialect)
        if file.startswith("/"):
            document.setup, found = read_steps(file)
            diagnostics += found
        return document, diagnostics

    def _add(
        self, document: Document, diagnostics: list[Diagnostic], path: Path, above: tuple[Path, ...]
    ) -> None:
        is_new = str(path) not in self.sources
        if is_new:
            self.diagnostics.extend(diagnostics)
            self._weigh(document, path)
        for entry in document.base_environment:
            self._read_base(entry, (*above, path))
        self.documents.append(document)
        if is_new and str(path) not in self.sources:
            self.sources.append(str(path))

    def _weigh(self, document: Document, path: Path) -> None:
        """Add up what all files hold; the file that is one too many is named."""
        size, values, steps = self._sizes
        if document.source:
            size += document.source.size
        values += document.size
        steps += sum(len(each.text) for each in document.setup) if document.setup else 0
        self._sizes = (size, values, steps)
        if self.is_full or (size <= ALL_BYTES and values <= VALUES and steps <= STEPS_BYTES):
            return
        self.is_full = True
        what = "64 KiB of set-up steps" if steps > STEPS_BYTES else f"{VALUES} values"
        if size > ALL_BYTES:
            what = f"{ALL_BYTES >> 20} MiB"
        self.diagnostics.append(
            Diagnostic(
                severity="error",
                code="too-large",
                file=str(path),
                line=None,
                key="",
                message=f"with this file the EDF and its bases hold more than {what}.",
                fix="Take values or bases out.",
            )
        )

    def _read_base(self, entry: Entry, chain: tuple[Path, ...]) -> None:
        self._tried += 1
        if self.is_full or self._tried > FILES:
            if self._tried == FILES + 1:
                self._refuse(entry, "files", f"more than {FILES} bases in all.", "List each base once.")
            return
        try:
            name = EXPANDERS[self._dialect](entry.text, self._lookup, never)
            if not name and len(entry.path) == 1:
                # The default, written by a variable that is empty: no base.
                return
            base = self._bases.found.get(name) or self._find(name)
        except ExpansionError as error:
            self._refuse(entry, error.code, error.message, error.fix)
            return
        except EdfError as error:
            what = error.diagnostics[0]
            message = f"the base {shortened(what.file)!r} can't be used: {what.message}"
            self._refuse(entry, "base", message, what.fix)
            return
        self._bases.found[name] = base
        # Sarus counts the EDF itself.
        levels = LEVELS - (self._dialect == "sarus")
        if _leads_back(base, chain):
            message = f"the bases lead back to themselves: {_shown(chain, base)}."
            self._refuse(entry, "cycle", message, "Take one out.")
        elif len(chain) > levels:
            message = f"more than {levels} levels of bases: {_shown(chain, base)}."
            self._refuse(entry, "levels", message, "Merge some.")
        else:
            self._add_base(base, chain)

    def _refuse(self, entry: Entry, code: str, message: str, fix: str) -> None:
        self.diagnostics.append(entry.diagnostic(code, message, fix))

    def _add_base(self, path: Path, chain: tuple[Path, ...]) -> None:
        read = self._bases.read
        if path not in read:
            try:
                read[path] = self._parsed(read_edf_text(path), path)
            except EdfError as error:
                read[path] = (Document(), list(error.diagnostics))
        self._add(*read[path], path, chain)


def _leads_back(base: Path, chain: tuple[Path, ...]) -> bool:
    # A link to the only file above is seen one level further down.
    return base in chain or (len(chain) > 1 and base.resolve() in {each.resolve() for each in chain})


def _shown(chain: tuple[Path, ...], base: Path) -> str:
    return " -> ".join(str(each) for each in (*chain, base))


def merge(documents: Sequence[Document]) -> Document:
    """Merge several documents: later values win, mounts, devices and set-up steps are appended.

    One that is there more than once is read once: what it appends is where it came first, and its values
    win where it came last.
    """
    merged = Document()
    once = _once(documents)
    for document in once:
        # Later values keep the place of the first.
        if len(once) < len(documents):
            for table, more in _tables(merged, document):
                table.update(more)
        merged.mounts += document.mounts
        merged.devices += document.devices
        merged.setup += tuple(each for each in document.setup if each not in merged.setup)
    last = once if len(once) == len(documents) else reversed(_once(documents[::-1]))
    for document in last:
        for table, more in _tables(merged, document):
            table.update(more)
    return merged


def _once(documents: Sequence[Document]) -> list[Document]:
    return list({id(each): each for each in documents}.values())


def _tables(first: Document, second: Document) -> tuple[tuple[dict[str, Entry], dict[str, Entry]], ...]:
    return (
        (first.scalars, second.scalars),
        (first.env, second.env),
        (first.annotations, second.annotations),
    )
