"""Resolve an EDF by name or path: find it, merge it with its bases, expand and lint."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .document import Document, Entry
from .expand import EXPANDERS, ExpansionError, Lookup, no_variables
from .lookup import SetupSteps, find_edf, read_edf_text, read_steps
from .model import (
    DIALECTS,
    MAX_BASE_LEVELS,
    MAX_FILES,
    MAX_SETUP_BYTES,
    MAX_TOTAL_BYTES,
    MAX_VALUES,
    Diagnostic,
    Dialect,
    Edf,
    EdfError,
    limit_diagnostics,
    shortened,
)
from .parse import parse
from .resolver import Resolver
from .rule import LintContext, Rule
from .rules_dialects import DIALECT_RULES, SARUS_RULES
from .rules_hooks import HOOK_RULES
from .rules_mounts import MOUNT_RULES
from .rules_values import IMAGE_RULES, INSTALL_RULES, VALUE_RULES

Find = Callable[[str], Path]
#: All lint rules; ``README.md`` documents them.
RULES: tuple[Rule, ...] = (
    *VALUE_RULES,
    *IMAGE_RULES,
    *MOUNT_RULES,
    *HOOK_RULES,
    *DIALECT_RULES,
    *SARUS_RULES,
    *INSTALL_RULES,
)
#: Limits of all files of one EDF: bytes, bytes of set-up steps, and values.
_LIMITS = (
    (MAX_TOTAL_BYTES, f"{MAX_TOTAL_BYTES >> 20} MiB"),
    (MAX_SETUP_BYTES, f"{MAX_SETUP_BYTES >> 10} KiB of set-up steps"),
    (MAX_VALUES, f"{MAX_VALUES} values"),
)
_BY_DIALECT = {name: tuple(rule for rule in RULES if name in rule.dialects) for name in DIALECTS}


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
        #: The sizes that `_LIMITS` limits.
        self._sizes: tuple[int, ...] = (0, 0, 0)
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
        size = document.source.size if document.source else 0
        added = (size, sum(len(each.text) for each in document.setup), document.size)
        self._sizes = tuple(map(sum, zip(self._sizes, added, strict=True)))
        exceeded = [limit for total, (most, limit) in zip(self._sizes, _LIMITS, strict=True) if total > most]
        if exceeded and not self.exceeds_limits:
            self.exceeds_limits = True
            self.diagnostics.append(
                Diagnostic(
                    severity="error",
                    code="too-large",
                    file=str(path),
                    line=None,
                    key="",
                    message=f"with this file the EDF and its bases hold more than {exceeded[0]}.",
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
    for document in documents:
        # A key keeps the position of its first occurrence.
        merged.scalars |= document.scalars
        merged.env |= document.env
        merged.annotations |= document.annotations
    for document in {id(each): each for each in documents}.values():
        merged.mounts += document.mounts
        merged.devices += document.devices
        merged.setup += tuple(each for each in document.setup if each not in merged.setup)
    return merged


@dataclass(frozen=True)
class Resolution:
    """The result of resolving an EDF: the EDF, and diagnostics about it."""

    file: str
    #: None if there are errors.
    edf: Edf | None
    diagnostics: tuple[Diagnostic, ...]
    #: The entry of each resolved value; ``mounts[0]`` is the first mount of the resolved EDF.
    entries_by_key: Mapping[str, Entry] = field(default_factory=dict)
    #: The set-up steps, the base's first.
    setup: tuple[SetupSteps, ...] = ()

    @property
    def valid(self) -> bool:
        """Return whether there is no error; set-up steps without an EDF are only a warning."""
        return all(each.severity != "error" for each in self.diagnostics)

    @property
    def summary(self) -> str:
        """Return one line that names the EDF and says whether it is valid, with the number of errors."""
        if self.edf is not None:
            return f"{self.file}: valid"
        errors = [each for each in self.diagnostics if each.severity == "error"]
        if not errors:
            return ""
        many = any(each.code == "more" for each in errors)
        count = "more than 100 errors" if many else "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        return f"{self.file}: not valid, {count}"

    @property
    def origins(self) -> dict[str, str]:
        """Return the file of each key's value."""
        steps = {f"setup[{position}]": each.edf for position, each in enumerate(self.setup)}
        return {key: entry.source.file for key, entry in self.entries_by_key.items()} | steps


def load_edf(
    name_or_path: str,
    *,
    environment: Mapping[str, str],
    directory: Path,
    dialect: Dialect = "ce",
    job_variables: bool = False,
) -> Edf:
    """Find, read and resolve an EDF.

    Parameters
    ----------
    environment
        The host's variables, for ``EDF_PATH``, ``HOME`` and every ``${VAR}``; the image's take precedence.
    directory
        The directory that relative paths start from.
    job_variables
        Outside of a job, keep an undefined ``${SLURM_…}`` unexpanded: the job expands it.

    Raises
    ------
    EdfError
        The EDF can't be found or read, or has errors; all of them are in ``diagnostics``.
    """
    resolution = resolve(
        name_or_path,
        environment=environment,
        directory=directory,
        dialect=dialect,
        job_variables=job_variables,
    )
    if resolution.edf is None:
        raise EdfError(resolution.diagnostics, resolution.file)
    return resolution.edf


def resolve(
    name_or_path: str,
    *,
    environment: Mapping[str, str],
    directory: Path,
    dialect: Dialect = "ce",
    base_cache: BaseCache | None = None,
    job_variables: bool = False,
) -> Resolution:
    """Resolve an EDF like `load_edf`, with errors in the result; ``base_cache`` caches shared bases."""
    find = functools.partial(find_edf, environment=environment, directory=directory)
    try:
        path = find(name_or_path)
    except EdfError as error:
        return Resolution(error.diagnostics[0].file, None, error.diagnostics)
    chain = BaseChain(find, environment.get, base_cache, dialect=dialect)
    chain.read(path)
    return _resolved(chain, path, environment, directory, dialect, job_variables=job_variables)


def resolve_text(
    text: str, *, file: str, environment: Mapping[str, str], directory: Path, dialect: Dialect = "ce"
) -> Resolution:
    """Resolve the text of an EDF that is not on disk, for an editor or a form; ``file`` names it."""
    find = functools.partial(find_edf, environment=environment, directory=directory)
    chain = BaseChain(find, environment.get, dialect=dialect)
    chain.read_text(text, Path(file))
    return _resolved(chain, Path(file), environment, directory, dialect, job_variables=True)


def _resolved(
    chain: BaseChain,
    path: Path,
    environment: Mapping[str, str],
    directory: Path,
    dialect: Dialect,
    *,
    job_variables: bool,
) -> Resolution:
    if not chain.documents or chain.exceeds_limits:
        return Resolution(str(path), None, limit_diagnostics(chain.diagnostics, str(path)))
    merged = merge(chain.documents)
    resolver = Resolver(merged, environment, directory, dialect, job_variables=job_variables)
    edf = resolver.resolve(path, tuple(chain.sources))
    entries = tuple(merged.entries())
    context = LintContext(
        document=merged,
        documents=chain.documents,
        entries=entries,
        all_text="\n".join([entry.text for entry in entries]),
        edf=edf,
        mounts=tuple(resolver.mounts),
        home=environment.get("HOME", "").rstrip("/"),
        dialect=dialect,
        failed_keys=frozenset(resolver.failed_keys),
        is_complete=all(each.severity != "error" for each in chain.diagnostics),
    )
    diagnostics = limit_diagnostics((*chain.diagnostics, *resolver.diagnostics, *lint(context)), str(path))
    valid = all(each.severity != "error" for each in diagnostics)
    return Resolution(str(path), edf if valid else None, diagnostics, resolver.entries_by_key, merged.setup)


def lint(context: LintContext) -> Iterator[Diagnostic]:
    """Yield the diagnostics of all rules, without warnings about values that already have an error."""
    for rule in _BY_DIALECT[context.dialect]:
        for each in rule.check(context):
            if rule.reported_with_errors or each.severity == "error" or each.key not in context.failed_keys:
                yield each
