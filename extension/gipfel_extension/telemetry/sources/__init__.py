"""Sources of samples, by the names that people give to ``--source``."""

from collections.abc import Mapping
from pathlib import Path

from ..sample import SourceError
from .protocol import AbsentSource, Clock, Source, SystemClock

__all__ = ["AbsentSource", "Clock", "Source", "SourceError", "SystemClock", "open_source"]


def open_source(
    spec: str,
    *,
    interval: float,
    root_pid: int | None,
    environment: Mapping[str, str],
    clock: Clock | None = None,
) -> Source:
    """Open a source by name.

    Parameters
    ----------
    spec
        ``nvml``, ``host``, ``auto`` (``nvml`` where the job has a GPU, else nothing), ``replay:FILE`` or
        ``synthetic:NAME``.
    interval
        Seconds between two reads.
    root_pid
        The process whose tree is the job; None for this process.
    environment
        ``CUDA_VISIBLE_DEVICES`` names the job's GPUs, ``GIPFEL_NODE`` this node.

    Raises
    ------
    SourceError
        No such source, or nothing for it on this machine.
    """
    # Each source imports what it needs, so that a recorder starts with no more than it reads.
    clock = clock or SystemClock()
    kind, _, argument = spec.partition(":")
    if kind == "host" and not argument:
        from .host import HostSource  # noqa: PLC0415

        return HostSource(root_pid, environment=environment, clock=clock)
    if kind in ("nvml", "auto") and not argument:
        return _open_nvml(spec, interval=interval, environment=environment, clock=clock)
    if kind == "synthetic":
        from .synthetic import SyntheticSource  # noqa: PLC0415

        return SyntheticSource(argument, clock=clock)
    if kind == "replay" and argument:
        from .replay import ReplaySource  # noqa: PLC0415

        return ReplaySource(Path(argument), clock=clock)
    raise SourceError(
        f"There is no source {spec!r}.",
        "Use auto, nvml, host, replay:FILE or synthetic:training, idle or starved.",
    )


def _open_nvml(spec: str, *, interval: float, environment: Mapping[str, str], clock: Clock) -> Source:
    from .nvml import NvmlSource  # noqa: PLC0415

    try:
        return NvmlSource(environment=environment, clock=clock, interval=interval)
    except SourceError:
        if spec == "auto":
            return AbsentSource("nvml")
        raise
