"""``base_environment``: which files an EDF is made of, and their values merged."""

from collections.abc import Callable
from pathlib import Path

from .entry import Document, Entry
from .expand import ExpansionError, Lookup, expand
from .lookup import read_edf_text
from .model import Diagnostic, EdfError
from .parse import parse
from .setup import read_steps

LEVELS = 10
FILES = 200
Find = Callable[[str], Path]
#: Files that were read as a base, with what is wrong with each.
Bases = dict[Path, tuple[Document, list[Diagnostic]]]


class Chain:
    """The files of one EDF, the base first, and what is wrong with them.

    Parameters
    ----------
    find
        Turns a name or path into the file; raises `EdfError`.
    lookup
        The variables that names of bases may hold.
    bases
        What was read before for another EDF, to which bases are added.
    """

    def __init__(self, find: Find, lookup: Lookup, bases: Bases | None = None) -> None:
        self._find = find
        self._lookup = lookup
        self._bases = {} if bases is None else bases
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
        """Like `read`, for a file of which the text is known already."""
        self._take(*_with_steps(text, path), path, ())

    def _take(
        self, document: Document, diagnostics: list[Diagnostic], path: Path, above: tuple[Path, ...]
    ) -> None:
        self.diagnostics.extend(diagnostics)
        for entry in document.base:
            self._read_base(entry, (*above, path))
        self.documents.append(document)
        if str(path) not in self.sources:
            self.sources.append(str(path))

    def _read_base(self, entry: Entry, chain: tuple[Path, ...]) -> None:
        try:
            base = self._find(expand(entry.text, self._lookup))
        except ExpansionError as error:
            self.diagnostics.append(entry.diagnostic(error.code, error.message, error.fix))
            return
        except EdfError as error:
            what = error.diagnostics[0]
            message = f"the base {what.file!r} can't be used: {what.message}"
            self.diagnostics.append(entry.diagnostic("base", message, what.fix))
            return
        if _leads_back(base, chain):
            message = f"the bases lead back to themselves: {_shown(chain, base)}."
            self.diagnostics.append(entry.diagnostic("cycle", message, "Take one out."))
        elif len(self.documents) >= FILES:
            self.diagnostics.append(
                entry.diagnostic("files", f"more than {FILES} bases in all.", "List each base once.")
            )
        elif len(chain) > LEVELS:
            message = f"more than {LEVELS} levels of bases: {_shown(chain, base)}."
            self.diagnostics.append(entry.diagnostic("levels", message, "Merge some."))
        else:
            self._take_base(base, chain)

    def _take_base(self, path: Path, chain: tuple[Path, ...]) -> None:
        if path not in self._bases:
            try:
                self._bases[path] = _with_steps(read_edf_text(path), path)
            except EdfError as error:
                self._bases[path] = (Document(), list(error.diagnostics))
        self._take(*self._bases[path], path, chain)


def _with_steps(text: str, path: Path) -> tuple[Document, list[Diagnostic]]:
    """Parse a file, and read the set-up steps that stand beside it."""
    file = str(path)
    document, diagnostics = parse(text, file)
    if file.startswith("/"):
        document.setup, found = read_steps(file)
        diagnostics += found
    return document, diagnostics


def _leads_back(base: Path, chain: tuple[Path, ...]) -> bool:
    # A link to the only file above is seen one level further down.
    return base in chain or (len(chain) > 1 and base.resolve() in {each.resolve() for each in chain})


def _shown(chain: tuple[Path, ...], base: Path) -> str:
    return " -> ".join(str(each) for each in (*chain, base))


def merge(documents: list[Document]) -> Document:
    """One document of several: later values win, mounts, devices and set-up steps are appended."""
    merged = Document()
    for document in documents:
        merged.scalars.update(document.scalars)
        merged.env.update(document.env)
        merged.annotations.update(document.annotations)
        merged.mounts += document.mounts
        merged.devices += document.devices
        merged.setup += tuple(each for each in document.setup if each not in merged.setup)
    return merged
