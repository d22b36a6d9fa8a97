"""The line before a partition: who is before whom; pure."""

from collections.abc import Mapping

from .slurm_reasons import can_never_start

#: squeue's fields for `read_line`; asked with ``--sort=-p,i``, as Slurm looks at jobs.
LINE_FIELDS = ",".join(f"{field}:|" for field in ("JobID", "Partition", "Reason"))
_NOT_IN_LINE = frozenset({"Dependency", "BeginTime", "Reservation"})


def read_line(output: str) -> Mapping[str, int]:
    """Each waiting job's place in its partition's line, from 1, by Slurm's order of priority.

    A job that is held or waits for something else than nodes is in no line. A small job may start before
    one that is before it, where it delays nobody (backfill).
    """
    places: dict[str, int] = {}
    before: dict[str, int] = {}
    for row in output.splitlines():
        fields = [field.strip() for field in row.split("|")]
        if len(fields) < 3:
            continue
        job_id, partitions, reason = fields[:3]
        if reason in _NOT_IN_LINE or can_never_start(reason):
            continue
        # A job that names several partitions stands in each of their lines; its place is its best one.
        names = partitions.split(",")
        places[job_id] = min(before.get(name, 0) for name in names) + 1
        for name in names:
            before[name] = before.get(name, 0) + 1
    return places
