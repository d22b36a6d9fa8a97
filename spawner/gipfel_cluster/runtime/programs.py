"""OpenSSH's server, taken along so that ``ssh`` reaches a container whose image has none."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from .relocate import is_elf

_ADMINISTRATORS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
# Where distributions keep what sshd starts: Debian, Fedora, openSUSE, and OpenSSH as it comes.
_HELPERS = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/local/libexec")
# sshd-session and sshd-auth are programs of their own since OpenSSH 9.8 and 10.0.
_PLACES: Mapping[str, tuple[str, Sequence[str]]] = {
    "sshd": ("sbin/sshd", _ADMINISTRATORS),
    "ssh-keygen": ("bin/ssh-keygen", ("/usr/bin", "/usr/local/bin")),
    "sshd-session": ("libexec/sshd-session", _HELPERS),
    "sshd-auth": ("libexec/sshd-auth", _HELPERS),
    "sftp-server": ("libexec/sftp-server", _HELPERS),
}


def programs() -> dict[str, tuple[str, Path]]:
    """Find OpenSSH's server on this machine: name -> path relative to the runtime's folder, file here.

    Empty where this machine has no server; else what of it is a program of its own here.
    """
    found = {}
    for name, (target, folders) in _PLACES.items():
        path = _find(name, folders)
        if path is not None and is_elf(path):
            found[name] = (target, path)
    return found if "sshd" in found else {}


def _find(name: str, folders: Sequence[str]) -> Path | None:
    # The administrator's folders are on nobody's PATH, and helpers on none at all.
    path = shutil.which(name, path=":".join(folders)) or shutil.which(name)
    return Path(path).resolve() if path else None
