"""Find permissions that give other users power: set-uid programs, and files that every user may change."""

import stat
from typing import NamedTuple

from ..model import Finding

#: Names of set-uid and set-gid programs that packages of Debian, Ubuntu and Red Hat install.
_USUAL_NAMES = (
    "su sudo sudoedit passwd chsh chfn newgrp gpasswd chage expiry mount umount fusermount fusermount3 "
    "pkexec wall write ssh-agent ssh-keysign unix_chkpwd pam_extrausers_chkpwd pam_timestamp_check ping "
    "crontab at bwrap newuidmap newgidmap dotlockfile mount.nfs dbus-daemon-launch-helper ping6 "
    "polkit-agent-helper-1 "
    "plocate locate screen utempter userhelper mlocate ntfs-3g Xorg.wrap bsd-write mlock exim4"
)
_USUAL = frozenset(_USUAL_NAMES.split())
_PROGRAM_PLACES = ("bin/", "sbin/", "usr/bin/", "usr/sbin/", "usr/lib/", "usr/libexec/", "usr/lib64/", "lib/")
_LOADED = (".so", ".py", ".pth", ".sh", ".conf", ".toml", ".setup")
_SHOWN = 5


class Entry(NamedTuple):
    """A file or directory; `path` without a leading slash, `mode` as of stat, `size` in bytes."""

    path: str
    mode: int
    size: int


class Permissions:
    """Collects the permissions of entries; :meth:`findings` sums them up."""

    def __init__(self) -> None:
        self._usual: list[str] = []
        self._set_uid: list[str] = []
        self._set_gid: list[str] = []
        self._changeable: list[str] = []
        self._loaded: list[str] = []

    def add(self, entry: Entry) -> None:
        """Check one file or directory."""
        if stat.S_ISREG(entry.mode) and entry.mode & (stat.S_ISUID | stat.S_ISGID) and entry.mode & 0o111:
            name = entry.path.rpartition("/")[2]
            usual = name in _USUAL and entry.path.startswith(_PROGRAM_PLACES)
            unusual = self._set_uid if entry.mode & stat.S_ISUID else self._set_gid
            (self._usual if usual else unusual).append(entry.path)
        if not entry.mode & stat.S_IWOTH:
            return
        if stat.S_ISREG(entry.mode):
            runs = bool(entry.mode & 0o111) or entry.path.endswith(_LOADED) or entry.path.startswith("etc/")
            (self._loaded if runs else self._changeable).append(entry.path)
        elif stat.S_ISDIR(entry.mode) and not entry.mode & stat.S_ISVTX:
            self._changeable.append(f"{entry.path}/")

    def findings(self) -> list[Finding]:
        """Return what was found, one finding for each kind."""
        found = []
        others = "Who starts it gets the rights of its owner"
        if self._set_uid:
            fix = "Remove the bit where the program does not need it: chmod u-s FILE."
            found.append(_finding("set-uid", "high", f"{others}: {_listed(self._set_uid)}.", fix))
        if self._set_gid:
            fix = "Remove the bit where the program does not need it: chmod g-s FILE."
            found.append(_finding("set-gid", "medium", f"{others[:-5]}group: {_listed(self._set_gid)}.", fix))
        if self._loaded:
            message = f"Every user can change what others run: {_listed(self._loaded)}."
            found.append(_finding("world-writable", "high", message, "chmod o-w FILE."))
        if self._changeable:
            message = f"Every user can change: {_listed(self._changeable)}."
            found.append(
                _finding("world-writable", "medium", message, "chmod o-w FILE, or chmod +t DIRECTORY.")
            )
        if self._usual:
            message = f"Set-uid and set-gid programs of the distribution: {_listed(self._usual)}."
            found.append(
                _finding("set-uid", "low", message, "None is needed where no process changes its user.")
            )
        return found


def _finding(rule: str, severity: str, message: str, fix: str) -> Finding:
    return Finding.model_validate({"rule": rule, "severity": severity, "message": message, "fix": fix})


def _listed(paths: list[str]) -> str:
    shown = ", ".join(path.encode(errors="replace").decode()[:200] for path in sorted(paths)[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"
