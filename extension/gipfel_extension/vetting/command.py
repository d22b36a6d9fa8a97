"""The command of a vetting run that another program starts: the panel, a cell, a job before its server."""

import sys


def vet_argv(
    protocol: str, *, action: str = "report", skip_vetted: str = "", min_nodes: int | None = None
) -> tuple[str, ...]:
    """``gipfel vet`` by this interpreter; its report goes to the run folder of ``$GIPFEL_RUN``.

    Parameters
    ----------
    protocol
        A file, or a name that `find_protocol` knows.
    skip_vetted
        Such as ``1 h``: nodes that were vetted within it don't run their own checks again.
    """
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "vet", f"--action={action}"]
    if skip_vetted:
        argv.append(f"--skip-vetted={skip_vetted}")
    if min_nodes is not None:
        argv.append(f"--min-nodes={min_nodes}")
    return (*argv, "--", protocol)
