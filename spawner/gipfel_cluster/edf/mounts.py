"""One mount of an EDF, from its expanded fields."""

import posixpath
from collections.abc import Callable, Sequence

from .model import Mount

#: What may stand behind the second colon of a mount.
KNOWN_FLAGS = frozenset(
    {
        *("ro", "rw", "sqsh", "bind", "rbind", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime"),
        *("private", "rprivate", "slave", "rslave", "shared", "rshared"),
        *("x-create=auto", "x-create=dir", "x-create=file"),
    }
)
#: Code, message and fix.
Refuse = Callable[[str, str, str], None]


def mount_of(fields: Sequence[str], refuse: Refuse) -> Mount:
    """Make a mount of source, destination and flags; what is wrong with them is told to ``refuse``."""
    source, *rest = fields
    destination = rest[0] if rest else source
    flags = tuple(rest[1].split("+")) if len(rest) > 1 else ()
    if len(rest) > 2:
        refuse("mount", "a mount has at most three fields.", "Write SOURCE:DESTINATION[:FLAG+FLAG].")
    if not source.startswith("/"):
        _refuse_path(refuse, "source", source, "Begin it with '/' or './'.")
    if not destination.startswith("/"):
        _refuse_path(refuse, "destination", destination, "Begin it with '/'.")
    if "sqsh" in flags and len(flags) > 1:
        refuse("mount-flags", "'sqsh' stands alone as a flag.", "Take the others out.")
    for flag in dict.fromkeys(flags):
        if flag not in KNOWN_FLAGS:
            refuse("mount-flags", f"{flag!r} is no mount flag.", "Flags are joined by '+': ro+private.")
    return Mount(source=posixpath.normpath(source), destination=posixpath.normpath(destination), flags=flags)


def _refuse_path(refuse: Refuse, which: str, path: str, fix: str) -> None:
    refuse("mount-path", f"the mount's {which} {path!r} is no absolute path.", fix)
