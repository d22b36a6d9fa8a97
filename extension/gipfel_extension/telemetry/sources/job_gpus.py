"""Selection of a job's GPUs among those of a node, by cgroup, Slurm and the user's variables."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence

#: Slurm's variables with the GPUs of a step and of a job: minor numbers of the node's device files.
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def job_gpus(
    gpus: Mapping[str, int | None],
    environment: Mapping[str, str],
    *,
    variables: Sequence[str] = ("CUDA_VISIBLE_DEVICES",),
    can_open: Callable[[int], bool] | None = None,
) -> tuple[str, ...]:
    """Return the UUIDs of the job's GPUs.

    They are the GPUs whose device file the job's cgroup permits. If one of `variables` is set, the first one
    selects among them, else Slurm's list of device files.

    Parameters
    ----------
    gpus
        UUID of every GPU or MIG instance, in the driver's order, with the minor number of its device file;
        None where that is unknown.
    can_open
        Function that returns whether the device file with a minor number can be opened; None: all can.
    """
    allowed = tuple(
        uuid for uuid, minor in gpus.items() if minor is None or can_open is None or can_open(minor)
    )
    for name in variables:
        if name in environment:
            return select_uuids(allowed, environment[name])
    for name in _SLURM:
        numbers = _numbers(environment.get(name, ""))
        if numbers:
            selected = tuple(uuid for uuid in allowed if gpus[uuid] in numbers)
            # If none matches, Slurm's numbers are not minor numbers. Then the cgroup decides, if it permits
            # no more GPUs than Slurm lists.
            return selected or (allowed if len(allowed) <= len(numbers) else ())
    return allowed


def can_open_nvidia(minor: int) -> bool:
    """Return whether the cgroup permits the GPU; True where that is unknown."""
    try:
        os.close(os.open(f"/dev/nvidia{minor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES)
    return True


def select_uuids(uuids: Sequence[str], selection: str | None) -> tuple[str, ...]:
    """Return the UUIDs that ``CUDA_VISIBLE_DEVICES`` selects, in its order, by the CUDA driver's rules.

    An entry is an index into `uuids` or a unique prefix of a UUID. As in CUDA, the first invalid entry ends
    the list, and a duplicate entry makes the selection empty.

    Parameters
    ----------
    uuids
        Every GPU or MIG instance, in NVML's order.
    selection
        The variable's value; None where it is unset, which selects every GPU.
    """
    if selection is None or selection.strip().lower() == "all":
        return tuple(uuids)
    selected: list[str] = []
    for entry in selection.split(","):
        uuid = _matching_uuid(uuids, entry.strip())
        if uuid is None:
            break
        if uuid in selected:
            return ()
        selected.append(uuid)
    return tuple(selected)


def _matching_uuid(uuids: Sequence[str], entry: str) -> str | None:
    if entry.isdecimal():
        return uuids[int(entry)] if int(entry) < len(uuids) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [uuid for uuid in uuids if uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


def _numbers(text: str) -> frozenset[int]:
    """Return the numbers in a list such as ``0,2-3``; Slurm writes numbers and ranges."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            found.update(range(int(first), min(int(last or first), int(first) + 1024) + 1))
    return frozenset(found)
