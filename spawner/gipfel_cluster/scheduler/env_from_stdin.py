"""Run a command with an environment from standard input.

Usage: ``python -I -m gipfel_cluster.scheduler.env_from_stdin COMMAND…``. The hub's broker runs it as the
job's user, with ``sudo`` or ``runuser``. These do not get the job's environment that a hub sent, since its
``PATH`` or ``LD_PRELOAD`` could subvert them. The input starts with the length of the environment in ten
digits and the environment as JSON; the rest is the command's input.
"""

import json
import os
import sys
from collections.abc import Mapping

_DIGITS = 10


def encode_environment(environment: Mapping[str, str]) -> str:
    """Return the start of the input that passes an environment."""
    content = json.dumps(dict(environment))
    return f"{len(content):0{_DIGITS}}{content}"


def main() -> None:
    """Read the environment from standard input and execute the command."""
    environment = json.loads(_read(int(_read(_DIGITS))))
    try:
        os.execvpe(sys.argv[1], sys.argv[1:], environment)  # noqa: S606 - an argv list from the broker
    except OSError as error:
        sys.exit(f"{sys.argv[1]} can't be run: {error.strerror}")


def _read(size: int) -> bytes:
    """Read `size` bytes without Python's buffer, which would take input away from the command."""
    content = b""
    while len(content) < size:
        piece = os.read(0, size - len(content))
        if not piece:
            sys.exit("The environment ended early.")
        content += piece
    return content


if __name__ == "__main__":
    main()
