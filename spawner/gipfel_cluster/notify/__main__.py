"""``python -I -m gipfel_cluster.notify``: send the event that standard input has as JSON."""

import os
import sys

from .event import Event
from .send import deliver

_MAX_BYTES = 64 << 10


def main() -> int:
    """Send an event; return 0, or 1 if it is not valid or the state can't be written."""
    try:
        deliver(Event.model_validate_json(sys.stdin.buffer.read(_MAX_BYTES)), os.environ)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: {type(error).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
