"""Report versions of packages of this Python. Request: names. Answer: evidence of name to version or null."""

from __future__ import annotations

import json
import sys
from importlib import metadata


def main() -> None:
    """Answer one request."""
    names = json.loads(sys.stdin.read())["names"]
    sys.stdout.write(
        json.dumps({"gipfel_probe": 1, "evidence": {name: version(name) for name in names}}) + "\n"
    )


def version(name: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
