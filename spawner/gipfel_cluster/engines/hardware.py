"""What of a machine's hardware a container sees: the EDF's devices, and the driver of its GPUs."""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..edf.model import Edf
from ..model import GipfelError
from .cdi import FOLDERS, Edits, is_named, named_device, unasked_device
from .driver import driver_files, host_driver, listed_libraries
from .sandbox.plan import DriverFile, PlannedMount

_GPUS = "nvidia.com/gpu"
_SWITCH = "NVIDIA_VISIBLE_DEVICES"
_OFF = frozenset(("", "void"))


@dataclass(frozen=True)
class Given:
    """What a container gets; ``devices`` is None where it sees all of the host's."""

    devices: tuple[PlannedMount, ...] | None = None
    driver: tuple[DriverFile, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Hardware:
    """One machine: where it specifies devices, which libraries it has, where its nodes are."""

    cdi_folders: Sequence[str] = FOLDERS
    libraries: Callable[[], str] = listed_libraries
    nodes: str = "/dev"

    def given(self, edf: Edf) -> Given:
        """Decide for an EDF: with ``devices`` only these, without it all of the host's; the driver with both.

        Raises
        ------
        GipfelError
            The EDF names a device that this machine doesn't have.
        """
        switched_off = edf.env.get(_SWITCH, "all") in _OFF
        if not edf.devices:
            edits = None if switched_off else unasked_device(f"{_GPUS}=all", self.cdi_folders)
            driver = () if switched_off else self._driver(edits)
            return Given(driver=driver)
        nodes: dict[str, str] = {}
        driver_of: dict[DriverFile, None] = {}
        environment: dict[str, str] = {}
        for device in edf.devices:
            edits = self._edits(device)
            nodes |= {path: host for host, path in edits.nodes}
            environment |= dict(edits.environment)
            files = () if switched_off else driver_files(edits.files)
            if device.startswith(f"{_GPUS}=") and not switched_off:
                files = files or self._driver(None)
            driver_of |= dict.fromkeys(files)
        # A specification sets it to "void" for NVIDIA's own hook, which has nothing left to do then.
        environment.pop(_SWITCH, None)
        devices = tuple(PlannedMount(host, path) for path, host in nodes.items())
        return Given(devices=devices, driver=tuple(driver_of), environment=tuple(environment.items()))

    def _driver(self, edits: Edits | None) -> tuple[DriverFile, ...]:
        return driver_files(edits.files) if edits else host_driver(self.libraries())

    def _edits(self, device: str) -> Edits:
        if not is_named(device):
            host, _, path = device.partition(":")
            _check_node(host)
            return Edits(nodes=((host, path.partition(":")[0] or host),))
        edits = named_device(device, self.cdi_folders)
        if edits is None and device.startswith(f"{_GPUS}="):
            edits = self._gpu_nodes(device.partition("=")[2])
        if edits is None:
            raise GipfelError(
                f"The device {device!r} is in no specification in {' or '.join(self.cdi_folders)}.",
                "Take it out of 'devices', or ask for 'nvidia-ctk cdi generate' on this machine.",
            )
        return edits

    def _gpu_nodes(self, which: str) -> Edits | None:
        """NVIDIA's nodes where nothing specifies them: one GPU's or all, and those that every GPU needs."""
        found = sorted(str(path) for path in Path(self.nodes).glob("nvidia*") if not path.is_dir())
        found += sorted(str(path) for path in Path(self.nodes, "nvidia-caps").glob("*"))
        numbered = [path for path in found if path.removeprefix(f"{self.nodes}/nvidia").isdigit()]
        chosen = (
            numbered if which == "all" else [path for path in numbered if path.endswith(f"nvidia{which}")]
        )
        if not chosen:
            return None
        kept = [path for path in found if path not in numbered or path in chosen]
        return Edits(nodes=tuple((path, path) for path in kept))


def _check_node(path: str) -> None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a bad path is an OSError here
    except (OSError, ValueError) as error:
        raise GipfelError(
            f"The device {path!r} is not on this machine.", "Check 'devices' in the EDF."
        ) from error
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISDIR(mode)) or not path.startswith("/dev/"):
        raise GipfelError(
            f"{path!r} is no device.", "Give a path in /dev, or a name such as nvidia.com/gpu=all."
        )
