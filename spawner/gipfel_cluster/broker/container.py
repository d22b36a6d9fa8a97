"""Compose the command that carries out a request in another EDF's container on the job's node.

A broker uses `prepare_run`. Outside of jobs, where there is no broker, `run_directly` also runs the command.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import FrameType

from ..edf import Diagnostic, Edf, Mount, check_edf
from ..egress.start import gated_invocation
from ..engines import ContainerRequest, Invocation, engine_for, load_usable_edf, usable_engine
from ..engines.sandbox.supervise import FORWARDED, shell_status
from ..environment import PROTECTED_VARIABLES
from ..model import PYTHON, Frozen, GipfelError, ReportOSError
from ..namespaces import die_with_parent
from ..regular_files import read_regular
from ..runs import ScratchFolder
from ..runtime import Runtime
from ..scheduler.excluded_nodes import excluded_nodes, remaining_variables
from .context import (
    JobContext,
    Workspace,
    find_runtime,
    host_variables,
    is_system_directory,
    without_ssh,
    workspace_in_container,
    workspace_on_host,
)
from .messages import KernelRequest, RunRequest

_MAX_CONNECTION_BYTES = 64 << 10
_TCP_KERNEL = (
    "A kernel with the transport tcp can't run behind a gate, because its server must reach it; one with the "
    "transport ipc can."
)
_IPYKERNEL = ("-m", "ipykernel_launcher")
# With these limits, the diagnostics fit into one message.
_MAX_DIAGNOSTICS, _MAX_TEXT = 64, 1000

#: Path in a runtime of the program that runs an image's own Python as a kernel.
IMAGE_KERNEL_PROGRAM = "kernels/start.py"
#: Path in a runtime of the program that runs the runtime's Python as a kernel.
RUNTIME_KERNEL_PROGRAM = "kernels/kernel_launch.py"


class PreparedCommand(Frozen):
    """A command to execute on the host.

    ``invocation`` is its process, ``directory`` the directory that the process starts in, and ``engine`` the
    name of its container engine.
    """

    invocation: Invocation
    directory: str
    engine: str


def prepare_run(
    request: RunRequest | KernelRequest, context: JobContext, scratch: Path, *, python: str
) -> PreparedCommand:
    """Compose the command for a request.

    Parameters
    ----------
    scratch
        A private directory for this command, in the job's scratch folder.
    python
        The host's interpreter.

    Raises
    ------
    GipfelError
        The EDF, the runtime or the engine can't be used.
    """
    edf = host_edf(request.edf, context)
    home = context.home
    workspace = workspace_in_container(edf, home) if edf.image else workspace_on_host(edf, home)
    engine = usable_engine(edf, context.engine)
    runtime = context.runtime_for_images() if edf.image else context.runtime
    command, folders = _command(request, runtime, context)
    directory, mounts = _directory(request, edf, context, workspace)
    if edf.image:
        folders = (*context.folders, *folders)
        mounts += tuple(Mount(source=path, destination=path) for path in dict.fromkeys(folders))
        mounts += (runtime.mount,)
    environment = {
        **context.host_environment,
        **context.container_environment,
        **request.environment,
        **workspace.environment,
    }
    environment |= remaining_variables(
        context.host_environment, excluded_nodes(environment.get("GIPFEL_RUN", ""))
    )
    environment["GIPFEL_ENGINE"] = engine.name
    # A kernel exits if its parent is gone, and the container has no process with this id.
    environment.pop("JPY_PARENT_PID", None)
    container = ContainerRequest(
        edf=without_ssh(edf),
        command=command,
        mounts=(*workspace.mounts, *mounts) if edf.image else (),
        environment=environment,
        protected=context.protected,
        workdir=directory,
        scratch=str(scratch),
        step=context.srun_options,
    )
    invocation = gated_invocation(
        container,
        engine,
        context.host_environment,
        runtime=runtime,
        python=python,
        run=environment.get("GIPFEL_RUN", ""),
        node=environment.get("GIPFEL_NODE") or os.uname().nodename.partition(".")[0],
        program=f"the {request.kind} of {edf.name}",
        unreachable=_TCP_KERNEL if _is_tcp_kernel(request) else "",
    )
    return PreparedCommand(
        invocation=invocation, directory="/" if edf.image else directory, engine=engine.name
    )


def _is_tcp_kernel(request: RunRequest | KernelRequest) -> bool:
    """Return whether the notebook server connects to a kernel by TCP, which a gate would prevent."""
    if isinstance(request, RunRequest):
        return False
    try:
        content = json.loads(read_regular(Path(request.connection_file.path), _MAX_CONNECTION_BYTES))
        return bool(content["transport"] != "ipc")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return True


def host_edf(name: str, context: JobContext, engine: str = "") -> Edf:
    """Look up and check an EDF on the job's host, for an engine or the job's own.

    Raises
    ------
    GipfelError
        The EDF is not found, or can't be used here.
    """
    engine = engine or context.engine
    edf = load_usable_edf(name, engine, environment=context.host_environment, directory=Path(context.home))
    engine_for(edf, engine)
    return edf


def edf_diagnostics(name: str, context: JobContext) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of an EDF on the job's host, errors first; long texts are truncated."""
    checked = check_edf(name, environment=context.host_environment, directory=Path(context.home))
    diagnostics = sorted(checked.diagnostics, key=lambda each: each.severity != "error")
    return tuple(
        each.model_copy(update={"message": each.message[:_MAX_TEXT], "fix": each.fix[:_MAX_TEXT]})
        for each in diagnostics[:_MAX_DIAGNOSTICS]
    )


def kernel_command(python: str, runtime: Runtime, connection_file: str) -> tuple[str, ...]:
    """Return the argv of a kernel; ``python`` is ``image``, ``runtime`` or a path in the container."""

    def program(name: str) -> tuple[str, ...]:
        # A runtime that is one file has the program; its content can't be checked here.
        is_missing = Path(runtime.root).is_dir() and not Path(runtime.root, name).is_file()
        return _IPYKERNEL if is_missing else (f"{runtime.prefix}/{name}",)

    if python == "runtime":
        return (runtime.python, "-I", *program(RUNTIME_KERNEL_PROGRAM), "-f", connection_file)
    first = "python3" if python == "image" else python
    return (first, *program(IMAGE_KERNEL_PROGRAM), "-f", connection_file)


def _command(
    request: RunRequest | KernelRequest, runtime: Runtime, context: JobContext
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the request's command, and the directories that must be mounted for it."""
    if isinstance(request, RunRequest):
        first, *others = request.command
        return (runtime.python if first == PYTHON else first, *others), ()
    file = Path(request.connection_file.path)
    if context.host_path(request.connection_file) != file:
        raise GipfelError(
            f"The host does not see the kernel's connection file {file}.", "Restart the server."
        )
    return kernel_command(request.python, runtime, str(file)), (str(file.parent),)


def _directory(
    request: RunRequest | KernelRequest, edf: Edf, context: JobContext, workspace: Workspace
) -> tuple[str, tuple[Mount, ...]]:
    """Return the command's working directory and its mounts; the workspace if the host does not have it."""
    ref = request.directory
    source = context.host_path(ref) if ref else None
    if ref is None or source is None or not source.is_dir():
        return workspace.directory, ()
    if not edf.image:
        return str(source), ()
    directory = PurePosixPath(ref.path)
    if is_system_directory(Path(ref.path)):
        return workspace.directory, ()
    if any(directory.is_relative_to(mount.destination) for mount in (*edf.mounts, *workspace.mounts)):
        return ref.path, ()
    return ref.path, (Mount(source=str(source), destination=ref.path),)


@contextmanager
def local_context(environment: Mapping[str, str]) -> Iterator[JobContext]:
    """Yield a context of this machine and this user, for use outside of jobs."""
    with ScratchFolder.create() as scratch:
        yield JobContext(
            sockets=str(scratch.path),
            scratch=str(scratch.path),
            home=environment.get("HOME") or str(Path.home()),
            engine=environment.get("GIPFEL_ENGINE", ""),
            runtime=find_runtime("", environment) or Runtime.from_current_interpreter(),
            host_environment=host_variables(environment),
            protected=PROTECTED_VARIABLES,
        )


def run_directly(
    request: RunRequest | KernelRequest,
    environment: Mapping[str, str],
    *,
    files: tuple[int, int, int] = (0, 1, 2),
    note: Callable[[str], object] = str,
) -> int:
    """Run a command to its end, and forward signals to it; call it in the main thread.

    Raises
    ------
    GipfelError
        The command can't be run here.
    """
    with local_context(environment) as context:
        scratch = Path(tempfile.mkdtemp(prefix="b", dir=context.scratch))
        prepared = prepare_run(request, context, scratch, python=sys.executable)
        for each in prepared.invocation.notes:
            note(each)
        stdin, stdout, stderr = files
        with ReportOSError("The command can't be started", "Check the command and the EDF."):
            process = subprocess.Popen(
                prepared.invocation.argv,
                env=prepared.invocation.environment,
                cwd=prepared.directory,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                # Safe, since this process has one thread. The command must end when this process is killed.
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

        def forward(number: int, _frame: FrameType | None) -> None:
            process.send_signal(number)

        before = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            return shell_status(process.wait())
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            shutil.rmtree(scratch, ignore_errors=True)
