"""Which container engines users may choose from."""

import asyncio
from collections.abc import Sequence
from functools import cache

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import engine_for
from gipfel_cluster.engines.choice import engine_names_here
from gipfel_cluster.model import GipfelError

# It runs no image, and each EDF without one anyway.
_HOST = "host"


async def offered_engines(site: str, more: Sequence[str], *, here: bool) -> tuple[tuple[str, ...], str]:
    """The names, the site's own first, and a line where that one can't run on this machine.

    Parameters
    ----------
    site, more
        The site's engine, and those that it adds.
    here
        Whether jobs run on this machine, which then can be looked at; compute nodes can't.
    """
    if not here:
        return tuple(dict.fromkeys((site, *more))), ""
    usable, absent = await asyncio.to_thread(_look_around, site)
    names = (site, *(name for name in usable if name != _HOST and (not more or name in more)))
    problem = f"Environments with an image can't start here: {absent}" if absent and site != _HOST else ""
    return tuple(dict.fromkeys(names)), problem


@cache
def _look_around(site: str) -> tuple[tuple[str, ...], str]:
    """What this machine can run, and why not the site's engine; asked once, since it seldom changes."""
    try:
        absent = engine_for(Edf(name="any", path=None, image="/any.sqsh"), site).missing() or ""
    except GipfelError as error:
        absent = str(error)
    return engine_names_here(), absent
