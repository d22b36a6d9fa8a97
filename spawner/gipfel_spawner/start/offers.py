"""Offers of a cluster to choose from: interfaces of a notebook server, and container engines.

Interfaces are JupyterLab, and Jupyter Notebook where the server's Python has it. Notebook 7 is an extension
of the same server, so a server has both, and the interface is the page that a user is taken to
(``JUPYTERHUB_DEFAULT_URL``).
"""

import asyncio
import importlib.metadata
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import engine_for
from gipfel_cluster.engines.choice import available_engine_names
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime.model import Description, read_description

from ..cluster.clusters import ClusterSettings
from ..form.options import OptionError
from .placement import ServerPlacement

Interface = Literal["", "lab", "notebook"]
#: Pages that a user is taken to.
INTERFACE_URLS = {"lab": "/lab", "notebook": "/tree"}
_NOTEBOOK = "notebook"
_FIRST_VERSION = 7
# The engine for EDFs without an image; it is always available and never a choice.
_HOST = "host"


def interface_environment(interface: Interface) -> dict[str, str]:
    """Return the server's variables for an interface; none for the site's default."""
    return {"JUPYTERHUB_DEFAULT_URL": INTERFACE_URLS[interface]} if interface else {}


async def check_interface(
    interface: Interface, placement: ServerPlacement, settings: ClusterSettings
) -> None:
    """Check that the servers of a cluster have an interface.

    Raises
    ------
    OptionError
        Jupyter Notebook is not installed for them.
    """
    if interface == "notebook" and not await cluster_has_notebook(placement, settings):
        raise OptionError(
            "Jupyter Notebook is not installed for servers of this hub.",
            "Choose JupyterLab, or ask the hub's administrators for it.",
            field="interface",
        )


async def cluster_has_notebook(placement: ServerPlacement, settings: ClusterSettings) -> bool:
    """Return whether every server that this user starts on a cluster has Jupyter Notebook."""
    try:
        python = await asyncio.to_thread(placement.python, settings)
    except GipfelError:
        # A start reports it: no unix account, or a runtime that can't be read.
        return False
    return await offers_notebook(settings, python)


async def offers_notebook(settings: ClusterSettings, python: str) -> bool:
    """Return whether every server of a cluster has Jupyter Notebook.

    In a container it must be in the runtime, without a container in the environment of ``python``, the
    interpreter of the job's part outside. An interpreter other than the hub's or the runtime's is unknown,
    so that it offers none.
    """
    return await asyncio.to_thread(_offers_notebook, settings.runtime, python)


def _offers_notebook(runtime: str, python: str) -> bool:
    try:
        description = _description(runtime, Path(runtime).stat().st_mtime_ns) if runtime else None
    except (GipfelError, OSError):
        # A start reports what is wrong with it.
        return False
    if description is not None:
        if not _is_new_enough(description.distributions.get(_NOTEBOOK, "")):
            return False
        if python == f"{description.prefix}/bin/python3":
            return True
    return python == sys.executable and _is_new_enough(_installed_version())


@lru_cache(maxsize=32)
def _description(runtime: str, _changed: int) -> Description:
    return read_description(Path(runtime))


def _installed_version() -> str:
    try:
        return importlib.metadata.version(_NOTEBOOK)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _is_new_enough(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isdecimal() and int(major) >= _FIRST_VERSION


async def offered_engines(
    default: str, others: Sequence[str], *, jobs_run_locally: bool
) -> tuple[tuple[str, ...], str]:
    """Return the container engines to choose from, and a line where the site's own can't run here.

    Parameters
    ----------
    default, others
        The site's default engine, listed first, and the engines that it adds.
    jobs_run_locally
        Whether jobs run on this machine, whose engines can then be examined.
    """
    if not jobs_run_locally:
        return tuple(dict.fromkeys((default, *others))), ""
    usable, missing = await asyncio.to_thread(_local_engines, default)
    names = (default, *(name for name in usable if name != _HOST and (not others or name in others)))
    problem = (
        f"Environments with an image can't start on this machine: {missing}"
        if missing and default != _HOST
        else ""
    )
    return tuple(dict.fromkeys(names)), problem


@cache
def _local_engines(default: str) -> tuple[tuple[str, ...], str]:
    """Return the engines that this machine can run, and why it can't run the default one."""
    try:
        missing = (
            engine_for(Edf(name="any", path=None, image="/any.sqsh"), default).unavailable_reason() or ""
        )
    except GipfelError as error:
        missing = str(error)
    return available_engine_names(), missing
