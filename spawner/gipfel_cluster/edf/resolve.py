"""From a name to a resolved EDF: find, read with its bases, merge, expand, check."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .dialects import Dialect
from .entry import Entry
from .inherit import Bases, Chain, merge
from .lint import Subject, lint
from .lookup import find_edf
from .model import Diagnostic, Edf, EdfError, most_important
from .resolver import Resolver
from .setup import Steps


@dataclass(frozen=True)
class Resolution:
    """What became of an EDF."""

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
        """Whether there is no error; set-up steps without an EDF are only a warning."""
        return all(each.severity != "error" for each in self.diagnostics)

    @property
    def verdict(self) -> str:
        """One line about the whole, which names the EDF also where only a base is at fault."""
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
        """Key to the file that its value comes from."""
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
        It can't be found or read, or says something wrong; every error is in its ``diagnostics``.
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
    """Like `load_edf`, but errors are in the result; ``bases`` remembers the files that many EDFs share."""
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
