"""Turn a request into what is executed on the host: another EDF's container beside the job's own.

`prepare_run` is for a broker; `run_directly` does the same where there is none, outside of jobs.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import FrameType

from ..edf import Diagnostic, Edf, EdfError, Mount, check_edf, check_local, load_edf
from ..engines import ContainerRequest, Invocation, engine_for, engine_pulls
from ..engines.sandbox.supervise import FORWARDED, shell_status
from ..environment import BINDING
from ..hooks import engine_invocation
from ..model import PYTHON, Frozen, GipfelError
from ..namespaces import die_with_parent
from ..runs import ScratchFolder
from ..runtime import Runtime
from ..scheduler.excluded_nodes import excluded_nodes, remaining_variables
from .context import (
    JobContext,
    Workspace,
    find_runtime,
    hides_an_image,
    host_variables,
    workspace_in_container,
    workspace_on_host,
)
from .messages import KernelRequest, RunRequest

_SSH = "com.hooks.ssh."
_PLAIN = ("-m", "ipykernel_launcher")
# Together they fit into one message.
_MOST_DIAGNOSTICS, _LONGEST = 64, 1000

#: Where a runtime has what makes an image's own Python a kernel.
START = "kernels/start.py"
#: Where a runtime has what starts its own Python as a kernel.
LAUNCH = "kernels/kernel_launch.py"


class Prepared(Frozen):
    """A command to execute on the host; ``engine`` is the name of the engine that runs it."""

    invocation: Invocation
    directory: str
    engine: str


def prepare_run(
    request: RunRequest | KernelRequest, context: JobContext, scratch: Path, *, python: str
) -> Prepared:
    """Compose what is executed for a request.

    Parameters
    ----------
    scratch
        A private folder of this run, below the job's.
    python
        The host's interpreter.

    Raises
    ------
    GipfelError
        The EDF, the runtime or the engine can't be used.
    """
    edf = usable_edf(request.edf, context)
    home = context.home
    workspace = workspace_in_container(edf, home) if edf.image else workspace_on_host(edf, home)
    engine = engine_for(edf, context.engine)
    missing = engine.missing()
    if missing:
        raise GipfelError(missing, "Install it on the node, or choose an EDF without an image.")
    runtime = context.runtime_for_images() if edf.image else context.runtime
    command, folders = _command(request, runtime, context)
    directory, mounts = _directory(request, edf, context, workspace)
    if edf.image:
        folders = (*context.folders, *folders)
        mounts += tuple(Mount(source=path, destination=path) for path in dict.fromkeys(folders))
        mounts += (runtime.mount,)
    environment = {**context.host, **context.offered, **request.environment, **workspace.environment}
    environment |= remaining_variables(context.host, excluded_nodes(environment.get("GIPFEL_RUN", "")))
    environment["GIPFEL_ENGINE"] = engine.name
    # A kernel would look for that process among its own, and end.
    environment.pop("JPY_PARENT_PID", None)
    container = ContainerRequest(
        edf=_without_a_port(edf),
        command=command,
        mounts=(*workspace.mounts, *mounts) if edf.image else (),
        environment=environment,
        binding=context.binding,
        workdir=directory,
        scratch=str(scratch),
        step=context.step,
    )
    invocation = engine_invocation(container, engine, python=python, runtime=runtime)
    return Prepared(invocation=invocation, directory="/" if edf.image else directory, engine=engine.name)


def _without_a_port(edf: Edf) -> Edf:
    """Return an EDF whose container opens no port for ``ssh``: a job has one, that of its own container."""
    kept = {name: value for name, value in edf.annotations.items() if not name.startswith(_SSH)}
    return edf.model_copy(update={"annotations": kept})


def usable_edf(name: str, context: JobContext, engine: str = "") -> Edf:
    """Look up and check an EDF as the job's host sees it.

    Raises
    ------
    GipfelError
        It is not found, or can't be used here.
    """
    engine = engine or context.engine
    edf = load_edf(name, environment=context.host, directory=Path(context.home))
    found = check_local(edf, pulls=engine_pulls(engine))
    errors = tuple(each for each in found if each.severity == "error")
    if errors:
        raise EdfError(errors)
    engine_for(edf, engine)
    return edf


def linted_edf(name: str, context: JobContext) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of an EDF on the job's host: errors first, each text cut to fit."""
    checked = check_edf(name, environment=context.host, directory=Path(context.home))
    found = sorted(checked.diagnostics, key=lambda each: each.severity != "error")
    return tuple(
        each.model_copy(update={"message": each.message[:_LONGEST], "fix": each.fix[:_LONGEST]})
        for each in found[:_MOST_DIAGNOSTICS]
    )


def kernel_command(python: str, runtime: Runtime, connection_file: str) -> tuple[str, ...]:
    """Return the argv of a kernel in a container: of the image's Python, the runtime's, or a path."""
    if python == "runtime":
        opened = not Path(runtime.root).is_dir()
        program = (
            (f"{runtime.prefix}/{LAUNCH}",) if opened or Path(runtime.root, LAUNCH).is_file() else _PLAIN
        )
        return (runtime.python, "-I", *program, "-f", connection_file)
    first = "python3" if python == "image" else python
    # A runtime of one file can't be looked into here.
    if Path(runtime.root).is_dir() and not Path(runtime.root, START).is_file():
        return (first, *_PLAIN, "-f", connection_file)
    return (first, f"{runtime.prefix}/{START}", "-f", connection_file)


def _command(
    request: RunRequest | KernelRequest, runtime: Runtime, context: JobContext
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command, and the folders that it needs."""
    if isinstance(request, RunRequest):
        first, *others = request.command
        return (runtime.python if first == PYTHON else first, *others), ()
    file = Path(request.connection_file.path)
    if context.located(request.connection_file) != file:
        raise GipfelError(
            f"The host does not see the kernel's connection file {file}.", "Restart the server."
        )
    return kernel_command(request.python, runtime, str(file)), (str(file.parent),)


def _directory(
    request: RunRequest | KernelRequest, edf: Edf, context: JobContext, workspace: Workspace
) -> tuple[str, tuple[Mount, ...]]:
    """Return where the command starts, and its mount; the usual place where it can't be seen."""
    ref = request.directory
    source = context.located(ref) if ref else None
    if ref is None or source is None or not source.is_dir():
        return workspace.directory, ()
    if not edf.image:
        return str(source), ()
    wanted = PurePosixPath(ref.path)
    if hides_an_image(Path(ref.path)):
        return workspace.directory, ()
    if any(wanted.is_relative_to(mount.destination) for mount in (*edf.mounts, *workspace.mounts)):
        return ref.path, ()
    return ref.path, (Mount(source=str(source), destination=ref.path),)


@contextmanager
def local_context(environment: Mapping[str, str]) -> Iterator[JobContext]:
    """Describe this machine and this user instead of a job."""
    scratch = ScratchFolder.create()
    try:
        yield JobContext(
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
    with local_context(environment) as context:
        scratch = Path(tempfile.mkdtemp(prefix="b", dir=context.scratch))
        prepared = prepare_run(request, context, scratch, python=sys.executable)
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
