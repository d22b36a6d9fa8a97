"""Build the runtime folder for `make up`, where this machine can start containers at all."""

import sys
from pathlib import Path

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import engine_for
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import build_runtime
from gipfel_cluster.runtime.installation import remove_old_runtimes
from gipfel_cluster.runtime.kernels import initial_kernels


def main() -> int:
    """Build it, or say in one line why EDFs with an image can't be started here."""
    missing = engine_for(Edf(name="any", path=None, image="/any.sqsh"), "bubblewrap").unavailable_reason()
    if missing:
        print(f"EDFs without an image only: {missing}")
        return 0
    folder = Path(sys.argv[1])
    try:
        build_runtime(folder, kernels=initial_kernels(folder), progress=print)
        remove_old_runtimes(folder, retention_seconds=0)
    except GipfelError as error:
        print(f"EDFs without an image only: {error}")
    return 0


sys.exit(main())
