"""A command in the container of an EDF where there is no broker: outside of jobs, on this very machine."""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..engines.sandbox.namespaces import die_with_parent
from ..engines.sandbox.supervise import FORWARDED, shell_status
from ..environment import BINDING
from ..model import GipfelError
from ..runtime import Runtime
from ..scratch import ScratchFolder
from .container import prepare_run
from .messages import KernelRequest, RunRequest
from .surroundings import Surroundings, find_runtime, host_variables


@contextmanager
def own_surroundings(environment: Mapping[str, str]) -> Iterator[Surroundings]:
    """Describe this machine and this user instead of a job."""
    scratch = ScratchFolder.create()
    try:
        yield Surroundings(
            sockets=str(scratch.path),
            scratch=str(scratch.path),
            home=environment.get("HOME") or str(Path.home()),
            engine=environment.get("GIPFEL_ENGINE", ""),
            runtime=find_runtime("", environment) or Runtime.here(),
            host=host_variables(environment),
            binding=BINDING,
        )
    finally:
        scratch.remove()


def run_directly(
    request: RunRequest | KernelRequest,
    environment: Mapping[str, str],
    *,
    files: tuple[int, int, int] = (0, 1, 2),
    note: Callable[[str], object] = str,
) -> int:
    """Run a command to its end, passing signals on; to be called in the main thread.

    Raises
    ------
    GipfelError
        It can't be run here.
    """
    with own_surroundings(environment) as surroundings:
        scratch = Path(tempfile.mkdtemp(prefix="b", dir=surroundings.scratch))
        prepared = prepare_run(request, surroundings, scratch, python=sys.executable)
        for each in prepared.invocation.notes:
            note(each)
        given, output, errors = files
        try:
            process = subprocess.Popen(
                prepared.invocation.argv,
                env=prepared.invocation.environment,
                cwd=prepared.directory,
                stdin=given,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                # No other thread runs here. Who kills this process means the command.
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        except OSError as error:
            why = f"The command can't be started: {error.strerror} ({error.filename})."
            raise GipfelError(why, "Check the command and the EDF.") from error

        def forward(number: int, _frame: FrameType | None) -> None:
            process.send_signal(number)

        before = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            return shell_status(process.wait())
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            shutil.rmtree(scratch, ignore_errors=True)
