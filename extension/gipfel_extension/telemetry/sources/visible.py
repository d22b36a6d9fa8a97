"""Which GPUs ``CUDA_VISIBLE_DEVICES`` leaves to a job, by the rules of the CUDA driver."""

from collections.abc import Sequence


def visible(uuids: Sequence[str], selection: str | None) -> tuple[str, ...]:
    """The UUIDs that a selection names, in its order.

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
