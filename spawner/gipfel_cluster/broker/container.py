"""From a request to what is executed on the host: another EDF's container beside the job's own."""

from pathlib import Path, PurePosixPath

from ..edf import Diagnostic, Edf, EdfError, Mount, check_edf, check_here, load_edf
from ..engines import ContainerRequest, Invocation, engine_for, engine_invocation, engine_pulls
from ..job.left_out import left_out, remaining_variables
from ..job.place import Place, place_in_container, place_on_host
from ..job.spec import PYTHON
from ..model import Frozen, GipfelError
from ..runtime import Runtime
from .messages import KernelRequest, RunRequest
from .surroundings import Surroundings, hides_an_image

_SSH = "com.hooks.ssh."
_PLAIN = ("-m", "ipykernel_launcher")
# Together they fit into one message.
_MOST_DIAGNOSTICS, _LONGEST = 64, 1000

#: Where a runtime has what makes an image's own Python a kernel.
START = "kernels/start.py"
#: Where a runtime has what starts its own Python as a kernel.
LAUNCH = "kernels/kernel_launch.py"


class Prepared(Frozen):
    """What to execute: ``engine`` is the name of the one that runs it."""

    invocation: Invocation
    directory: str
    engine: str


def prepare_run(
    request: RunRequest | KernelRequest, surroundings: Surroundings, scratch: Path, *, python: str
) -> Prepared:
    """Say what is executed for a request.

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
    edf = usable_edf(request.edf, surroundings)
    home = surroundings.home
    place = place_in_container(edf, home) if edf.image else place_on_host(edf, home)
    engine = engine_for(edf, surroundings.engine)
    missing = engine.missing()
    if missing:
        raise GipfelError(missing, "Install it on the node, or choose an EDF without an image.")
    runtime = surroundings.runtime_for_images() if edf.image else surroundings.runtime
    command, folders = _command(request, runtime, surroundings)
    directory, mounts = _directory(request, edf, surroundings, place)
    if edf.image:
        folders = (*surroundings.folders, *folders)
        mounts += tuple(Mount(source=path, destination=path) for path in dict.fromkeys(folders))
        mounts += (runtime.mount,)
    environment = {**surroundings.host, **surroundings.offered, **request.environment, **place.environment}
    environment |= remaining_variables(surroundings.host, left_out(environment.get("GIPFEL_RUN", "")))
    environment["GIPFEL_ENGINE"] = engine.name
    # A kernel would look for that process among its own, and end.
    environment.pop("JPY_PARENT_PID", None)
    container = ContainerRequest(
        edf=_without_a_port(edf),
        command=command,
        mounts=(*place.mounts, *mounts) if edf.image else (),
        environment=environment,
        binding=surroundings.binding,
        workdir=directory,
        scratch=str(scratch),
        step=surroundings.step,
    )
    invocation = engine_invocation(container, engine, python=python, runtime=runtime)
    return Prepared(invocation=invocation, directory="/" if edf.image else directory, engine=engine.name)


def _without_a_port(edf: Edf) -> Edf:
    """An EDF whose container opens no port for ``ssh``: a job has one, that of its own container."""
    kept = {name: value for name, value in edf.annotations.items() if not name.startswith(_SSH)}
    return edf.model_copy(update={"annotations": kept})


def usable_edf(name: str, surroundings: Surroundings, engine: str = "") -> Edf:
    """Look up and check an EDF as the job's host sees it.

    Raises
    ------
    GipfelError
        There is none, or it can't be used here.
    """
    engine = engine or surroundings.engine
    edf = load_edf(name, environment=surroundings.host, directory=Path(surroundings.home))
    found = check_here(edf, pulls=engine_pulls(engine))
    errors = tuple(each for each in found if each.severity == "error")
    if errors:
        raise EdfError(errors)
    engine_for(edf, engine)
    return edf


def linted_edf(name: str, surroundings: Surroundings) -> tuple[Diagnostic, ...]:
    """What `gipfel edf check` says of an EDF on the job's host: errors first, each text cut to fit."""
    checked = check_edf(name, environment=surroundings.host, directory=Path(surroundings.home))
    found = sorted(checked.diagnostics, key=lambda each: each.severity != "error")
    return tuple(
        each.model_copy(update={"message": each.message[:_LONGEST], "fix": each.fix[:_LONGEST]})
        for each in found[:_MOST_DIAGNOSTICS]
    )


def kernel_command(python: str, runtime: Runtime, connection_file: str) -> tuple[str, ...]:
    """The argv of a kernel in a container: of the image's own Python, of the runtime's, or of a path."""
    if python == "runtime":
        opened = not Path(runtime.root).is_dir()
        program = (
            (f"{runtime.prefix}/{LAUNCH}",) if opened or Path(runtime.root, LAUNCH).is_file() else _PLAIN
        )
        return (runtime.python, "-I", *program, "-f", connection_file)
    first = "python3" if python == "image" else python
    # Into a runtime of one file nobody has looked.
    if Path(runtime.root).is_dir() and not Path(runtime.root, START).is_file():
        return (first, *_PLAIN, "-f", connection_file)
    return (first, f"{runtime.prefix}/{START}", "-f", connection_file)


def _command(
    request: RunRequest | KernelRequest, runtime: Runtime, surroundings: Surroundings
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command, and the folders that it needs."""
    if isinstance(request, RunRequest):
        first, *others = request.command
        return (runtime.python if first == PYTHON else first, *others), ()
    file = Path(request.connection_file.path)
    if surroundings.located(request.connection_file) != file:
        raise GipfelError(
            f"The host does not see the kernel's connection file {file}.", "Start the server anew."
        )
    return kernel_command(request.python, runtime, str(file)), (str(file.parent),)


def _directory(
    request: RunRequest | KernelRequest, edf: Edf, surroundings: Surroundings, place: Place
) -> tuple[str, tuple[Mount, ...]]:
    """Where the command starts, and the mount that shows it; where nobody can see it, the usual place."""
    spot = request.directory
    source = surroundings.located(spot) if spot else None
    if spot is None or source is None or not source.is_dir():
        return place.directory, ()
    if not edf.image:
        return str(source), ()
    wanted = PurePosixPath(spot.path)
    if hides_an_image(Path(spot.path)):
        return place.directory, ()
    if any(wanted.is_relative_to(mount.destination) for mount in (*edf.mounts, *place.mounts)):
        return spot.path, ()
    return spot.path, (Mount(source=str(source), destination=spot.path),)
