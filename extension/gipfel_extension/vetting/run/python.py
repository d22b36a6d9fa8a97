"""Which Python runs the probes: the image's own, since it is what the training will run with."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ...kernels.image_python import find_image_python

_HAS_TORCH = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
_ASKED_S = 10.0


def probes_python(environment: Mapping[str, str]) -> str:
    """The first Python on the PATH that is not this runtime's; this one where only it has torch."""
    own = sys.executable
    found = find_image_python(environment.get("PATH", os.defpath), Path(sys.prefix))
    if found is None or _has_torch(found, environment):
        return found or own
    return own if _has_torch(own, environment) else found


def _has_torch(python: str, environment: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", _HAS_TORCH], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_ASKED_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
