"""A real PostgreSQL on a Unix socket, as a plain user, without a port."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_READY_S = 60.0
_END_S = 30.0


def postgres_programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda each: float(each.parts[-3]))
    return found[-1].parent if found else None


def postgres_missing() -> str:
    """Return why there can be none here; empty where it can."""
    if postgres_programs() is None:
        return "No PostgreSQL: apt-get install postgresql."
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return "There is no user postgres."
    return "" if os.geteuid() == 0 else "A PostgreSQL of the tests is started by root, as the user postgres."


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """SQLAlchemy's URL of an empty database, while it runs."""
    programs = postgres_programs()
    assert programs
    # A unix socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="gipfel-pg-", dir="/var/tmp"))
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    plain = {"user": "postgres", "group": user.pw_gid, "extra_groups": [], "cwd": "/"}
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "postgres", "--no-sync"],
            check=True, capture_output=True, timeout=120, env=environment, **plain,
        )  # fmt: skip
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-F"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, **plain,
            )  # fmt: skip
        try:
            _wait(programs, folder, server)
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
        finally:
            # At once, even with sessions that a failed test left open: its data is discarded.
            server.send_signal(signal.SIGQUIT)
            server.wait(_END_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(programs: Path, folder: Path, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _READY_S
    while subprocess.run([programs / "pg_isready", "-q", "-h", folder], check=False, timeout=30).returncode:
        assert server.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.05)
