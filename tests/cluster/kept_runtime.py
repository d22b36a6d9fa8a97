"""Build and keep the runtime that a cluster on this machine serves, readable for every user."""

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime, build_runtime
from gipfel_cluster.runtime.kernels import initial_kernels

_REPOSITORY = Path(__file__).resolve().parents[2]


def kept_runtime(
    folder: Path,
    *,
    kernels: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Path:
    """Build what is not current in `folder`, and return it.

    Raises
    ------
    GipfelError
        The runtime can't be built, or another user made the folder: what runs in it would be theirs.
    """
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise GipfelError(f"{folder} is another user's.", "Remove it, or name another one in GIPFEL_RUNTIME.")
    return Path(build_runtime(folder, kernels=kernels, progress=progress).root)


def runtime_for_tests() -> Path:
    """``$GIPFEL_TEST_RUNTIME``, else a folder below ``/var/tmp`` for this environment."""
    return kept_runtime(_for_tests())


def kernel_runtime_for_tests(versions: Sequence[str]) -> Runtime:
    """One file beside that folder, with kernels for these Pythons as far as they can be had."""
    path = _for_tests().with_suffix(".sqsh")
    return build_runtime(path, kernels=versions, progress=lambda line: None)


def service_environments() -> Path:
    """Directory beside that folder for the packages of services, readable for every user; kept, too."""
    folder = _for_tests().with_suffix(".services")
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder


def _for_tests() -> Path:
    key = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
    default = f"/var/tmp/gipfel-runtime-{os.getuid()}-{key}"
    return Path(os.environ.get("GIPFEL_TEST_RUNTIME", default))


def runtime_to_serve(progress: Callable[[str], None]) -> Path:
    """``$GIPFEL_RUNTIME``, else ``build/runtime`` where other users can pass, else below ``/var/cache``."""
    given = os.environ.get("GIPFEL_RUNTIME")
    folder = Path(given) if given else _REPOSITORY / "build" / "runtime"
    if not given and not all(parent.stat().st_mode & stat.S_IXOTH for parent in _REPOSITORY.parents):
        folder = Path("/var/cache/gipfel/runtime")
        folder.parent.mkdir(mode=0o755, exist_ok=True)
    # As for `make up`: without them, many images' Python can't be a kernel.
    return kept_runtime(folder, kernels=initial_kernels(folder), progress=progress)
