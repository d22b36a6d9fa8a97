"""Where an image's loader finds libraries, and the host's GPU driver put there.

``ldconfig`` is not run: a library in a folder that the loader searches anyway is found by its name.
"""

import os
import posixpath

from .plan import PlannedMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .plan import DriverFile
    from .rootfs import Layers

#: In the order in which they are tried; the first that holds the C library is one that the loader searches.
_FOLDERS = ("/usr/lib/{0}-linux-gnu", "/lib/{0}-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib")
_C_LIBRARY = "libc.so.6"
_SWITCH = "NVIDIA_VISIBLE_DEVICES"
_OFF = frozenset(("", "void"))


def driver_wanted(environment: "Mapping[str, str]") -> bool:
    """Tell whether the container's variables leave the driver in. Source: NVIDIA's container toolkit."""
    return environment.get(_SWITCH, "all") not in _OFF


def place_driver(layers: "Layers", files: "Iterable[DriverFile]") -> list[PlannedMount]:
    """Make mount points and links for the driver's files; return the mounts, all of them read-only."""
    folder = ""
    mounts = []
    for file in files:
        destination = file.destination
        if not destination:
            # Without a C library nothing of the image searches; a mounted runtime is of the host's kind.
            folder = folder or _library_folder(layers) or posixpath.dirname(file.source)
            destination = f"{folder}/{posixpath.basename(file.source)}"
        at = layers.folder(destination) if os.path.isdir(file.source) else layers.file(destination)
        mounts.append(PlannedMount(file.source, at, read_only=True))
        for link in file.links:
            layers.link(posixpath.join(posixpath.dirname(destination), link), posixpath.basename(at))
    return mounts


def _library_folder(layers: "Layers") -> str:
    machine = os.uname().machine
    folders = (folder.format(machine) for folder in _FOLDERS)
    return next((folder for folder in folders if layers.holds(f"{folder}/{_C_LIBRARY}")), "")
