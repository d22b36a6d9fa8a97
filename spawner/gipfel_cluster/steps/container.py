"""The container of one task of a step, as it is composed on the task's own node."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ..broker.surroundings import find_runtime, hides_an_image
from ..edf import Edf, EdfError, Mount, check_here, load_edf
from ..engines import ContainerRequest, Invocation, engine_for, engine_invocation, engine_pulls
from ..environment import BINDING
from ..job.place import place_in_container, place_on_host
from ..model import GipfelError
from ..runtime import Runtime
from .spec import IMAGE_PYTHON, PYTHON, StepPlan

# A container of a step opens no port for ssh: a job has one, that of its own container.
_SSH = "com.hooks.ssh."
# The server's own, which mean nothing on another node.
_LEFT_OUT = ("JUPYTER_", "JUPYTERHUB_", "JPY_", "IPYTHONDIR")


def step_edf(plan: StepPlan, environment: Mapping[str, str]) -> Edf:
    """Look up and check the EDF of a step on this node.

    Raises
    ------
    GipfelError
        There is none, or it can't be used here.
    """
    name = plan.spec.edf or plan.setting.edf
    if not name:
        return Edf(name="", path=None)
    edf = load_edf(name, environment=environment, directory=Path(plan.setting.home))
    found = check_here(edf, pulls=engine_pulls(plan.setting.engine))
    errors = tuple(each for each in found if each.severity == "error")
    if errors:
        raise EdfError(errors)
    kept = {name: value for name, value in edf.annotations.items() if not name.startswith(_SSH)}
    return edf.model_copy(update={"annotations": kept})


def task_invocation(
    plan: StepPlan,
    edf: Edf,
    *,
    environment: Mapping[str, str],
    offered: Mapping[str, str],
    scratch: str,
    python: str,
    step: tuple[str, ...] = (),
) -> tuple[Invocation, str]:
    """Say what is executed for a task, and in which folder of the host.

    Parameters
    ----------
    environment
        The variables of this process.
    offered
        What the task gets on top.
    scratch
        A private folder on this node's disk.
    python
        The host's interpreter.
    step
        For engines that start by srun: its options about tasks and nodes.

    Raises
    ------
    GipfelError
        The EDF, the runtime or the engine can't be used.
    """
    engine = engine_for(edf, plan.setting.engine)
    missing = engine.missing()
    if missing:
        raise GipfelError(missing, "Install it on the node, or choose an EDF without an image.")
    runtime = _runtime(plan, environment, contained=bool(edf.image))
    home = plan.setting.home
    place = place_in_container(edf, home) if edf.image else place_on_host(edf, home)
    mounts = _mounts(plan, edf) if edf.image else ()
    directory = _directory(plan, edf, (*place.mounts, *mounts), place.directory)
    first, *others = plan.spec.command
    kept = {name: value for name, value in environment.items() if not name.startswith(_LEFT_OUT)}
    request = ContainerRequest(
        edf=edf,
        command=(_program(first, edf, plan.spec.python or runtime.python, runtime), *others),
        mounts=(*place.mounts, *mounts, runtime.mount) if edf.image else (),
        environment={**kept, "GIPFEL_ENGINE": engine.name, **offered, **place.environment},
        binding=BINDING,
        workdir=directory,
        scratch=scratch,
        step=step,
    )
    invocation = engine_invocation(request, engine, python=python, runtime=runtime)
    return invocation, "/" if edf.image else directory


def _runtime(plan: StepPlan, environment: Mapping[str, str], *, contained: bool) -> Runtime:
    runtime = plan.setting.runtime
    built = Path(runtime.root, "runtime.json").is_file() or runtime.root.endswith(".sqsh")
    if not contained:
        # As for a job: the environment that runs this program, with whatever else is installed in it.
        return Runtime.here()
    if built:
        return runtime
    found = find_runtime(plan.setting.wanted_runtime, environment)
    if found is None:
        raise GipfelError(
            "There is no runtime to mount into the image.",
            "Build one with `gipfel runtime build ~/.gipfel/runtime`, or set GIPFEL_RUNTIME.",
        )
    return found


def _program(first: str, edf: Edf, python: str, runtime: Runtime) -> str:
    if first == PYTHON:
        return runtime.python
    if first == IMAGE_PYTHON:
        # Set-up steps may choose another one without an image, too.
        return "python3" if edf.image or edf.setup else python
    return first


def _mounts(plan: StepPlan, edf: Edf) -> tuple[Mount, ...]:
    """The folders of the caller and of the job, but for those that the EDF shows already."""
    wanted = (*plan.mounts, *(Mount(source=path, destination=path) for path in plan.setting.folders))
    return tuple(dict.fromkeys(each for each in wanted if not _shown(each, edf.mounts)))


def _shown(wanted: Mount, mounts: tuple[Mount, ...]) -> bool:
    destination = PurePosixPath(wanted.destination)
    for mount in reversed(mounts):
        if destination.is_relative_to(mount.destination) and "sqsh" not in mount.flags:
            same = Path(mount.source, destination.relative_to(mount.destination))
            return str(same) == wanted.source and "ro" not in mount.flags
    return False


def _directory(plan: StepPlan, edf: Edf, mounts: tuple[Mount, ...], usual: str) -> str:
    wanted = plan.spec.directory
    if not wanted:
        return usual
    if not edf.image:
        return next((each.source for each in plan.mounts if each.destination == wanted), wanted)
    if hides_an_image(Path(wanted)):
        return usual
    seen = any(PurePosixPath(wanted).is_relative_to(each.destination) for each in (*edf.mounts, *mounts))
    return wanted if seen else usual
