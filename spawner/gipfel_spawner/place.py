"""Where a user's server runs: the hub's cluster, the unix account, the interpreter, and its errands."""

import os
import sys
from pathlib import Path

from gipfel_cluster.runtime import Runtime
from gipfel_cluster.scheduler.account import own_name

from .account import Account, account_environment, account_of
from .cluster.shared import Cluster, shared_cluster
from .cluster.watcher import JobWatcher
from .errands import Errands
from .traits import SpawnerTraits


class PlacedSpawner(SpawnerTraits):
    """A spawner that knows its cluster and its user's account."""

    _account: Account | None = None

    @property
    def _cluster(self) -> Cluster:
        return shared_cluster(
            self.user.settings,
            self.scheduler,
            environment=dict(os.environ),
            state_folder=Path(self.state_folder),
            exec_prefix=self.exec_prefix,
            answer_limit=self.answer_limit,
            interval=self.watch_interval,
            calm_interval=self.calm_interval,
            log=self.log,
        )

    @property
    def _watcher(self) -> JobWatcher:
        return self._cluster.watcher

    def _find_account(self) -> Account:
        if self._account is None:
            self._account = account_of(
                self.user.name,
                state_folder=Path(self.state_folder),
                needs_unix_user=self.scheduler == "slurm",
            )
        return self._account

    def _unix_name(self) -> str:
        """Whose accounts and reservations count."""
        return self._find_account().user or own_name()

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Set what depends on the unix account: home folder, user name, shell, run folders."""
        extra = (name.strip() for name in self.req_keepvars_extra.split(","))
        env = {name: os.environ[name] for name in extra if name in os.environ} | env
        return account_environment(self._find_account(), self.user.name, env)

    def _python(self) -> str:
        if self.python:
            return str(self.python)
        on_host = Runtime.load(self.runtime).host_python if self.runtime else None
        return on_host or sys.executable

    def _errands(self, account: Account) -> Errands:
        environment = {name: os.environ[name] for name in self.env_keep if name in os.environ}
        environment |= {name: value for name, value in self.environment.items() if isinstance(value, str)}
        return Errands(
            account,
            environment=account_environment(account, self.user.name, environment),
            python=self._python(),
            exec_prefix=self.exec_prefix,
        )
