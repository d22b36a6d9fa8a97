"""What the supervisor of a launch is given: the spec, and where the host has what it names."""

from pathlib import Path

from gipfel_cluster.broker.surroundings import hides_an_image
from gipfel_cluster.edf import Mount
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler import JobRequest

from ...telemetry.files import read_regular
from ..spec import LaunchSpec
from ..standpoint import Standpoint
from .state import MOST_BYTES, PLAN


class LaunchPlan(Frozen):
    """``plan.json``: paths of the spec are those of the user's place, ``host_folder`` and mounts the host's.

    ``target``, ``directory`` and ``checkpoint`` are absolute; ``python`` is the interpreter of ranks in no
    container, empty for Gipfel's own; ``edf`` is the EDF's file on the host, empty for the job's own or none.
    ``request`` is the launch's own job, None where it runs in the one around.
    """

    spec: LaunchSpec
    folder: str
    host_folder: str
    target: str
    directory: str
    checkpoint: str = ""
    python: str = ""
    edf: str = ""
    engine: str = ""
    runtime: str = ""
    scheduler: str = ""
    cluster: str = "local"
    vetting: str = ""
    """The protocol's name where it is a shipped one, else the host's path of a copy in the folder."""
    mounts: tuple[Mount, ...] = ()
    by_srun: bool = True
    """Whether Slurm starts the ranks; else they are processes of this machine."""
    request: JobRequest | None = None

    @classmethod
    def load(cls, folder: Path) -> "LaunchPlan":
        """Read the plan of a launch's folder.

        Raises
        ------
        GipfelError
            There is none that this version understands.
        """
        try:
            return cls.model_validate_json(read_regular(folder / PLAN, MOST_BYTES))
        except (OSError, ValueError) as error:
            raise GipfelError(
                f"The launch in {folder} has no plan that this version of Gipfel understands.",
                "Launch it anew.",
            ) from error


def mounts_of(paths: tuple[Path, ...], here: Standpoint) -> tuple[Mount, ...]:
    """Mounts that show folders of the user's place at the same paths in the ranks' containers.

    Raises
    ------
    GipfelError
        The host does not see one of them.
    """
    found: dict[Path, Mount] = {}
    for path in paths:
        if hides_an_image(path) or any(path.is_relative_to(each) for each in found):
            continue
        found[path] = Mount(source=str(here.on_host(path)), destination=str(path))
    return tuple(found.values())
