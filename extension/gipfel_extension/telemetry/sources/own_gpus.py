"""Find the GPUs that a scheduler and a user leave to a job, out of those that a node shows."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: Slurm's variables for the GPUs of a step and of a job: numbers of device files of the node.
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU or MIG instance as the driver shows it.

    ``minor`` is the number of the GPU's device file, None where it is unknown.
    """

    uuid: str
    minor: int | None


def own_gpus(
    shown: Sequence[VisibleGpu],
    environment: Mapping[str, str],
    *,
    variables: Sequence[str] = ("CUDA_VISIBLE_DEVICES",),
    opens: Callable[[int], bool] | None = None,
) -> tuple[str, ...]:
    """Return the UUIDs of the job's GPUs.

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
            # Where none has the number, GPUs are numbered differently here, and the control group decides.
            return named or (tuple(gpu.uuid for gpu in allowed) if len(allowed) <= len(numbers) else ())
    return tuple(gpu.uuid for gpu in allowed)


def opens_nvidia(minor: int) -> bool:
    """Return whether the control group leaves the GPU to this process, also where that is unknown."""
    try:
        os.close(os.open(f"/dev/nvidia{minor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES)
    return True


def visible(uuids: Sequence[str], selection: str | None) -> tuple[str, ...]:
    """Return the UUIDs that a selection names, in its order, by the rules of the CUDA driver.

    An entry is an index into `uuids`, or the beginning of one UUID that no other begins with. As in CUDA, the
    first entry that names nothing ends the list, and an entry that comes twice leaves nothing at all.

    Parameters
    ----------
    uuids
        Every GPU or MIG instance, in NVML's order.
    selection
        The variable's value; None where it is unset: every GPU.
    """
    if selection is None or selection.strip().lower() == "all":
        return tuple(uuids)
    chosen: list[str] = []
    for entry in selection.split(","):
        uuid = _named(uuids, entry.strip())
        if uuid is None:
            break
        if uuid in chosen:
            return ()
        chosen.append(uuid)
    return tuple(chosen)


def _named(uuids: Sequence[str], entry: str) -> str | None:
    if entry.isdecimal():
        return uuids[int(entry)] if int(entry) < len(uuids) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [uuid for uuid in uuids if uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


def _numbers(text: str) -> frozenset[int]:
    """Return the numbers of ``0,2-3``, of which Slurm writes both forms."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            found.update(range(int(first), min(int(last or first), int(first) + 1024) + 1))
    return frozenset(found)
