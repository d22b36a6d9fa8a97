"""As whom the broker acts: unix users of the host, never root and none of the system's own."""

import os
import pwd

from ...model import GipfelError

#: The first number of a person's account, as login.defs has it (UID_MIN).
LEAST_UID = 1000


def checked_user(name: str, least_uid: int = LEAST_UID) -> str:
    """The name of the user to act as; empty for the broker's own.

    Raises
    ------
    GipfelError
        There is no such user, or it is root, or one of the system's own.
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
    if uid == 0 or (uid < least_uid and uid != own):
        raise GipfelError(
            f"The hub's broker does not act as {name}, user {uid}.",
            f"It does so for users from {least_uid} on: `--least-uid` says from which.",
        )
    return name
