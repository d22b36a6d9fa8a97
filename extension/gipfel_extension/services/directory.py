"""The directory of a service, ``~/.gipfel/services/NAME``: what is in it, and which supervisor owns it."""

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.regular_files import read_regular, read_secret
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.staged import open_store
from gipfel_cluster.storage_classes import resolve_path
from gipfel_cluster.workloads.directory import (
    MAX_BYTES,
    SPEC,
    STOP,
    WorkloadState,
    hold_supervisor_lock,
    is_supervised,
    read_state,
)

from .blueprint import NAME, Blueprint, ParameterValue

SERVICES, TOKEN, STORAGE, SECRETS = "services", "token", "storage", "secrets"
#: File that exists from the time when the service of the next job is ready until that job has taken over.
SUCCESSOR = "successor"
#: Scheduler of a service that a hub starts and ends.
HUB = "hub"
_MAX_TOKEN_BYTES = 1024


class ServiceSpec(Frozen):
    """Content of ``spec.json``: enough to start the same service again.

    ``parameters`` are the values that the user gave; ``prefix`` is the path of its URL.
    """

    name: str = Field(pattern=rf"^{NAME}$")
    blueprint: Blueprint
    parameters: dict[str, ParameterValue] = Field(default={}, max_length=64)
    prefix: str = Field("/", pattern=r"^/(?:[A-Za-z0-9._~@%-]+/)*$", max_length=500)
    host: str = Field("", pattern=r"^(?:https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?)?$", max_length=300)
    """Origin that a hub gives to this service alone; empty if it is below a path."""
    scheduler: str = ""
    account: str = ""
    edf: str = ""
    engine: str = ""
    directory: str = ""
    """Working directory of the service's programs."""
    source: str = ""
    """Name that the user gave: a blueprint's name or file."""


class ServiceState(WorkloadState):
    """State of a service.

    ``address`` and ``port`` are those of the front door, the authenticating proxy, on ``nodes[0]``.
    ``runs`` are the run folders of the jobs that it has used, the newest last.
    """

    runs: tuple[str, ...] = ()
    address: str = ""
    port: int = 0
    prefix: str = "/"
    host: str = ""


def read_spec(folder: Path) -> ServiceSpec:
    """Return the content of ``spec.json``.

    Raises
    ------
    GipfelError
        It can't be read.
    """
    try:
        return ServiceSpec.model_validate_json(read_regular(folder / SPEC, MAX_BYTES))
    except (OSError, ValidationError) as error:
        raise GipfelError(
            f"The service in {folder} can't be read by this version of Gipfel.",
            "Start it again with `gipfel service up`.",
        ) from error


def read_service_state(folder: Path) -> ServiceState:
    """Return the state of a service."""
    return read_state(folder, ServiceState, "service")


def read_token(folder: Path) -> str:
    """Return the front door's token.

    Raises
    ------
    GipfelError
        It can't be read, or is too short to be a token.
    """
    try:
        token = read_regular(folder / TOKEN, _MAX_TOKEN_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise GipfelError(f"The token in {folder} can't be read.", "Start the service again.") from error
    if len(token) < 32:
        raise GipfelError(f"The token in {folder} is too short.", "Start the service again.")
    return token


def service_directory(name: str, environment: Mapping[str, str]) -> Path:
    """Return the directory of a service; `name` is not checked."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / SERVICES / name


def storage_directory(spec: ServiceSpec, folder: Path, environment: Mapping[str, str]) -> Path:
    """Create and return the directory that outlives the service's jobs, for its data.

    It is in the storage class (`gipfel_cluster.storage_classes`) that the blueprint names, else in `folder`.

    Raises
    ------
    GipfelError
        The storage class has no directory, or the directory can't be used.
    """
    name = spec.blueprint.storage
    chosen = resolve_path(f"{name}:gipfel-services-{os.geteuid()}", environment) if name else ""
    directory = Path(chosen) / spec.name if chosen else folder / STORAGE
    try:
        if chosen:
            # Users may share the class's directory: the user's is named by the UID and closed to others.
            open_store(Path(chosen))
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The storage {directory} can't be used: {error.strerror}.", "Check the storage classes."
        ) from error
    return directory


def copy_secrets(spec: ServiceSpec, folder: Path, environment: Mapping[str, str]) -> None:
    """Copy the blueprint's secrets from ``~/.gipfel/secrets`` into the service's directory (0600).

    Raises
    ------
    GipfelError
        A secret is missing, or other users can read it.
    """
    source = Path(environment.get("HOME") or Path.home()) / ".gipfel" / SECRETS
    for name in sorted({each for part in spec.blueprint.parts.values() for each in part.secrets}):
        content = read_secret(source / name)
        (folder / SECRETS).mkdir(mode=0o700, exist_ok=True)
        write_atomically(folder / SECRETS / name, content)


def remove_secrets(folder: Path) -> None:
    """Remove the copies of the secrets."""
    shutil.rmtree(folder / SECRETS, ignore_errors=True)


class Handover:
    """Ownership of the state, logs and secrets in a service's directory while a later job takes over.

    With ``handover: overlap``, the later supervisor waits: it writes only logs of its own until the hub has
    ended the earlier job. After `announce`, the earlier one leaves the directory to the later one.

    Example
    -------
    ``with Handover(folder, overlaps=True) as handover:``, once the service is ready ``handover.announce()``,
    from time to time ``handover.take_over()``.
    """

    def __init__(self, folder: Path, *, overlaps: bool) -> None:
        self._folder, self._overlaps = folder, overlaps
        #: True while the supervisor of an earlier job owns the directory.
        self.waits = False
        self._held = ExitStack()

    def __enter__(self) -> "Handover":
        """Own the directory, or wait for it; raise `GipfelError` where the service has one job at a time."""
        try:
            self._held.enter_context(hold_supervisor_lock(self._folder))
            (self._folder / STOP).unlink(missing_ok=True)
        except GipfelError:
            if not self._overlaps:
                raise
            self.waits = True
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the secrets, unless another supervisor needs them, and give up the directory."""
        if self.waits:
            (self._folder / SUCCESSOR).unlink(missing_ok=True)
        elif self.owns:
            remove_secrets(self._folder)
        self._held.close()

    @property
    def owns(self) -> bool:
        """True if this supervisor writes the state."""
        return not self.waits and not (self._overlaps and (self._folder / SUCCESSOR).exists())

    def log(self, name: str) -> Path:
        """Return the log of a part."""
        return self._folder / (f"{name}.next.log" if self.waits else f"{name}.log")

    def announce(self) -> None:
        """Show the supervisor of the earlier job that this one is ready to take over."""
        if self.waits:
            (self._folder / SUCCESSOR).touch(mode=0o600)

    def take_over(self) -> bool:
        """Become the owner if the supervisor of the earlier job has ended; return True if it did so now."""
        if not self.waits or is_supervised(self._folder):
            return False
        self._held.enter_context(hold_supervisor_lock(self._folder))
        for log in self._folder.glob("*.next.log"):
            log.replace(log.with_name(f"{log.name.removesuffix('.next.log')}.log"))
        self.waits = False
        (self._folder / SUCCESSOR).unlink(missing_ok=True)
        return True
