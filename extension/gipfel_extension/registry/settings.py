"""Settings of the registry, from a YAML file and the environment, and its JupyterHub scopes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine, first_problem


def _has_program(argv: tuple[str, ...]) -> tuple[str, ...]:
    if argv and not argv[0].startswith("/"):
        raise ValueError("give the program's absolute path")
    return argv


#: A command as an argument list with the program's absolute path; empty for none.
Command = Annotated[tuple[OneLine, ...], AfterValidator(_has_program)]


class DrainSettings(Frozen):
    """Permissions and limits for draining nodes. By default the registry drains nothing.

    Parameters
    ----------
    cluster
        The cluster of this machine's ``scontrol``; nodes of other clusters are never drained. Empty: drain
        nothing.
    dry_run
        Show the commands instead of running them.
    automatic
        Drain without an operator's approval if the rule's step allows it as well.
    per_hour
        Maximum number of nodes drained within an hour.
    max_share
        Maximum share of a partition that may be out of service, 0 to 1, including nodes that are down or were
        drained by others.
    """

    cluster: OneLine = ""
    dry_run: bool = True
    automatic: bool = False
    per_hour: int = Field(2, ge=0, le=1000)
    max_share: float = Field(0.05, ge=0, le=1)


class Settings(Frozen):
    """Settings of the registry.

    Parameters
    ----------
    database
        SQLAlchemy URL. ``$GIPFEL_REGISTRY_DATABASE`` overrides it, since it usually contains a password.
    clusters
        Clusters whose results are accepted; empty for any.
    confirm_jobs
        Ask ``squeue`` whether the job belongs to the sender and has the nodes. If it does not, the report is
        refused; only confirmed reports count for rules. Requires that hub and Slurm have the same user names.
    reports_per_hour
        Maximum number of reports per user.
    cases_per_hour, open_cases
        Maximum number of cases that are opened within an hour, and that are open at a time. Beyond it, only
        vouched reports open cases. This limits the effect of users who send false reports.
    keep_days
        Days after which results and audit lines are deleted.
    rules
        Additional catalogues; their rules replace built-in ones of the same name.
    notify
        Command that gets each notice as JSON on standard input, such as ``[/usr/bin/mail, -s, gipfel, ops]``.
    """

    database: OneLine = "sqlite:///gipfel-registry.sqlite"
    clusters: tuple[OneLine, ...] = ()
    confirm_jobs: bool = False
    reports_per_hour: int = Field(30, ge=1, le=100_000)
    cases_per_hour: int = Field(100, ge=1, le=100_000)
    open_cases: int = Field(500, ge=1, le=100_000)
    keep_days: float = Field(180, gt=0, le=36_500)
    rules: tuple[Path, ...] = ()
    notify: Command = ()
    drain: DrainSettings = DrainSettings()


def read_settings(path: Path | None, environment: Mapping[str, str]) -> Settings:
    """Return the settings of a file, or the defaults without one.

    Raises
    ------
    GipfelError
        The file can't be read, or is not valid.
    """
    content = read_yaml(path) if path else {}
    if database := environment.get("GIPFEL_REGISTRY_DATABASE"):
        content["database"] = database
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise GipfelError(f"{path}: {first_error(error)}", "The registry's README lists the keys.") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file whose top level is a mapping.

    Raises
    ------
    GipfelError
        The file can't be read, or is not a YAML mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GipfelError(f"{path} can't be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise GipfelError(f"{path} is not valid YAML: {str(error).splitlines()[0]}.") from error
    if not isinstance(content, dict):
        raise GipfelError(f"{path} is not a YAML mapping.")
    return content


def first_error(error: ValidationError) -> str:
    """Return the first error with its key, in one sentence."""
    return f"{': '.join(filter(None, first_problem(error)))}."


READ_SCOPE = "custom:gipfel-registry:read"
WRITE_SCOPE = "custom:gipfel-registry:write"
VOUCH_SCOPE = "custom:gipfel-registry:vouch"
OPERATE_SCOPE = "custom:gipfel-registry:operate"

#: For ``c.JupyterHub.custom_scopes``.
CUSTOM_SCOPES = {
    READ_SCOPE: {"description": "Read the vetting results of all nodes and the names of their senders"},
    WRITE_SCOPE: {"description": "Send and delete vetting results of one's own jobs, and read baselines"},
    VOUCH_SCOPE: {
        "description": "Send vetting results of which one report is enough for a recovery rule",
        "subscopes": [WRITE_SCOPE],
    },
    OPERATE_SCOPE: {
        "description": "Decide on recovery steps, such as draining a node",
        "subscopes": [READ_SCOPE, WRITE_SCOPE],
    },
}
