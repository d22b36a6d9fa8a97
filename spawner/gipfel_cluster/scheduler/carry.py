"""``python -I -m gipfel_cluster.scheduler.carry COMMAND…``: run it with an environment from standard input.

So that what a hub gives as a job's environment is seen by no program but the scheduler's, which runs as the
job's user: not by ``sudo`` or ``runuser`` before it, which a library or a folder of programs named there
could subvert. It comes first on the input: its length in ten digits, then JSON; the rest is the command's.
"""

import json
import os
import sys
from collections.abc import Mapping

_DIGITS = 10


def carried(environment: Mapping[str, str]) -> str:
    """Encode an environment for the start of that input."""
    content = json.dumps(dict(environment))
    return f"{len(content):0{_DIGITS}}{content}"


def main() -> None:
    """Read the environment from standard input and become the command."""
    environment = json.loads(_read(int(_read(_DIGITS))))
    try:
        os.execvpe(sys.argv[1], sys.argv[1:], environment)  # noqa: S606 - an argv list from the broker
    except OSError as error:
        sys.exit(f"{sys.argv[1]} can't be run: {error.strerror}")


def _read(size: int) -> bytes:
    """Read exactly so many bytes, past Python's own buffer."""
    content = b""
    while len(content) < size:
        piece = os.read(0, size - len(content))
        if not piece:
            sys.exit("The environment ended early.")
        content += piece
    return content


if __name__ == "__main__":
    main()
