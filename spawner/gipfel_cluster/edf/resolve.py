"""From a name to a resolved EDF: find, read with its bases, merge, expand, lint."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .document import Entry
from .inherit import Bases, Chain, merge
from .lookup import find_edf
from .model import DIALECTS, Diagnostic, Dialect, Edf, EdfError, most_important
from .resolver import Resolver
from .rule import Rule, Subject
from .rules_dialects import DIALECT_RULES, SARUS_RULES
from .rules_hooks import HOOK_RULES
from .rules_mounts import MOUNT_RULES
from .rules_values import IMAGE_RULES, VALUE_RULES
from .setup import Steps

#: Every lint rule; the page about them is ``README.md``.
RULES: tuple[Rule, ...] = (
    *VALUE_RULES,
    *IMAGE_RULES,
    *MOUNT_RULES,
    *HOOK_RULES,
    *DIALECT_RULES,
    *SARUS_RULES,
)
_BY_DIALECT = {name: tuple(rule for rule in RULES if name in rule.dialects) for name in DIALECTS}


@dataclass(frozen=True)
class Resolution:
    """The result of resolving an EDF: the EDF or what is wrong with it."""

    file: str
    #: None where there are errors.
    edf: Edf | None
    diagnostics: tuple[Diagnostic, ...]
    #: What each value is made of; ``mounts[0]`` is the first mount of the resolved EDF.
    places: Mapping[str, Entry] = field(default_factory=dict)
    #: The set-up steps, the base's first.
    setup: tuple[Steps, ...] = ()

    @property
    def valid(self) -> bool:
        """Return whether there is no error; set-up steps without an EDF are only a warning."""
        return all(each.severity != "error" for each in self.diagnostics)

    @property
    def verdict(self) -> str:
        """Return one line about the whole, which names the EDF also where only a base is at fault."""
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
        """Return each key with the file that its value comes from."""
        steps = {f"setup[{position}]": each.edf for position, each in enumerate(self.setup)}
        return {key: entry.file for key, entry in self.places.items()} | steps


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
        The host's variables, for ``EDF_PATH``, ``HOME`` and every ``${VAR}``; the image's own win over them.
    directory
        What relative paths are relative to.
    job_variables
        Outside of a job, leave ``${SLURM_…}`` as it is where it isn't defined: the job resolves it.

    Raises
    ------
    EdfError
        It can't be found or read, or has errors; all of them are in ``diagnostics``.
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
    bases: Bases | None = None,
    job_variables: bool = False,
) -> Resolution:
    """Resolve an EDF like `load_edf`, with errors in the result; ``bases`` caches files that EDFs share."""
    find = functools.partial(find_edf, environment=environment, directory=directory)
    try:
        path = find(name_or_path)
    except EdfError as error:
        return Resolution(error.diagnostics[0].file, None, error.diagnostics)
    chain = Chain(find, environment.get, bases, dialect=dialect)
    chain.read(path)
    return _resolved(chain, path, environment, directory, dialect, job_variables=job_variables)


def resolve_text(
    text: str, *, file: str, environment: Mapping[str, str], directory: Path, dialect: Dialect = "ce"
) -> Resolution:
    """Resolve an EDF that is not on disk yet: an editor's or a form's; ``file`` names it."""
    find = functools.partial(find_edf, environment=environment, directory=directory)
    chain = Chain(find, environment.get, dialect=dialect)
    chain.read_text(text, Path(file))
    return _resolved(chain, Path(file), environment, directory, dialect, job_variables=True)


def _resolved(
    chain: Chain,
    path: Path,
    environment: Mapping[str, str],
    directory: Path,
    dialect: Dialect,
    *,
    job_variables: bool,
) -> Resolution:
    if not chain.documents or chain.is_full:
        return Resolution(str(path), None, most_important(chain.diagnostics, str(path)))
    merged = merge(chain.documents)
    resolver = Resolver(merged, environment, directory, dialect, job_variables=job_variables)
    edf = resolver.resolve(path, tuple(chain.sources))
    entries = tuple(merged.entries())
    subject = Subject(
        document=merged,
        documents=chain.documents,
        entries=entries,
        text="\n".join([entry.text for entry in entries]),
        edf=edf,
        mounts=tuple(resolver.mounts),
        home=environment.get("HOME", "").rstrip("/"),
        dialect=dialect,
        failed=frozenset(resolver.failed),
        whole=all(each.severity != "error" for each in chain.diagnostics),
    )
    found = most_important((*chain.diagnostics, *resolver.diagnostics, *lint(subject)), str(path))
    valid = all(each.severity != "error" for each in found)
    return Resolution(str(path), edf if valid else None, found, resolver.places, merged.setup)


def lint(subject: Subject) -> Iterator[Diagnostic]:
    """Yield the findings of every rule, but no warning about a value that is refused for the same cause."""
    for rule in _BY_DIALECT[subject.dialect]:
        for found in rule.look(subject):
            if rule.beside_errors or found.severity == "error" or found.key not in subject.failed:
                yield found
