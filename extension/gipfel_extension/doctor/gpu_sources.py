"""Open one source of GPU samples in a process of its own, which a driver that hangs or crashes takes along.

Run as ``python -m gipfel_extension.doctor.gpu_sources SOURCE``; prints one JSON document.
"""

import json
import sys

from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import open_source


def main(name: str) -> int:
    """Print the source's full name and its GPUs, or why it can't be opened."""
    try:
        source = open_source(name)
        answer: dict[str, object] = {
            "name": source.name,
            "gpus": [each.name for each in source.devices if each.kind == "gpu"],
        }
        source.close()
    except SourceError as error:
        answer = {"problem": error.problem, "fix": error.fix}
    print(json.dumps(answer))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
