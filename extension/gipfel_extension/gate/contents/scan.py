"""Scan all files of a directory or an image: permissions, secrets, dependencies, and in images also models.

Files in an image are judged from forward-only streams, each of which is read once.
"""

import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from gipfel_cluster.model import GipfelError, one_line, pluralize

from ...telemetry.files import open_regular
from ..dependencies import dependency_findings
from ..model import Finding, Item, Judgement, shown
from ..models.configs import secret_kind
from ..models.scan_stream import Forward, scan_member
from ..models.streams import Budget
from ..package_index import PackageIndex
from .entries import Entry, archive_errors, archive_files, squashfs_entries, squashfs_files

_MAX_FILES = 1_000_000
_MAX_TEXT_BYTES = 1 << 20
_MAX_ITEMS = 10_000
#: Paths of library files: their tests and documentation contain keys that protect nothing.
_LIBRARIES = re.compile(
    r"(usr/(share|include|src|lib/(python|ssl|ruby|perl|git-core))|opt/conda/pkgs)(/|\d)|"
    r"(.*/)?(site-packages|dist-packages|node_modules|lib/python3\.\d+|\.git/objects)/"
)
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
_SHOWN_PATHS = 5
_FIXES = {
    "key": "Remove the file, and replace the key wherever it is used: who has this image has it.",
    "protected key": "Remove the file: who has it can try passphrases.",
    "token": "Remove it, revoke the token, and set it in the environment where it is needed.",
    "password": "Remove the file, and change the password.",
}


class Permissions:
    """Collects permissions that give other users power: set-uid programs, files that every user may change.

    :meth:`findings` sums them up.
    """

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
    shown = ", ".join(path.encode(errors="replace").decode()[:200] for path in sorted(paths)[:_SHOWN_PATHS])
    return shown if len(paths) <= _SHOWN_PATHS else f"{shown} and {len(paths) - _SHOWN_PATHS} more"


class ContentScan:
    """A scan of all files of a target.

    Attributes
    ----------
    items
        Files with findings; an item for the target itself holds the findings on permissions.
    not_judged
        A line for everything that could not be read or judged.
    not_scanned
        A line for everything that was left out on purpose.
    other_files
        Number of files in an image that hold no model.
    """

    def __init__(self, target: Path, *, image: bool, index: PackageIndex | None = None) -> None:
        self._index = index or PackageIndex()
        self.items: list[Item] = []
        self.not_judged: list[str] = []
        self.not_scanned: list[str] = []
        self.other_files = 0
        self._library_files = 0
        self._permissions = Permissions()
        self._target, self._image = target, image
        try:
            self._scan()
        except (GipfelError, OSError) as error:
            place, why = shown(str(target)), getattr(error, "problem", "") or str(error)
            # An image that can't be read is reported for its packages in the same words.
            self.not_judged.append(one_line(why if place in why else f"{place}: {why}"))
        if self._library_files:
            files = pluralize(self._library_files, "file")
            self.not_scanned.append(
                one_line(
                    f"{files} of libraries in {shown(str(target))} that need code or are not understood."
                )
            )
        if findings := tuple(self._permissions.findings()):
            self.items.append(Item(path=shown(str(target)), verdict="plain", findings=findings))

    def _scan(self) -> None:
        if not self._image:
            for entry, path in directory_entries(self._target, self.not_judged):
                self._permissions.add(entry)
                if _may_hold_secrets(entry):
                    try:
                        with open_regular(path) as file:
                            self._look(entry, file.read(_MAX_TEXT_BYTES))
                    except OSError as error:
                        self.not_judged.append(one_line(f"{shown(str(path))}: {error.strerror}."))
            return
        with open_regular(self._target, follow=True) as file:
            is_squashfs = file.read(4) == b"hsqs"
        files: Iterator[tuple[Entry, BinaryIO | None]] = archive_files(self._target)
        if is_squashfs:
            entries = squashfs_entries(self._target)
            for entry in entries:
                self._permissions.add(entry)
            files = squashfs_files(self._target, entries)
        with archive_errors(self._target):
            for entry, content in files:
                if not is_squashfs:
                    self._permissions.add(entry)
                if content is not None:
                    start = content.read(_MAX_TEXT_BYTES)
                    self._look(entry, start)
                    self._judge(entry, start, content)

    def _judge(self, entry: Entry, start: bytes, content: BinaryIO) -> None:
        judgement = judge_stream(entry, start, content, self._index)
        malicious = judgement.verdict == "malicious"
        path_file = any(each.rule == "path-file-code" for each in judgement.findings)
        if not judgement.findings:
            self.other_files += not judgement.recognized
        elif _LIBRARIES.match(entry.path) and not malicious and not path_file:
            # A library's own code runs anyway, and its test files are loaded only by its tests.
            self._library_files += 1
            return
        if judgement.recognized or judgement.findings:
            self._add(Item(path=self._name(entry), verdict=judgement.verdict, findings=judgement.findings))

    def _add(self, item: Item) -> None:
        if len(self.items) < _MAX_ITEMS:
            self.items.append(item)
        elif len(self.items) == _MAX_ITEMS and item.findings:
            self.not_judged.append(f"{shown(str(self._target))} has more than {_MAX_ITEMS} files to report.")

    def _name(self, entry: Entry) -> str:
        return shown(f"{self._target}!{entry.path}" if self._image else str(self._target / entry.path))

    def _look(self, entry: Entry, start: bytes) -> None:
        """Search a file for secrets, and judge it if it lists dependencies."""
        if not _may_hold_secrets(entry):
            return
        findings = [*_secret(entry, start)]
        try:
            findings += dependency_findings(entry.path, start, self._index)
        except ValueError as error:
            self.not_judged.append(one_line(f"{self._name(entry)} could not be judged: {str(error)[:200]}."))
        if findings:
            self._add(Item(path=self._name(entry), verdict="plain", findings=tuple(findings)))


def _secret(entry: Entry, start: bytes) -> Iterator[Finding]:
    kind = secret_kind(entry.path, start)
    if kind:
        words = {"key": "a private key", "protected key": "a private key with a passphrase"}
        yield Finding(
            rule="secret",
            severity="medium" if kind == "protected key" else "high",
            message=f"It holds {words.get(kind, f'a {kind}')}.",
            fix=_FIXES[kind],
        )


def _may_hold_secrets(entry: Entry) -> bool:
    return (
        stat.S_ISREG(entry.mode)
        and 0 < entry.size <= _MAX_TEXT_BYTES
        and not entry.path.endswith(".ipynb")
        and _LIBRARIES.match(entry.path) is None
    )


def directory_entries(root: Path, problems: list[str]) -> Iterator[tuple[Entry, Path]]:
    """Yield the files and directories below a directory; add a line to `problems` for what can't be read."""

    def on_error(error: OSError) -> None:
        problems.append(one_line(f"{shown(str(error.filename))}: {error.strerror}."))

    count = 0
    for folder, names, files in os.walk(root, onerror=on_error):
        names.sort()
        inside = "" if folder == str(root) else os.path.relpath(folder, root) + "/"
        for name in (*names, *sorted(files)):
            path = Path(folder, name)
            count += 1
            if count > _MAX_FILES:
                problems.append(f"{shown(str(root))} has more than {_MAX_FILES} files.")
                return
            try:
                about = path.lstat()
            except OSError as error:
                on_error(error)
                continue
            yield Entry(inside + name, about.st_mode, about.st_size), path


_TAIL = (1 << 16) + 22
_ZIP_END = b"PK\x05\x06"


class _WithTail(io.RawIOBase):
    """A stream that remembers its last bytes, where a zip archive has its end record."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.tail = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self._file.read(len(buffer))
        self.tail = (self.tail + content)[-_TAIL:] if len(content) < _TAIL else content[-_TAIL:]
        buffer[: len(content)] = content
        return len(content)


def judge_stream(entry: Entry, start: bytes, content: BinaryIO, index: PackageIndex) -> Judgement:
    """Judge a file by its first bytes (`start`, already read from the stream) and the rest of its content."""
    name = entry.path.rpartition("/")[2]
    if len(start) >= entry.size:
        return scan_member(
            cast("BinaryIO", io.BufferedReader(io.BytesIO(start))), name, Budget(package_index=index), 0
        )
    rest = _WithTail(content)
    whole = Forward(cast("BinaryIO", io.BufferedReader(rest)), start, entry.size)
    found = scan_member(cast("BinaryIO", io.BufferedReader(whole)), name, Budget(package_index=index), 0)
    if start.startswith(b"PK"):
        return found
    while rest.read(1 << 20):
        pass
    if _ends_as_zip(rest.tail):
        why = "an archive follows it in the same file, which can't be read in an image; scan the file itself"
        found = Judgement.union([found, Judgement.unclear(why)])
    return found


def _ends_as_zip(tail: bytes) -> bool:
    at = tail.rfind(_ZIP_END)
    if at < 0 or len(tail) < at + 22:
        return False
    return at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") == len(tail)
