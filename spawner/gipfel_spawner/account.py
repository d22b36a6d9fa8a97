"""Whose unix account a hub user's server runs in, and where its home is."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler.account import own_name

_SHELL = "/bin/sh"
_NO_SHELLS = frozenset(("nologin", "false"))


class Account(Frozen):
    """``user`` is the unix user to act as, empty for the hub's own; ``home`` is an absolute path."""

    user: str = ""
    home: str

    @property
    def log_folder(self) -> str:
        """Where the jobs' logs go."""
        return f"{self.home}/.gipfel/logs"


def account_of(name: str, *, state_folder: Path, needs_unix_user: bool) -> Account:
    """The account for a hub user.

    A unix user of that name where the hub can act as it. Else, on a machine of its own, the hub's own user
    with a home folder for each hub user in the hub's state.

    Raises
    ------
    GipfelError
        The cluster needs a unix user and there is none, the name holds a control character, or the home
        folder can't be made.
    """
    if not name.isprintable():
        raise GipfelError(
            f"No server can run for {name!r}: the name holds a control character.",
            "Ask the hub's administrators for another one.",
        )
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        entry = None
    if entry is not None and (needs_unix_user or os.getuid() in {0, entry.pw_uid}):
        return Account(user="" if name == own_name() else name, home=entry.pw_dir)
    if needs_unix_user:
        raise GipfelError(
            f"There is no unix user {name!r} on the hub's machine.",
            "Ask the cluster's administrators for an account.",
        )
    # A leading dot would make "." and ".." special.
    home = state_folder / "users" / quote(name, safe="").replace(".", "%2E")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The folder {home} can't be made: {error.strerror}.", "Check EDFSpawner.state_folder."
        ) from error
    return Account(home=str(home))


def account_environment(account: Account, name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment with the account's ``HOME``, ``USER``, ``LOGNAME``, ``SHELL`` and run folders."""
    shell = _shell_of(pwd.getpwnam(account.user) if account.user else _own_entry())
    return {
        **environment,
        "HOME": account.home,
        "USER": account.user or name,
        "LOGNAME": account.user or name,
        "SHELL": shell,
        "GIPFEL_RUNS": f"{account.home}/.gipfel/runs",
    }


def _own_entry() -> pwd.struct_passwd | None:
    """The hub's own user, whose processes servers of this machine are; None where it has no entry."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _shell_of(entry: pwd.struct_passwd | None) -> str:
    """The shell of an account; the system's for one that nobody logs in to."""
    shell = entry.pw_shell if entry else ""
    return _SHELL if not shell or Path(shell).name in _NO_SHELLS else shell
