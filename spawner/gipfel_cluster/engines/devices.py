"""Devices of a machine in a container: the EDF's devices, their CDI names, and the driver of the GPUs.

`Hardware.given` decides for an EDF. Names come from the specifications of the Container Device Interface
(source: CDI Specification 1.1), whose hooks are not run: links beside a library do what they would do. The
user-space part of NVIDIA's driver belongs to the machine's kernel and to no image.
"""

import json
import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..edf.model import Edf
from ..model import GipfelError
from .sandbox.plan import DriverFile, PlannedMount

FOLDERS = ("/etc/cdi", "/var/run/cdi")
_SPECIFICATION_CHARACTERS = 1 << 20  # characters; NVIDIA's are about 30 kB
_DEEPEST = 50  # levels; the specification has six
_SHOWN = 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-zA-Z][\w.-]*[a-zA-Z0-9]/[a-zA-Z][\w.-]*=[\w.:-]+")
#: Without it there is no driver.
_CUDA = "libcuda.so.1"
#: Libraries for computing, for tools and for video. Source: libnvidia-container, ``nvc_info.c``.
_LIBRARIES = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|vdpau_nvidia|nvidia-(ml|cfg|nscq|opencl|gpucomp|ptxjitcompiler|fatbinaryloader"
    r"|allocator|compiler|nvvm|nvvm70|pkcs11|pkcs11-openssl3|encode|opticalflow|sandboxutils|tileiras))\.so\.[\d.]+"
)
_PROGRAMS = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
)
_LISTED = re.compile(r"\s*(\S+) \(([^)]*)\) => (/.*)")
_LISTED_MACHINES = {"x86_64": "x86-64", "aarch64": "AArch64", "ppc64le": "64bit", "riscv64": "64bit"}
_LIBRARY = re.compile(r"lib[^/]*\.so(\.[^/]*)?")
_LDCONFIG_SECONDS = 10
_GPUS = "nvidia.com/gpu"
_SWITCH = "NVIDIA_VISIBLE_DEVICES"
_OFF = frozenset(("", "void"))


@dataclass(frozen=True)
class ContainerDevices:
    """Devices, driver and variables of a container; ``devices`` is None where it sees all of the host's."""

    devices: tuple[PlannedMount, ...] | None = None
    driver: tuple[DriverFile, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Edits:
    """Additions of a device to a container: nodes and files as pairs (host, container), variables."""

    nodes: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def listed_libraries() -> str:
    """Return the libraries that the host's loader knows, as ``ldconfig -p`` does; empty without ldconfig."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return ""
    try:
        done = subprocess.run((program, "-p"), capture_output=True, timeout=_LDCONFIG_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="surrogateescape")


@dataclass(frozen=True)
class Hardware:
    """One machine: where it specifies devices, which libraries it has, where its nodes are."""

    cdi_folders: Sequence[str] = FOLDERS
    libraries: Callable[[], str] = listed_libraries
    nodes: str = "/dev"

    def given(self, edf: Edf) -> ContainerDevices:
        """Decide for an EDF: with ``devices`` only these, without it all of the host's; the driver with both.

        Raises
        ------
        GipfelError
            The EDF names a device that this machine doesn't have.
        """
        switched_off = edf.env.get(_SWITCH, "all") in _OFF
        if not edf.devices:
            edits = None if switched_off else default_device(f"{_GPUS}=all", self.cdi_folders)
            driver = () if switched_off else self._driver(edits)
            return ContainerDevices(driver=driver)
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
        return ContainerDevices(
            devices=devices, driver=tuple(driver_of), environment=tuple(environment.items())
        )

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
        """Return NVIDIA's nodes where nothing specifies them: of one GPU or all, and the common ones."""
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
            f"{path!r} is not a device.", "Give a path in /dev, or a name such as nvidia.com/gpu=all."
        )


def is_named(device: str) -> bool:
    """Return whether it is a name such as ``nvidia.com/gpu=all``, not the path of a node."""
    return bool(_NAME.fullmatch(device))


def named_device(name: str, folders: Iterable[str] = FOLDERS) -> Edits | None:
    """Look a device up in the specifications; None where no specification is of its kind.

    Raises
    ------
    GipfelError
        There is one of its kind, and it knows no such device; or it is in none, and one can't be read.
    """
    kind, _, wanted = name.partition("=")
    known: dict[str, None] = {}
    unreadable: GipfelError | None = None
    for path in _specifications(folders):
        try:
            spec = _read(path)
            if spec.get("kind") != kind:
                continue
            devices = [each for each in _list(spec.get("devices")) if isinstance(each, dict)]
            for device in devices:
                if str(device.get("name")) == wanted:
                    # What the whole specification adds comes once, whatever the device.
                    return _edits(spec.get("containerEdits"), device.get("containerEdits"))
            known |= dict.fromkeys(f"{kind}={each.get('name')}" for each in devices)
        except (OSError, ValueError, RecursionError) as error:
            unreadable = unreadable or _unreadable(path, error)
    if unreadable:
        raise unreadable
    if known:
        more = ", …" if len(known) > _SHOWN else ""
        raise GipfelError(
            f"This machine has no device {name!r}.", f"Choose one of {', '.join([*known][:_SHOWN])}{more}."
        )
    return None


def default_device(name: str, folders: Iterable[str] = FOLDERS) -> Edits | None:
    """Look up a device that no EDF asks for: None where it can't be had."""
    try:
        return named_device(name, folders)
    except GipfelError:
        return None


def _specifications(folders: Iterable[str]) -> list[Path]:
    files = (path for folder in folders for path in sorted(Path(folder).glob("*.*")))
    # os.path returns False where a Path would raise: in a directory that others may not enter.
    return [path for path in files if path.suffix in {".json", ".yaml", ".yml"} and os.path.isfile(path)]  # noqa: PTH113


def _unreadable(path: Path, error: Exception) -> GipfelError:
    why = error.strerror if isinstance(error, OSError) else error
    return GipfelError(
        f"The device specification {path} can't be read: {why}.",
        "Make it again with 'nvidia-ctk cdi generate'.",
    )


def _read(path: Path) -> Mapping[str, Any]:
    with path.open(encoding="utf-8") as file:
        text = file.read(_SPECIFICATION_CHARACTERS + 1)
    if len(text) > _SPECIFICATION_CHARACTERS:
        raise ValueError("it is larger than 1 MiB")
    content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    return content if isinstance(content, dict) else {}


def _yaml(text: str) -> object:
    import yaml  # noqa: PLC0415 - only where a specification is written in it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                # The parser in C would end the process.
                raise ValueError("it is nested too deeply")
        return yaml.load(text, Loader=loader)  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _edits(*several: object) -> Edits:
    nodes: dict[str, str] = {}
    files: dict[str, str] = {}
    environment: dict[str, str] = {}
    for edits in several:
        if not isinstance(edits, dict):
            continue
        for node in _list(edits.get("deviceNodes")):
            if isinstance(node, dict) and "path" in node:
                nodes[_path(node["path"])] = _path(node.get("hostPath") or node["path"])
        for mount in _list(edits.get("mounts")):
            if isinstance(mount, dict) and "containerPath" in mount:
                files[_path(mount["containerPath"])] = _path(mount.get("hostPath") or mount["containerPath"])
        for line in _list(edits.get("env")):
            variable, _, value = str(line).partition("=")
            if not _VARIABLE.fullmatch(variable) or "\0" in value:
                raise ValueError(f"{line!r} sets no variable")
            environment[variable] = value
    return Edits(
        nodes=tuple((host, path) for path, host in nodes.items()),
        files=tuple((host, path) for path, host in files.items()),
        environment=tuple(environment.items()),
    )


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError(f"{value!r} is not an absolute path")
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def host_driver(
    listed: str, *, machine: str = platform.machine(), which: Callable[[str], str | None] = shutil.which
) -> tuple[DriverFile, ...]:
    """Find the driver's libraries and programs; nothing where this machine has no driver.

    Parameters
    ----------
    listed
        What `listed_libraries` gives.
    """
    found: dict[str, None] = {}
    names: set[str] = set()
    for line in listed.splitlines():
        match = _LISTED.fullmatch(line)
        if match and _LIBRARIES.fullmatch(match[1]) and _LISTED_MACHINES.get(machine, "") in match[2]:
            path = os.path.realpath(match[3])
            if match[1] not in names and Path(path).is_file():
                found[path] = None
                names.add(match[1])
    if _CUDA not in names:
        return ()
    programs = ((program, which(program)) for program in _PROGRAMS)
    return (
        *(DriverFile(path, links=_links(path)) for path in found),
        *(DriverFile(os.path.realpath(path), f"/usr/bin/{name}") for name, path in programs if path),
    )


def driver_files(files: Iterable[tuple[str, str]]) -> tuple[DriverFile, ...]:
    """Take the files of a device's specification: libraries go where the image keeps its own."""
    return tuple(
        DriverFile(os.path.realpath(host), links=_links(os.path.realpath(host)))
        if _LIBRARY.fullmatch(os.path.basename(container)) and container.count("/") > 1  # noqa: PTH119
        else DriverFile(host, container)
        for host, container in files
        if os.path.exists(host)  # noqa: PTH110 - a Path raises where others may not look
    )


def _links(path: str) -> tuple[str, ...]:
    """Return the links to a library beside it, which ldconfig and the driver's installer made."""
    folder, name = os.path.split(path)
    stem = name.partition(".so")[0] + ".so"
    try:
        beside = [each for each in os.scandir(folder) if each.name.startswith(stem) and each.is_symlink()]
    except OSError:
        return ()
    return tuple(sorted(each.name for each in beside if os.path.realpath(each.path) == path))
