"""The batch script: one quoted line, since everything else travels as values."""

import shlex

#: What the node's interpreter runs.
RUNNER = ("-I", "-m", "gipfel_cluster.job")


def batch_script(python: str) -> str:
    """The script that Slurm copies to the node; it replaces itself by the job's runner.

    Parameters
    ----------
    python
        The interpreter on the node, usually that of the runtime folder.
    """
    return f"#!/bin/sh\nexec {shlex.join((python, *RUNNER))}\n"
