"""What a user lets administrators see of a server: nothing, unless the user says otherwise."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.model import Frozen
from gipfel_cluster.runs import make_private, runs_root, write_atomically

from ..telemetry.files import read_regular

_FILE = "sharing.json"
_WINDOW_S = 600.0
_MOST_BYTES = 64 << 10


class Sharing(Frozen):
    """The user's consent; it holds for all servers of the user, until it is taken back."""

    saturation: bool = False


def read_sharing(environment: Mapping[str, str]) -> Sharing:
    """The consent as it is written down; none where the file is missing or damaged."""
    try:
        return Sharing.model_validate_json(read_regular(_file(environment), _MOST_BYTES))
    except (OSError, ValueError):
        return Sharing()


def write_sharing(environment: Mapping[str, str], sharing: Sharing) -> None:
    """Write it down, for this user alone.

    Raises
    ------
    OSError
        It can't be written.
    """
    path = _file(environment)
    make_private(path.parent)
    write_atomically(path, json.dumps(sharing.model_dump()) + "\n")


def shared_of(document: Mapping[str, Any], seconds: float = _WINDOW_S) -> dict[str, Any]:
    """What administrators get of a score: no names, no samples, no advice."""
    return {
        "shared": True,
        "score": document["score"],
        "bottleneck": document["bottleneck"],
        "gpus": len(document["gpus"]),
        "seconds": seconds,
        "simulated": document["simulated"],
    }


def _file(environment: Mapping[str, str]) -> Path:
    return runs_root(dict(environment)).parent / _FILE
