"""The supervisor of a launch, which a broker starts on the host and which outlives whoever asked for it."""

import os
import subprocess
import sys
from pathlib import Path

from ..job import kept
from ..model import GipfelError
from ..steps.setting import setting_of_job
from .messages import SuperviseRequest
from .surroundings import Surroundings

MODULE = "gipfel_extension.training.launches"
LOG = "supervisor.log"


def supervise(request: SuperviseRequest, surroundings: Surroundings) -> None:
    """Start it, in a session of its own; it holds a lock for which the job waits.

    Raises
    ------
    GipfelError
        The host does not see the folder, or it can't be started.
    """
    folder = surroundings.located(request.folder)
    if folder is None:
        raise GipfelError(
            f"The host does not see the launch's folder {request.folder.path}.", "Set GIPFEL_RUNS to another."
        )
    host = {name: value for name, value in surroundings.host.items() if "TOKEN" not in name}
    setting = setting_of_job(surroundings).model_dump_json().encode() + b"\n"
    try:
        log = os.open(Path(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Locked before it starts: the server may end at any moment.
        held, descriptor = kept.locked_file(Path(surroundings.scratch, kept.FOLDER))
        try:
            process = subprocess.Popen(
                (sys.executable, "-I", "-m", MODULE, str(folder), "-"),
                env=host,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                pass_fds=(descriptor,),
            )
            kept.hand_over(held, descriptor, process.pid)
        finally:
            os.close(log)
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        with process.stdin:
            process.stdin.write(setting)
    except OSError as error:
        raise GipfelError(
            f"The launch's supervisor can't be started: {error.strerror or error}.", "Try again."
        ) from error
