"""All causes, the most telling first."""

from .cause import Cause, Evidence, Explanation
from .containers import CONTAINERS
from .gpus import GPUS
from .images import IMAGES
from .jobs import JOBS, REFUSALS
from .network import NETWORK
from .storage import STORAGE
from .vetting import VETTING

#: What the scheduler did to a job comes first; what it only says in general comes last.
CATALOGUE: tuple[Cause, ...] = (*REFUSALS, *VETTING, *JOBS, *STORAGE, *IMAGES, *GPUS, *CONTAINERS, *NETWORK)


def explain(evidence: Evidence) -> Explanation | None:
    """The first cause that fits; None where the catalogue knows none."""
    found = (cause.explain(evidence) for cause in CATALOGUE)
    return next((each for each in found if each is not None), None)
