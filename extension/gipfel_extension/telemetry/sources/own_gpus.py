"""Which GPUs a scheduler and a user leave to a job, out of those that a node shows."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .visible import visible

#: Slurm's variables for the GPUs of a step and of a job: numbers of device files of the node.
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass(frozen=True)
class ShownGpu:
    """A GPU or MIG instance as the driver shows it.

    ``minor`` is the number of the GPU's device file, None where it is unknown.
    """

    uuid: str
    minor: int | None


def own_gpus(
    shown: Sequence[ShownGpu],
    environment: Mapping[str, str],
    *,
    variables: Sequence[str] = ("CUDA_VISIBLE_DEVICES",),
    opens: Callable[[int], bool] | None = None,
) -> tuple[str, ...]:
    """The UUIDs of the job's GPUs.

    First those whose device file the job's control group lets us open; of those what the first variable that
    is set names; without one, where Slurm names the job's GPUs by their device files, these.

    Parameters
    ----------
    shown
        Every GPU or MIG instance, in the driver's order.
    opens
        Whether the device file of a number can be opened; None asks no one.
    """
    opens = opens or (lambda _minor: True)
    allowed = [gpu for gpu in shown if gpu.minor is None or opens(gpu.minor)]
    for name in variables:
        if name in environment:
            return visible([gpu.uuid for gpu in allowed], environment[name])
    for name in _SLURM:
        numbers = _numbers(environment.get(name, ""))
        if numbers:
            named = tuple(gpu.uuid for gpu in allowed if gpu.minor in numbers)
            # Where none has the number, GPUs are counted otherwise here, and the control group said enough.
            return named or (tuple(gpu.uuid for gpu in allowed) if len(allowed) <= len(numbers) else ())
    return tuple(gpu.uuid for gpu in allowed)


def opens_nvidia(minor: int) -> bool:
    """Whether the control group leaves the GPU to this process; also true where that can't be told."""
    try:
        os.close(os.open(f"/dev/nvidia{minor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES)
    return True


def _numbers(text: str) -> frozenset[int]:
    """The numbers of ``0,2-3``, of which Slurm writes both forms."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            found.update(range(int(first), min(int(last or first), int(first) + 1024) + 1))
    return frozenset(found)
