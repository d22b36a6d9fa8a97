"""Resolve an EDF by name or path: find it, read it with its bases, merge, expand and lint."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .document import Entry
from .inherit import BaseCache, BaseChain, merge
from .lookup import SetupSteps, find_edf
from .model import DIALECTS, Diagnostic, Dialect, Edf, EdfError, limit_diagnostics
from .resolver import Resolver
from .rule import LintContext, Rule
from .rules_dialects import DIALECT_RULES, SARUS_RULES
from .rules_hooks import HOOK_RULES
from .rules_mounts import MOUNT_RULES
from .rules_values import IMAGE_RULES, INSTALL_RULES, VALUE_RULES

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
_BY_DIALECT = {name: tuple(rule for rule in RULES if name in rule.dialects) for name in DIALECTS}


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
        return {key: entry.file for key, entry in self.entries_by_key.items()} | steps


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
