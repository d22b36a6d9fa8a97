"""As whom the broker acts: unix users of the host, never root and none of the system's own."""

import os
import pwd
from collections.abc import Set as AbstractSet
from typing import Annotated

from pydantic import Field

from ...model import Frozen, GipfelError

_Uid = Annotated[int, Field(ge=0, lt=2**32 - 1)]
# The owner of files that no user owns, by the kernel's default: `nobody`.
_OVERFLOW_UID = 65534


class ActableUsers(Frozen):
    """The unix users that the broker acts as, by their numbers: those of people.

    The defaults are UID_MIN and UID_MAX as login.defs has them: below are the system's users, above are
    those that packages and systemd make, such as Debian's ``slurm`` (64030). A directory service may give
    people larger numbers.
    """

    least: _Uid = 1000
    most: _Uid = 60000

    def checked(self, name: str, *, schedulers: AbstractSet[str] = frozenset()) -> str:
        """Return the name of the user to act as; empty for the broker's own.

        Parameters
        ----------
        schedulers
            The users that the scheduler itself runs as: a job of theirs could read its keys.

        Raises
        ------
        GipfelError
            There is no such user, or it is root, or one of the system's or the scheduler's own.
        """
        own = os.getuid()
        if not name:
            if own == 0:
                raise GipfelError("The hub's broker does nothing as root.", "Name the user to act as.")
            return ""
        try:
            uid = pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError):
            raise GipfelError(
                f"There is no unix user {name!r} on the broker's machine.",
                "Ask the cluster's administrators for an account.",
            ) from None
        if uid in {0, _OVERFLOW_UID} or uid in {_uid(each) for each in schedulers}:
            raise GipfelError(f"The hub's broker does not act as {name}, a user of the system.")
        if not self.least <= uid <= self.most and uid != own:
            raise GipfelError(
                f"The hub's broker does not act as {name}, user {uid}.",
                f"It does so for users from {self.least} to {self.most}: `--least-uid` and `--most-uid`.",
            )
        return name


def _uid(name: str) -> int:
    """Return a user's number; -1 where this machine does not know it."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return -1
