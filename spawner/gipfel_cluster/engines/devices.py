"""Devices in a container: those that the EDF requests, their CDI names, and the GPU driver.

`Hardware.devices_for` returns an EDF's devices. Names come from the specifications of the Container Device
Interface (source: CDI Specification 1.1), whose hooks are not run: links beside a library replace them. The
user-space part of NVIDIA's driver must match the host's kernel, so it is never taken from the image.
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

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_SPECIFICATION_CHARACTERS = 1 << 20  # characters; NVIDIA's are about 30 kB
_MAX_DEPTH = 50  # levels; the specification has six
_MAX_LISTED = 10
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-zA-Z][\w.-]*[a-zA-Z0-9]/[a-zA-Z][\w.-]*=[\w.:-]+")
#: Without this library, the machine counts as having no driver.
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
_LDCONFIG_LINE = re.compile(r"\s*(\S+) \(([^)]*)\) => (/.*)")
_LDCONFIG_MACHINES = {"x86_64": "x86-64", "aarch64": "AArch64", "ppc64le": "64bit", "riscv64": "64bit"}
_LIBRARY = re.compile(r"lib[^/]*\.so(\.[^/]*)?")
_LDCONFIG_SECONDS = 10
_GPUS = "nvidia.com/gpu"
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_NO_DEVICES = frozenset(("", "void"))


@dataclass(frozen=True)
class ContainerDevices:
    """Devices, driver and variables of a container; ``devices`` is None for all devices of the host."""

    devices: tuple[PlannedMount, ...] | None = None
    driver: tuple[DriverFile, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DeviceEdits:
    """The CDI ``containerEdits`` of a device: nodes and files as pairs (host, container), variables."""

    nodes: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def ldconfig_output() -> str:
    """Return the output of ``ldconfig -p``, which lists the host's libraries; empty without ldconfig."""
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
    """The devices of one machine: its CDI specifications, shared libraries and device nodes."""

    cdi_directories: Sequence[str] = CDI_DIRECTORIES
    libraries: Callable[[], str] = ldconfig_output
    nodes: str = "/dev"

    def devices_for(self, edf: Edf) -> ContainerDevices:
        """Return the devices of an EDF's key ``devices``, without it all of the host's, and the GPU driver.

        Raises
        ------
        GipfelError
            The EDF names a device that this machine doesn't have.
        """
        driver_is_disabled = edf.env.get(_VISIBLE_DEVICES, "all") in _NO_DEVICES
        if not edf.devices:
            edits = None if driver_is_disabled else default_device(f"{_GPUS}=all", self.cdi_directories)
            driver = () if driver_is_disabled else self._driver(edits)
            return ContainerDevices(driver=driver)
        nodes: dict[str, str] = {}
        driver_by_file: dict[DriverFile, None] = {}
        environment: dict[str, str] = {}
        for device in edf.devices:
            edits = self._edits(device)
            nodes |= {path: host for host, path in edits.nodes}
            environment |= dict(edits.environment)
            files = () if driver_is_disabled else driver_files(edits.files)
            if device.startswith(f"{_GPUS}=") and not driver_is_disabled:
                files = files or self._driver(None)
            driver_by_file |= dict.fromkeys(files)
        # A specification sets it to "void" to switch off NVIDIA's own hook, which does not run here.
        environment.pop(_VISIBLE_DEVICES, None)
        devices = tuple(PlannedMount(host, path) for path, host in nodes.items())
        return ContainerDevices(
            devices=devices, driver=tuple(driver_by_file), environment=tuple(environment.items())
        )

    def _driver(self, edits: DeviceEdits | None) -> tuple[DriverFile, ...]:
        return driver_files(edits.files) if edits else host_driver(self.libraries())

    def _edits(self, device: str) -> DeviceEdits:
        if not is_cdi_name(device):
            host, _, path = device.partition(":")
            _check_node(host)
            return DeviceEdits(nodes=((host, path.partition(":")[0] or host),))
        edits = named_device(device, self.cdi_directories)
        if edits is None and device.startswith(f"{_GPUS}="):
            edits = self._gpu_nodes(device.partition("=")[2])
        if edits is None:
            raise GipfelError(
                f"The device {device!r} is in no specification in {' or '.join(self.cdi_directories)}.",
                "Remove it from 'devices', or ask the administrator to run 'nvidia-ctk cdi generate' here.",
            )
        return edits

    def _gpu_nodes(self, gpu: str) -> DeviceEdits | None:
        """Return the device nodes of one GPU or ``all`` and the common ones, for a machine without CDI."""
        found = sorted(str(path) for path in Path(self.nodes).glob("nvidia*") if not path.is_dir())
        found += sorted(str(path) for path in Path(self.nodes, "nvidia-caps").glob("*"))
        numbered = [path for path in found if path.removeprefix(f"{self.nodes}/nvidia").isdigit()]
        chosen = numbered if gpu == "all" else [path for path in numbered if path.endswith(f"nvidia{gpu}")]
        if not chosen:
            return None
        nodes = [path for path in found if path not in numbered or path in chosen]
        return DeviceEdits(nodes=tuple((path, path) for path in nodes))


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


def is_cdi_name(device: str) -> bool:
    """Return whether a device is a CDI name such as ``nvidia.com/gpu=all`` and not the path of a node."""
    return bool(_NAME.fullmatch(device))


def named_device(name: str, folders: Iterable[str] = CDI_DIRECTORIES) -> DeviceEdits | None:
    """Return a device's edits from the CDI specifications; None if no specification has its kind.

    Raises
    ------
    GipfelError
        The specifications of its kind do not list the device, or none has its kind and one can't be read.
    """
    kind, _, device_name = name.partition("=")
    known: dict[str, None] = {}
    unreadable: GipfelError | None = None
    for path in _specifications(folders):
        try:
            spec = _read(path)
            if spec.get("kind") != kind:
                continue
            devices = [each for each in _list(spec.get("devices")) if isinstance(each, dict)]
            for device in devices:
                if str(device.get("name")) == device_name:
                    # The specification's own edits apply to each of its devices.
                    return _edits(spec.get("containerEdits"), device.get("containerEdits"))
            known |= dict.fromkeys(f"{kind}={each.get('name')}" for each in devices)
        except (OSError, ValueError, RecursionError) as error:
            unreadable = unreadable or _unreadable(path, error)
    if unreadable:
        raise unreadable
    if known:
        more = ", …" if len(known) > _MAX_LISTED else ""
        raise GipfelError(
            f"This machine has no device {name!r}.",
            f"Choose one of {', '.join([*known][:_MAX_LISTED])}{more}.",
        )
    return None


def default_device(name: str, folders: Iterable[str] = CDI_DIRECTORIES) -> DeviceEdits | None:
    """Return the edits of a device that the EDF does not request; None if it is not available."""
    try:
        return named_device(name, folders)
    except GipfelError:
        return None


def _specifications(folders: Iterable[str]) -> list[Path]:
    files = (path for folder in folders for path in sorted(Path(folder).glob("*.*")))
    # os.path returns False in a directory without permission, where a Path would raise.
    return [path for path in files if path.suffix in {".json", ".yaml", ".yml"} and os.path.isfile(path)]  # noqa: PTH113


def _unreadable(path: Path, error: Exception) -> GipfelError:
    reason = error.strerror if isinstance(error, OSError) else error
    return GipfelError(
        f"The device specification {path} can't be read: {reason}.",
        "Generate it again with 'nvidia-ctk cdi generate'.",
    )


def _read(path: Path) -> Mapping[str, Any]:
    with path.open(encoding="utf-8") as file:
        text = file.read(_SPECIFICATION_CHARACTERS + 1)
    if len(text) > _SPECIFICATION_CHARACTERS:
        raise ValueError("it is larger than 1 MiB")
    content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    return content if isinstance(content, dict) else {}


def _yaml(text: str) -> object:
    import yaml  # noqa: PLC0415 - lazy: few specifications are YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                # Deeper nesting would crash the parser in C.
                raise ValueError("it is nested too deeply")
        return yaml.load(text, Loader=loader)  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _edits(*several: object) -> DeviceEdits:
    nodes: dict[str, str] = {}
    files: dict[str, str] = {}
    environment: dict[str, str] = {}
    for edits in several:
        if not isinstance(edits, dict):
            continue
        nodes |= _host_paths(edits.get("deviceNodes"), "path")
        files |= _host_paths(edits.get("mounts"), "containerPath")
        for line in _list(edits.get("env")):
            variable, _, value = str(line).partition("=")
            if not _VARIABLE.fullmatch(variable) or "\0" in value:
                raise ValueError(f"{line!r} sets no variable")
            environment[variable] = value
    return DeviceEdits(
        nodes=tuple((host, path) for path, host in nodes.items()),
        files=tuple((host, path) for path, host in files.items()),
        environment=tuple(environment.items()),
    )


def _host_paths(listed: object, key: str) -> dict[str, str]:
    """Return the path on the host of each listed path in the container, which has this key."""
    return {
        _path(each[key]): _path(each.get("hostPath") or each[key])
        for each in _list(listed)
        if isinstance(each, dict) and key in each
    }


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError(f"{value!r} is not an absolute path")
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def host_driver(
    output: str, *, machine: str = platform.machine(), which: Callable[[str], str | None] = shutil.which
) -> tuple[DriverFile, ...]:
    """Return the driver's libraries and programs; empty if this machine has no driver.

    Parameters
    ----------
    output
        The output of ``ldconfig -p``.
    """
    found: dict[str, str] = {}
    for line in output.splitlines():
        match = _LDCONFIG_LINE.fullmatch(line)
        if match and _LIBRARIES.fullmatch(match[1]) and _LDCONFIG_MACHINES.get(machine, "") in match[2]:
            path = os.path.realpath(match[3])
            if Path(path).is_file():
                found.setdefault(match[1], path)
    if _CUDA not in found:
        return ()
    programs = ((program, which(program)) for program in _PROGRAMS)
    return (
        *(DriverFile(path, links=_links(path)) for path in dict.fromkeys(found.values())),
        *(DriverFile(os.path.realpath(path), f"/usr/bin/{name}") for name, path in programs if path),
    )


def driver_files(files: Iterable[tuple[str, str]]) -> tuple[DriverFile, ...]:
    """Return the files of a device's specification; libraries go to the image's library directory."""
    return tuple(
        DriverFile(os.path.realpath(host), links=_links(os.path.realpath(host)))
        if _LIBRARY.fullmatch(os.path.basename(container)) and container.count("/") > 1  # noqa: PTH119
        else DriverFile(host, container)
        for host, container in files
        if os.path.exists(host)  # noqa: PTH110 - a Path raises without permission
    )


def _links(path: str) -> tuple[str, ...]:
    """Return the names of links to a library in its directory, which ldconfig and the installer created."""
    folder, name = os.path.split(path)
    stem = name.partition(".so")[0] + ".so"
    try:
        links = [each for each in os.scandir(folder) if each.name.startswith(stem) and each.is_symlink()]
    except OSError:
        return ()
    return tuple(sorted(each.name for each in links if os.path.realpath(each.path) == path))
