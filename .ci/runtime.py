"""Build the runtime folder for `make up`, where this machine can start containers at all."""

import sys
from pathlib import Path

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import engine_for
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import build_runtime
from gipfel_cluster.runtime.earlier import remove_unused


def main() -> int:
    """Build it, or say in one line why EDFs with an image can't be started here."""
    missing = engine_for(Edf(name="any", path=None, image="/any.sqsh"), "bubblewrap").missing()
    if missing:
        print(f"EDFs without an image only: {missing}")
        return 0
    try:
        build_runtime(Path(sys.argv[1]), progress=print)
        remove_unused(Path(sys.argv[1]), kept_seconds=0)
    except GipfelError as error:
        print(f"EDFs without an image only: {error}")
    return 0


sys.exit(main())
