"""Run a kernel in another EDF's container: ``python3 -I -m gipfel_cluster.broker.kernel``.

Jupyter starts this program in place of the kernel. It runs as long as the kernel, forwards signals to it, and
exits with its status.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..model import GipfelError, report_line
from .client import run_in_container
from .messages import KernelRequest, PathRef, broker_socket

# Variables of Jupyter for the kernel; not JPY_PARENT_PID, since that process does not exist in the container.
_KERNEL_VARIABLES = ("JPY_SESSION_NAME",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kernel; return 1, with one line on stderr, if it can't be run."""
    parser = argparse.ArgumentParser(prog="gipfel_cluster.broker.kernel")
    parser.add_argument("--edf", required=True)
    parser.add_argument("--python", default="image")
    parser.add_argument("-f", dest="file", required=True)
    options = parser.parse_args(arguments)
    try:
        request = KernelRequest(
            edf=options.edf,
            python=options.python,
            connection_file=PathRef.of(Path(options.file).resolve()),
            directory=current_directory(),
            environment={name: os.environ[name] for name in _KERNEL_VARIABLES if name in os.environ},
        )
        socket = broker_socket(os.environ)
        if socket is not None:
            return run_in_container(socket, request, note=report_line)
        from .container import run_directly  # noqa: PLC0415 - slow to import, and not needed with a broker

        return run_directly(request, os.environ, note=report_line)
    except GipfelError as error:
        report_line(str(error))
    except (OSError, ValueError) as error:
        report_line(f"The kernel can't be started: {' '.join(str(error).split())[:300]}")
    return 1


def current_directory() -> PathRef | None:
    """Return this process's working directory; None if it was removed."""
    try:
        return PathRef.of(Path.cwd())
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
