"""``python3 -I -m gipfel_cluster.broker.kernel``: a kernel in another EDF's container, as Jupyter starts it.

This process represents the kernel: it lives as long, passes signals on and returns its exit status.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..model import GipfelError
from .client import run
from .messages import KernelRequest, PathRef, broker_socket

# Of what Jupyter sets for a kernel; the process that it names as the parent is not there in a container.
_GIVEN = ("JPY_SESSION_NAME",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kernel; return 1, with one line on stderr, where it can't be run."""
    parser = argparse.ArgumentParser(prog="gipfel_cluster.broker.kernel")
    parser.add_argument("--edf", required=True)
    parser.add_argument("--python", default="image")
    parser.add_argument("-f", dest="file", required=True)
    given = parser.parse_args(arguments)
    try:
        request = KernelRequest(
            edf=given.edf,
            python=given.python,
            connection_file=PathRef.of(Path(given.file).resolve()),
            directory=current_directory(),
            environment={name: os.environ[name] for name in _GIVEN if name in os.environ},
        )
        socket = broker_socket(os.environ)
        if socket is not None:
            return run(socket, request, note=_report)
        from .container import run_directly  # noqa: PLC0415 - what a broker does for its clients

        return run_directly(request, os.environ, note=_report)
    except GipfelError as error:
        _report(str(error))
    except (OSError, ValueError) as error:
        _report(f"The kernel can't be started: {' '.join(str(error).split())[:300]}")
    return 1


def current_directory() -> PathRef | None:
    """Return the folder that this process is in, None where it is gone."""
    try:
        return PathRef.of(Path.cwd())
    except OSError:
        return None


def _report(line: str) -> None:
    sys.stderr.write(f"gipfel: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
