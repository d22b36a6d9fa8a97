"""What an operator decides about the registry: a YAML file, and the database's address in the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line


def _has_program(argv: tuple[str, ...]) -> tuple[str, ...]:
    if argv and not argv[0].startswith("/"):
        raise ValueError("give the program with its whole path")
    return argv


#: A command as an argument list, its program with the whole path; empty for none.
Command = Annotated[tuple[Line, ...], AfterValidator(_has_program)]


class DrainSettings(Frozen):
    """What the registry may do to nodes. As it stands: nothing.

    Parameters
    ----------
    cluster
        The cluster that ``scontrol`` here belongs to; results of others never reach it. Empty: drain nothing.
    dry_run
        Only say what would be run.
    automatic
        Drain without an operator's approval where a rule's step says so too.
    per_hour
        Nodes drained in any hour, at most.
    most_share
        The share of a partition that may be out of service, nodes that others drained and nodes that are down
        included, 0 to 1.
    """

    cluster: Line = ""
    dry_run: bool = True
    automatic: bool = False
    per_hour: int = Field(2, ge=0, le=1000)
    most_share: float = Field(0.05, ge=0, le=1)


class Settings(Frozen):
    """The registry's settings.

    Parameters
    ----------
    database
        SQLAlchemy's URL. ``$GIPFEL_REGISTRY_DATABASE`` goes before it: it holds a password at most sites.
    clusters
        The clusters whose results are taken; empty for any.
    confirm_jobs
        Ask ``squeue`` whether the job is the sender's and has the nodes; a report that is not so is refused,
        and only those that were confirmed count for rules. Needs the hub's user names to be those of Slurm.
    reports_per_hour
        Of one user, at most.
    cases_per_hour, open_cases
        How many cases may be opened within an hour, and be open at once: of more, only those are opened that
        a vouched report speaks for. Two users who report what isn't there can fill no more than this.
    keep_days
        How long results and the audit are kept.
    rules
        More catalogues beside the shipped one; a rule of the same name takes the shipped one's place.
    notify
        A command that gets each notice on its standard input, such as ``[/usr/bin/mail, -s, gipfel, ops]``.
    """

    database: Line = "sqlite:///gipfel-registry.sqlite"
    clusters: tuple[Line, ...] = ()
    confirm_jobs: bool = False
    reports_per_hour: int = Field(30, ge=1, le=100_000)
    cases_per_hour: int = Field(100, ge=1, le=100_000)
    open_cases: int = Field(500, ge=1, le=100_000)
    keep_days: float = Field(180, gt=0, le=36_500)
    rules: tuple[Path, ...] = ()
    notify: Command = ()
    drain: DrainSettings = DrainSettings()


def read_settings(path: Path | None, environment: Mapping[str, str]) -> Settings:
    """The settings of a file, or the defaults without one.

    Raises
    ------
    GipfelError
        The file can't be read, or says what is not known.
    """
    content: dict[str, Any] = {}
    if path:
        content = read_yaml(path)
    if database := environment.get("GIPFEL_REGISTRY_DATABASE"):
        content["database"] = database
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise GipfelError(
            f"{path}: {first_problem(error)}", "The registry's README lists the keys."
        ) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file whose top level is a mapping.

    Raises
    ------
    GipfelError
        It can't be read, or is something else.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GipfelError(f"{path} can't be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise GipfelError(f"{path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if not isinstance(content, dict):
        raise GipfelError(f"{path} holds no mapping of keys.")
    return content


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, with its place, in one sentence."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}." if place else f"{first['msg']}."
