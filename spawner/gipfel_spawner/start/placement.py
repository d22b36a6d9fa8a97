"""Placement of a user's server: its cluster, account and commands, and what the cluster offers."""

import asyncio
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import engine_for
from gipfel_cluster.engines.choice import available_engine_names
from gipfel_cluster.image_verdict import SECURITY_VARIABLES
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime
from gipfel_cluster.runtime.model import DESCRIPTION, Description, read_description
from gipfel_cluster.scheduler.machine import current_user_name
from gipfel_cluster.scheduler.protocol import Scheduler

from ..cluster import Cluster, ClusterSettings, read_clusters, shared_cluster
from ..cluster.cache import AsyncCache, Cached
from ..cluster.watcher import JobWatcher
from ..form.options import OptionError
from .account import Account, UserCommands, account_environment, account_of
from .traits import SpawnerTraits

# Threads for looking up accounts, which takes minutes if the directory service does not answer. They are not
# those of the event loop, which must stay free to resolve host names.
_LOOKUPS = ThreadPoolExecutor(4, thread_name_prefix="gipfel-accounts")
_LOOKUP_TTL_S = 60.0
Interface = Literal["", "lab", "notebook"]
#: Interface -> path of the page that a user is taken to.
INTERFACE_URLS = {"lab": "/lab", "notebook": "/tree"}
_NOTEBOOK = "notebook"
#: First major version of Jupyter Notebook that runs on Jupyter Server, as JupyterLab does.
_FIRST_VERSION = 7
# The engine for EDFs without an image; it is always available, and therefore not offered as a choice.
_HOST = "host"


class ServerPlacement:
    """Cluster and unix account of one server, among the clusters of the hub.

    Parameters
    ----------
    spawner
        Provides the configuration and the user.
    """

    def __init__(self, spawner: SpawnerTraits) -> None:
        self._spawner = spawner
        #: The cluster of the last start, empty before the first one.
        self.cluster_name = ""
        self._accounts: dict[bool, Account] = {}
        self._lookups: dict[bool, AsyncCache[str]] = {}

    @cached_property
    def settings_by_name(self) -> dict[str, ClusterSettings]:
        """Settings of the hub's clusters by name, the default one first."""
        return read_clusters(self._spawner.clusters, self._default_settings())

    def reset_settings(self) -> None:
        """Read the clusters' settings again at the next use."""
        vars(self).pop("settings_by_name", None)

    def _default_settings(self) -> ClusterSettings:
        traits = self._spawner
        return ClusterSettings(
            name=traits.cluster,
            scheduler=traits.scheduler,
            exec_prefix=traits.exec_prefix,
            broker_socket=traits.broker_socket,
            engine=traits.engine,
            engines=tuple(traits.engines),
            runtime=traits.runtime,
            python=traits.python,
        )

    def settings_of(self, name: str) -> ClusterSettings:
        """Return the settings of the cluster of this name; those of the default one for an empty name.

        Raises
        ------
        OptionError
            There is no such cluster.
        """
        settings = self.settings_by_name
        found = settings.get(name) if name else next(iter(settings.values()))
        if found is None:
            raise OptionError(
                f"There is no cluster {name}.", f"Pick one of {', '.join(settings)}.", field="cluster"
            )
        return found

    @property
    def settings(self) -> ClusterSettings:
        """Settings of this server's cluster, which is that of its last start, else the hub's default."""
        settings = self.settings_by_name
        default = next(iter(settings.values()))
        return (settings.get(self.cluster_name) if self._spawner.clusters else None) or default

    @property
    def cluster_label(self) -> str:
        """Name of this server's cluster, even if it is no longer configured."""
        return self.cluster_name or self.settings.name

    @property
    def cluster(self) -> Cluster:
        """Scheduler and watcher of this server's cluster."""
        name = self.cluster_name
        is_removed = self._spawner.clusters and name and name not in self.settings_by_name
        return self.shared(name if is_removed else self.settings)

    @property
    def watcher(self) -> JobWatcher:
        """Watcher of the jobs of this server's cluster."""
        return self.cluster.watcher

    def shared(self, settings: ClusterSettings | str) -> Cluster:
        """Return the scheduler, watcher and cache that all servers of a cluster share."""
        traits = self._spawner
        return shared_cluster(
            traits.user.settings,
            settings,
            is_only_cluster=not traits.clusters,
            state_folder=Path(traits.state_folder),
            answer_limit=traits.answer_limit,
            interval=traits.watch_interval,
            calm_interval=traits.calm_interval,
            log=traits.log,
        )

    def all_schedulers(self) -> tuple[Scheduler, ...]:
        """Return the schedulers of the hub's clusters without duplicates."""
        found = [self.shared(settings).scheduler for settings in self.settings_by_name.values()]
        return tuple({id(each): each for each in found}.values())

    def account(self, settings: ClusterSettings | None = None) -> Account:
        """Return the unix account on a cluster, by default on this server's.

        Raises
        ------
        GipfelError
            The user has no account there.
        """
        local = (settings or self.settings).is_local
        if local not in self._accounts:
            self._accounts[local] = account_of(
                self._spawner.user.name,
                state_folder=Path(self._spawner.state_folder),
                needs_unix_user=not local,
            )
        return self._accounts[local]

    def unix_name(self, settings: ClusterSettings | None = None) -> str:
        """Return the unix user whose Slurm accounts and reservations apply."""
        return self.account(settings).user or current_user_name()

    async def cached_unix_name(self, settings: ClusterSettings, *, limit: float) -> Cached[str]:
        """Return `unix_name` for a page, looked up in a thread; a failure is kept for a minute.

        Parameters
        ----------
        limit
            Seconds to wait for the first answer.
        """
        local = settings.is_local
        if local not in self._lookups:
            self._lookups[local] = AsyncCache(lambda: self._look_up(settings), ttl=_LOOKUP_TTL_S)
        return await self._lookups[local].cached(limit=limit)

    async def _look_up(self, settings: ClusterSettings) -> str:
        # Read here: the traits and the user are not safe to use in a thread.
        name, folder = self._spawner.user.name, Path(self._spawner.state_folder)

        def unix_name() -> str:
            found = account_of(name, state_folder=folder, needs_unix_user=not settings.is_local)
            return found.user or current_user_name()

        return await asyncio.get_running_loop().run_in_executor(_LOOKUPS, unix_name)

    def job_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Add the variables of cluster and account, such as home directory, user name and run folders."""
        # The site's policy on images applies whatever `env_keep` is set to.
        extra = (*SECURITY_VARIABLES, *map(str.strip, self._spawner.req_keepvars_extra.split(",")))
        forwarded = {name: os.environ[name] for name in extra if name in os.environ}
        return account_environment(
            self.account(), self._spawner.user.name, forwarded | dict(env) | self.settings.environment
        )

    def python(self, settings: ClusterSettings | None = None) -> str:
        """Return the Python interpreter that jobs on a cluster use outside the container."""
        settings = settings or self.settings
        if settings.python:
            return settings.python
        if settings.is_local and not self.account(settings).user:
            # On a workstation, notebooks without a container use the packages of the hub's environment.
            return sys.executable
        on_host = Runtime.load(settings.runtime).host_python if settings.runtime else None
        return on_host or sys.executable

    def commands(self, account: Account, settings: ClusterSettings | None = None) -> UserCommands:
        """Return the commands that run as an account, with a cluster's settings."""
        settings, traits = settings or self.settings, self._spawner
        kept = (*SECURITY_VARIABLES, *traits.env_keep)
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {name: value for name, value in traits.environment.items() if isinstance(value, str)}
        python = self.python(settings)
        return UserCommands(
            account,
            environment=account_environment(account, traits.user.name, environment | settings.environment),
            python=python,
            exec_prefix=settings.exec_prefix,
            has_runtime=bool(settings.runtime) or is_self_contained(python),
        )

    def log_name(self, cluster: str, job_id: str = "%j") -> str:
        """Return the file name of a job's log, with the cluster's name if job IDs of several can be equal."""
        return f"server-{cluster}-{job_id}.log" if self._spawner.clusters else f"server-{job_id}.log"


def is_self_contained(python: str) -> bool:
    """Return whether the prefix of a Python interpreter can be mounted into an image and run there.

    This is true for a built runtime and for conda environments, which need only libc. A virtual environment
    and the system's Python depend on files of this machine outside their prefix.
    """
    prefix = Path(python).parent.parent
    return (prefix / DESCRIPTION).is_file() or (prefix / "conda-meta").is_dir()


def interface_environment(interface: Interface) -> dict[str, str]:
    """Return the server's variables for an interface; none for the site's default."""
    return {"JUPYTERHUB_DEFAULT_URL": INTERFACE_URLS[interface]} if interface else {}


async def check_interface(
    interface: Interface, placement: ServerPlacement, settings: ClusterSettings
) -> None:
    """Check that the servers of a cluster have an interface.

    Raises
    ------
    OptionError
        Jupyter Notebook is not installed for them.
    """
    if interface == "notebook" and not await cluster_has_notebook(placement, settings):
        raise OptionError(
            "Jupyter Notebook is not installed for servers of this hub.",
            "Choose JupyterLab, or ask the hub's administrators to install gipfel[notebook].",
            field="interface",
        )


async def cluster_has_notebook(placement: ServerPlacement, settings: ClusterSettings) -> bool:
    """Return whether every server that this user starts on a cluster has Jupyter Notebook."""
    try:
        python = await asyncio.to_thread(placement.python, settings)
    except GipfelError:
        # There is no unix account, or the runtime can't be read; a start reports that.
        return False
    return await asyncio.to_thread(offers_notebook, settings.runtime, python)


def offers_notebook(runtime: str, python: str) -> bool:
    """Return whether every server of a cluster with this runtime has Jupyter Notebook.

    It must be installed in the runtime, for servers in a container, and in the environment of ``python``, the
    interpreter outside the container, for servers without one. The environment of an interpreter that is
    neither the hub's nor the runtime's is unknown; the result is then false.
    """
    try:
        description = _description(runtime, Path(runtime).stat().st_mtime_ns) if runtime else None
    except (GipfelError, OSError):
        # A start reports what is wrong with it.
        return False
    if description is not None:
        if not _is_new_enough(description.distributions.get(_NOTEBOOK, "")):
            return False
        if python == f"{description.prefix}/bin/python3":
            return True
    return python == sys.executable and _is_new_enough(_installed_version())


@lru_cache(maxsize=32)
def _description(runtime: str, _changed: int) -> Description:
    return read_description(Path(runtime))


def _installed_version() -> str:
    try:
        return importlib.metadata.version(_NOTEBOOK)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _is_new_enough(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isdecimal() and int(major) >= _FIRST_VERSION


async def offered_engines(
    default: str, others: Sequence[str], *, jobs_run_locally: bool
) -> tuple[tuple[str, ...], str]:
    """Return the container engines to choose from, and a line if the site's default one can't run here.

    Parameters
    ----------
    default, others
        The site's default engine, listed first, and the engines that it adds.
    jobs_run_locally
        Whether jobs run on this machine, whose engines can then be examined.
    """
    if not jobs_run_locally:
        return tuple(dict.fromkeys((default, *others))), ""
    usable, missing = await asyncio.to_thread(_local_engines, default)
    names = (default, *(name for name in usable if name != _HOST and (not others or name in others)))
    problem = (
        f"Environments with an image can't start on this machine: {missing}"
        if missing and default != _HOST
        else ""
    )
    return tuple(dict.fromkeys(names)), problem


@cache
def _local_engines(default: str) -> tuple[tuple[str, ...], str]:
    """Return the engines that this machine can run, and why it can't run the default one."""
    try:
        missing = (
            engine_for(Edf(name="any", path=None, image="/any.sqsh"), default).unavailable_reason() or ""
        )
    except GipfelError as error:
        missing = str(error)
    return available_engine_names(), missing
