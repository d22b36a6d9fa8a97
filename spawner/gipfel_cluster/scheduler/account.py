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
    (``{username}``), so that no name can become two words; where it is empty ``runuser`` for root and
    ``sudo`` for everybody else.

    Raises
    ------
    GipfelError
        The prefix has a field other than ``{username}``.
    """
    if user in {"", own_name()}:
        return ()
    if not exec_prefix:
        root = "runuser -u {username} --"
        exec_prefix = root if os.getuid() == 0 else "sudo --non-interactive --preserve-env -u {username} --"
    try:
        return tuple(word.format(username=user) for word in shlex.split(exec_prefix))
    except (ValueError, KeyError, IndexError) as error:
        raise GipfelError(
            f"The exec_prefix {exec_prefix!r} can't be used: {error}.", "Its only field is {username}."
        ) from error
