"""The program that starts containers: ``python -I -S …/start.py container``, or ``… mounted COMMAND…``.

It is started by its path and without ``site``, which takes a quarter of the time of ``python -m``.
"""

import sys


def main() -> int:
    """Run what the first argument names; return its exit status."""
    # The last place, so that nothing beside this package can replace a module of the standard library.
    sys.path.append(__file__.rsplit("/", 4)[0])
    if sys.argv[1] == "container":
        from gipfel_cluster.engines.sandbox.container import run
    else:
        from gipfel_cluster.engines.sandbox.podman import run
    return run()


if __name__ == "__main__":
    sys.exit(main())
