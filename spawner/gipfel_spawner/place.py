"""Where a user's server runs: its cluster, the unix account, the interpreter, and its errands."""

import os
import sys
from pathlib import Path
from typing import Any

from traitlets import TraitError, observe, validate

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime
from gipfel_cluster.runtime.model import DESCRIPTION
from gipfel_cluster.scheduler.account import own_name

from .account import Account, account_environment, account_of
from .cluster.settings import ClusterSettings, read_clusters
from .cluster.shared import Cluster, Pace, shared_cluster
from .cluster.watcher import JobWatcher
from .errands import Errands
from .form.options import OptionError
from .traits import SpawnerTraits


class PlacedSpawner(SpawnerTraits):
    """A spawner that knows its hub's clusters, its own one, and its user's account."""

    #: The cluster of the last start, empty before the first one.
    cluster_name = ""

    _clusters: dict[str, ClusterSettings] | None = None
    _accounts: dict[bool, Account] | None = None

    @property
    def sites(self) -> dict[str, ClusterSettings]:
        """The hub's clusters, the default one first."""
        if self._clusters is None:
            self._clusters = read_clusters(self.clusters, self._only_site())
        return self._clusters

    def _only_site(self) -> ClusterSettings:
        return ClusterSettings(
            name=self.cluster,
            scheduler=self.scheduler,
            exec_prefix=self.exec_prefix,
            broker_socket=self.broker_socket,
            engine=self.engine,
            engines=tuple(self.engines),
            runtime=self.runtime,
            python=self.python,
        )

    @validate("clusters")
    def _can_be_clusters(self, proposal: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = proposal["value"]
        try:
            read_clusters(given, ClusterSettings(name="any", scheduler="local", broker_socket="/any"))
        except GipfelError as error:
            raise TraitError(str(error)) from error
        return given

    @observe(
        "clusters", "cluster", "scheduler", "exec_prefix", "broker_socket", "engine", "runtime", "python"
    )
    def _forget_clusters(self, _change: object) -> None:
        self._clusters = None

    def site_of(self, name: str) -> ClusterSettings:
        """The cluster of this name; the hub's default one for an empty name.

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
        """The cluster of this server: that of its last start, else the hub's default one."""
        sites = self.sites
        only = next(iter(sites.values()))
        if len(sites) == 1 and not self.clusters:
            return only
        return sites.get(self.cluster_name) or only

    @property
    def _cluster(self) -> Cluster:
        gone = self.clusters and self.cluster_name and self.cluster_name not in self.sites
        return self._shared(self.cluster_name if gone else self.site)

    def _shared(self, site: ClusterSettings | str) -> Cluster:
        """What the hub's servers on a cluster share."""
        return shared_cluster(
            self.user.settings,
            site,
            alone=not self.clusters,
            state_folder=Path(self.state_folder),
            pace=Pace(
                answer_limit=self.answer_limit,
                interval=self.watch_interval,
                calm_interval=self.calm_interval,
            ),
            log=self.log,
        )

    @property
    def _watcher(self) -> JobWatcher:
        return self._cluster.watcher

    def _find_account(self, site: ClusterSettings | None = None) -> Account:
        """The account on a cluster, by default on that of this server."""
        local = (site or self.site).is_local
        self._accounts = {} if self._accounts is None else self._accounts
        if local not in self._accounts:
            self._accounts[local] = account_of(
                self.user.name, state_folder=Path(self.state_folder), needs_unix_user=not local
            )
        return self._accounts[local]

    def _unix_name(self, site: ClusterSettings | None = None) -> str:
        """Whose accounts and reservations count."""
        return self._find_account(site).user or own_name()

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Set what depends on cluster and account: home folder, user name, shell, run folders."""
        extra = (name.strip() for name in self.req_keepvars_extra.split(","))
        env = {name: os.environ[name] for name in extra if name in os.environ} | env | self.site.environment
        return account_environment(self._find_account(), self.user.name, env)

    def get_env(self) -> dict[str, Any]:
        """JupyterHub's variables, with the hub's address as the nodes of the cluster reach it."""
        own = self.hub_connect_url
        self.hub_connect_url = self.site.hub_connect_url or own
        try:
            environment: dict[str, Any] = super().get_env()
        finally:
            self.hub_connect_url = own
        return environment

    def _python(self, site: ClusterSettings | None = None) -> str:
        site = site or self.site
        if site.python:
            return site.python
        if site.is_local and not self._find_account(site).user:
            # On one's own machine a notebook without a container sees what is installed beside the hub.
            return sys.executable
        on_host = Runtime.load(site.runtime).host_python if site.runtime else None
        return on_host or sys.executable

    def _errands(self, account: Account, site: ClusterSettings | None = None) -> Errands:
        site = site or self.site
        environment = {name: os.environ[name] for name in self.env_keep if name in os.environ}
        environment |= {name: value for name, value in self.environment.items() if isinstance(value, str)}
        return Errands(
            account,
            environment=account_environment(account, self.user.name, environment | site.environment),
            python=self._python(site),
            exec_prefix=site.exec_prefix,
            has_runtime=bool(site.runtime) or is_self_contained(self._python(site)),
        )

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up the cluster of a job that another hub process started."""
        super().load_state(state)
        self.cluster_name = str(state.get("cluster") or "")

    def get_state(self) -> dict[str, Any]:
        """The state below, and the cluster of this start."""
        state: dict[str, Any] = super().get_state()
        if self.cluster_name:
            state["cluster"] = self.cluster_name
        return state

    def clear_state(self) -> None:
        """Forget the job and its cluster."""
        super().clear_state()
        self.cluster_name = ""


def is_self_contained(python: str) -> bool:
    """Tell whether an interpreter's own prefix, mounted into an image, can serve notebooks there.

    A built runtime can, and conda's environments bring all but libc. A virtual environment and the system's
    Python need files of this machine that an image has not got.
    """
    prefix = Path(python).parent.parent
    return (prefix / DESCRIPTION).is_file() or (prefix / "conda-meta").is_dir()
