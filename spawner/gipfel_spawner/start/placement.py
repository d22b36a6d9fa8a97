"""Placement of a user's server: its cluster, unix account, interpreter and the commands as the user."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.runtime import Runtime
from gipfel_cluster.runtime.model import DESCRIPTION
from gipfel_cluster.scheduler.command import own_name
from gipfel_cluster.scheduler.protocol import Scheduler

from ..cluster.clusters import Cluster, ClusterSettings, Pace, read_clusters, shared_cluster
from ..cluster.watcher import JobWatcher
from ..form.options import OptionError
from .account import Account, UserCommands, account_environment, account_of
from .traits import SpawnerTraits


class ServerPlacement:
    """Clusters of the hub, the cluster of one server, and the account it runs in.

    Parameters
    ----------
    spawner
        Its configuration and its user.
    """

    def __init__(self, spawner: SpawnerTraits) -> None:
        self._spawner = spawner
        #: The cluster of the last start, empty before the first one.
        self.cluster_name = ""
        self._sites: dict[str, ClusterSettings] | None = None
        self._accounts: dict[bool, Account] = {}

    @property
    def sites(self) -> dict[str, ClusterSettings]:
        """Clusters of the hub by name, the default one first."""
        if self._sites is None:
            self._sites = read_clusters(self._spawner.clusters, self._only_site())
        return self._sites

    def forget_sites(self) -> None:
        """Read the configuration of the clusters again at the next use."""
        self._sites = None

    def _only_site(self) -> ClusterSettings:
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

    def site_of(self, name: str) -> ClusterSettings:
        """Return the cluster of this name; the hub's default one for an empty name.

        Raises
        ------
        OptionError
            There is no such cluster.
        """
        sites = self.sites
        found = sites.get(name) if name else next(iter(sites.values()))
        if found is None:
            raise OptionError(
                f"There is no cluster {name}.", f"Pick one of {', '.join(sites)}.", field="cluster"
            )
        return found

    @property
    def site(self) -> ClusterSettings:
        """Cluster of this server: that of its last start, else the hub's default one."""
        sites = self.sites
        only = next(iter(sites.values()))
        if len(sites) == 1 and not self._spawner.clusters:
            return only
        return sites.get(self.cluster_name) or only

    @property
    def shown_name(self) -> str:
        """Name of this server's cluster, also where the configuration no longer has it."""
        return self.cluster_name or self.site.name

    @property
    def cluster(self) -> Cluster:
        """Scheduler and watcher of this server's cluster."""
        gone = self._spawner.clusters and self.cluster_name and self.cluster_name not in self.sites
        return self.shared(self.cluster_name if gone else self.site)

    @property
    def watcher(self) -> JobWatcher:
        """Watcher of the jobs of this server's cluster."""
        return self.cluster.watcher

    def shared(self, site: ClusterSettings | str) -> Cluster:
        """Return what the hub's servers on a cluster share."""
        traits = self._spawner
        return shared_cluster(
            traits.user.settings,
            site,
            alone=not traits.clusters,
            state_folder=Path(traits.state_folder),
            pace=Pace(
                answer_limit=traits.answer_limit,
                interval=traits.watch_interval,
                calm_interval=traits.calm_interval,
            ),
            log=traits.log,
        )

    def all_schedulers(self) -> tuple[Scheduler, ...]:
        """Return the schedulers of the hub's clusters, each once."""
        found = [self.shared(site).scheduler for site in self.sites.values()]
        return tuple({id(each): each for each in found}.values())

    def account(self, site: ClusterSettings | None = None) -> Account:
        """Return the account on a cluster, by default on that of this server.

        Raises
        ------
        GipfelError
            The user has none there.
        """
        local = (site or self.site).is_local
        if local not in self._accounts:
            self._accounts[local] = account_of(
                self._spawner.user.name,
                state_folder=Path(self._spawner.state_folder),
                needs_unix_user=not local,
            )
        return self._accounts[local]

    def unix_name(self, site: ClusterSettings | None = None) -> str:
        """Return the unix user whose Slurm accounts and reservations count."""
        return self.account(site).user or own_name()

    def job_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Add what depends on cluster and account: home folder, user name, shell, run folders."""
        extra = (name.strip() for name in self._spawner.req_keepvars_extra.split(","))
        kept = {name: os.environ[name] for name in extra if name in os.environ}
        return account_environment(
            self.account(), self._spawner.user.name, kept | dict(env) | self.site.environment
        )

    def python(self, site: ClusterSettings | None = None) -> str:
        """Return the interpreter of the host side of jobs on a cluster."""
        site = site or self.site
        if site.python:
            return site.python
        if site.is_local and not self.account(site).user:
            # On one's own machine a notebook without a container sees what is installed beside the hub.
            return sys.executable
        on_host = Runtime.load(site.runtime).host_python if site.runtime else None
        return on_host or sys.executable

    def commands(self, account: Account, site: ClusterSettings | None = None) -> UserCommands:
        """Return what runs commands in an account, on a cluster."""
        site, traits = site or self.site, self._spawner
        environment = {name: os.environ[name] for name in traits.env_keep if name in os.environ}
        environment |= {name: value for name, value in traits.environment.items() if isinstance(value, str)}
        python = self.python(site)
        return UserCommands(
            account,
            environment=account_environment(account, traits.user.name, environment | site.environment),
            python=python,
            exec_prefix=site.exec_prefix,
            has_runtime=bool(site.runtime) or is_self_contained(python),
        )

    def log_name(self, cluster: str, job_id: str = "%j") -> str:
        """Return the file name of a job's log; each cluster numbers its jobs from one on."""
        return f"server-{cluster}-{job_id}.log" if self._spawner.clusters else f"server-{job_id}.log"


def is_self_contained(python: str) -> bool:
    """Return whether an interpreter's own prefix, mounted into an image, can serve notebooks there.

    A built runtime can, and conda's environments bring all but libc. A virtual environment and the system's
    Python need files of this machine that an image has not got.
    """
    prefix = Path(python).parent.parent
    return (prefix / DESCRIPTION).is_file() or (prefix / "conda-meta").is_dir()
