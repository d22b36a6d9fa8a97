"""Program that opens one source of GPU samples, in its own process because a driver may hang or crash.

Run as ``python -m gipfel_extension.doctor.gpu_sources SOURCE``; prints one JSON document.
"""

import json
import sys

from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import open_source


def main(name: str) -> int:
    """Print the source's full name and its GPUs, or the error."""
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
