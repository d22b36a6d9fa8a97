"""Loading of anything that a run records, by name."""

import os
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gipfel_extension.cli.scored_run import resolve_recording
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.store.catalogue import load_run

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load"]


def load(
    run: str | os.PathLike[str] = "",
    *names: str,
    ranks: Collection[int] | int | None = None,
    gpus: Collection[str] | str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    fine: bool = False,
) -> "pa.Table":
    """Return metrics of a run by their names, as an Arrow table with a row for each value.

    Columns are ``time``, ``metric``, ``node``, ``device``, ``rank`` and ``value``; numpy has each by
    ``table["value"].to_numpy()``, pandas by ``table.to_pandas()``. ``gipfel catalogue`` lists the names;
    those of logged metrics are the program's own, ``*`` stands for any characters, ``"events"`` are the
    events.

    >>> load("alps-48812", "SM_ACTIVE", "train/loss", ranks=range(4))  # doctest: +SKIP

    Parameters
    ----------
    run
        A run folder or its name; by default this job's, else your newest.
    ranks, gpus
        Ranks, and UUIDs of GPUs; by default all.
    since, until
        Time range; a time without a zone is local time.
    fine
        Whether GPUs' samples are those of ten per second, where they still exist.

    Raises
    ------
    SourceError
        The run has nothing of this name, or can't be read.
    """
    if not names:
        raise SourceError("Nothing was named.", 'Write such as load("RUN", "SM_ACTIVE"); `gipfel catalogue`.')
    path = Path(run) if isinstance(run, os.PathLike) else resolve_recording(run)
    return load_run(
        path,
        names,
        ranks={ranks} if isinstance(ranks, int) else ranks,
        gpus={gpus} if isinstance(gpus, str) else gpus,
        since_ns=_nanoseconds(since),
        until_ns=_nanoseconds(until),
        fine=fine,
    )


def _nanoseconds(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1e9)
