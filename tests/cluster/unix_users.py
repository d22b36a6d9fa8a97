"""Plain Unix users for the duration of a test."""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TRIES = 20


@dataclass(frozen=True)
class UnixUser:
    """A user that was made for a test."""

    name: str
    uid: int
    home: Path

    def processes(self) -> set[int]:
        """Return the user's running processes, in any namespace."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if entry.stat().st_uid == self.uid and (entry / "cmdline").read_bytes():
                        found.add(int(entry.name))
        return found

    def own(self, path: Path, mode: int = 0o600) -> Path:
        """Make a file or folder the user's."""
        os.chown(path, self.uid, -1)
        path.chmod(mode)
        return path

    def write(self, path: str, content: str, mode: int = 0o600) -> Path:
        """Write a file of the user's, `path` being relative to the home folder."""
        target = self.home / path
        for parent in reversed([each for each in target.parents if each.is_relative_to(self.home)]):
            if not parent.exists():
                parent.mkdir()
                self.own(parent, 0o700)
        target.write_text(content)
        return self.own(target, mode)

    def run(self, *argv: str, limit_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command as the user."""
        prefix = ["runuser", "-u", self.name, "--"]
        return subprocess.run([*prefix, *argv], capture_output=True, text=True, timeout=limit_s, cwd="/")


@contextlib.contextmanager
def unix_user(letter: str, homes: Path) -> Iterator[UnixUser]:
    """A user ``gipfel-<letter>-<hex>`` with its own home folder below `homes`; removed at the end."""
    name = f"gipfel-{letter}-{secrets.token_hex(3)}"
    home = homes / name
    _call(
        ["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", "--no-log-init", name]
    )
    user = UnixUser(name, pwd.getpwnam(name).pw_uid, home)
    home.chmod(0o700)
    try:
        yield user
    finally:
        for pid in user.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _call(["userdel", "--force", name])
        shutil.rmtree(home, ignore_errors=True)


def _call(argv: list[str]) -> None:
    for _ in range(_TRIES):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        if done.returncode != 1:  # 1: another process holds the lock of /etc/passwd
            break
        time.sleep(0.3)
    if done.returncode not in {0, 6, 12}:  # 6: no such user, 12: no mail spool to remove
        raise RuntimeError(f"{argv[0]}: {done.stderr}")
