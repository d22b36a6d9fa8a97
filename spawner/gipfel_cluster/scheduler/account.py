"""The unix user that a command acts as."""

import os
import pwd
import shlex

from ..model import GipfelError


def own_name() -> str:
    """Name of the unix user of this process; its number where it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def acting_as(user: str, exec_prefix: str = "") -> tuple[str, ...]:
    """What to put before an argv so that it runs as `user` with the same environment.

    Nothing for an empty name or the own one. Else `exec_prefix`, whose words are split first and then filled
    (``{username}``, ``{uid}``, ``{gid}``), so that no name can become two words; where it is empty
    ``runuser`` for root and ``sudo`` for everybody else. A hub that is not root but may change users
    (CAP_SETUID and CAP_SETGID) takes ``setpriv --reuid={uid} --regid={gid} --init-groups --``.

    Raises
    ------
    GipfelError
        The prefix has another field, or there is no such user to fill in the numbers of.
    """
    if user in {"", own_name()}:
        return ()
    if not exec_prefix:
        root = "runuser -u {username} --"
        exec_prefix = root if os.getuid() == 0 else "sudo --non-interactive --preserve-env -u {username} --"
    fields = {"username": user}
    if "{uid}" in exec_prefix or "{gid}" in exec_prefix:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise GipfelError(f"There is no unix user {user!r} on this machine.") from None
        fields |= {"uid": str(entry.pw_uid), "gid": str(entry.pw_gid)}
    try:
        return tuple(word.format_map(fields) for word in shlex.split(exec_prefix))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise GipfelError(
            f"The exec_prefix {exec_prefix!r} can't be used: {error}.",
            "Its fields are {username}, {uid} and {gid}.",
        ) from error
