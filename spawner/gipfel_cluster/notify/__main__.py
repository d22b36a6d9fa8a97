"""``python -I -m gipfel_cluster.notify``: read an event as JSON from standard input, and send it."""

import contextlib
import os
import resource
import sys

from . import Event
from .channels import deliver

_MAX_BYTES = 64 << 10
#: Address space of this process: a service's endless response must not take the job's memory.
_MAX_MEMORY_BYTES = 2 << 30


def main() -> int:
    """Send an event; return 0, or 1 if it is not valid or the state can't be written."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > _MAX_MEMORY_BYTES:
            resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, hard))
    try:
        deliver(Event.model_validate_json(sys.stdin.buffer.read(_MAX_BYTES)), os.environ)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: {type(error).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
