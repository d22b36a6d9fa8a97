"""The program that starts containers: ``python -I -S …/start.py container``, or ``… mounted COMMAND…``.

``container`` runs the plan in ``$GIPFEL_CONTAINER``; ``mounted`` mounts SquashFS files and runs podman.
Starting it by its path and without ``site`` takes a quarter of the time of ``python -m``.
"""

import sys


def main() -> int:
    """Run the mode that the first argument names; return its exit status."""
    # Last on the path, so that no module beside this package replaces one of the standard library.
    sys.path.append(__file__.rsplit("/", 4)[0])
    if sys.argv[1] == "container":
        from gipfel_cluster.engines.sandbox.container import run
    else:
        from gipfel_cluster.engines.sandbox.podman import run
    return run()


if __name__ == "__main__":
    sys.exit(main())
