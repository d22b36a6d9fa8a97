"""``com.hooks.dcgm`` and ``com.hooks.aws_ofi_nccl``: libraries and variables for DCGM, NCCL and RCCL."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..edf.model import Mount
from ..engines.protocol import ContainerRequest
from .protocol import HookContext, HookResult, Network, Node

#: Directory for libdcgm in the container. In one of the image's directories it could hide a file, or not be
#: found.
MOUNT_DIRECTORY = "/opt/gipfel/dcgm"

#: The default socket and port of ``nv-hostengine``. Source: DCGM documentation, nv-hostengine -d and -p.
SOCKET, PORT = "/tmp/nv-hostengine", 5555  # noqa: S108 - NVIDIA's choice

_LIBRARY = re.compile(r"libdcgm\.so(\.\d+)?")
_SEARCH_PATH = "LD_LIBRARY_PATH"
Library = Literal["nccl", "rccl"]
_BOTH: tuple[Library, ...] = ("nccl", "rccl")
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_NCCL_MANUAL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_PLUGIN_REMARK = "the image must contain libfabric for Slingshot and the plugin, or the network is slow."
_RENDERED_NOTE = (
    "com.hooks.aws_ofi_nccl: that is for this machine's network; the job's node may have another one.",
)
_STACK_VERSION = "com.hooks.netstack.version"


class Dcgm:
    """Mounts the host's ``libdcgm`` and the socket of its ``nv-hostengine`` into a container."""

    name = "dcgm"

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],  # noqa: ARG002
        context: HookContext,
        node: Node,
    ) -> HookResult:
        """Add mounts for the library and the socket; a missing one is a note."""
        notes: list[str] = []
        mounts: list[Mount] = []
        environment = dict(request.environment)
        libraries = {name: path for name, path in node.libraries().items() if _LIBRARY.fullmatch(name)}
        is_container = context.engine != "host"
        if not libraries:
            notes.append("com.hooks.dcgm: the node has no libdcgm.so, so the image must contain one.")
        elif is_container:
            mounts += [
                Mount(source=path, destination=f"{MOUNT_DIRECTORY}/{name}", flags=("ro",))
                for name, path in sorted(libraries.items())
            ]
            environment[_SEARCH_PATH] = ":".join(
                filter(None, [MOUNT_DIRECTORY, environment.get(_SEARCH_PATH, "")])
            )
            if request.edf.env.get(_SEARCH_PATH):
                notes.append(
                    f"com.hooks.dcgm: the EDF sets {_SEARCH_PATH}; add {MOUNT_DIRECTORY} to it for libdcgm."
                )
        if node.is_socket(SOCKET):
            mounts += [Mount(source=SOCKET, destination=SOCKET)] if is_container else []
        elif not node.listens(PORT):
            notes.append(f"com.hooks.dcgm: no nv-hostengine runs on the node ({SOCKET}, port {PORT}).")
        update = {"mounts": (*request.mounts, *mounts), "environment": environment}
        return HookResult(request=request.model_copy(update=update), notes=tuple(notes))


@dataclass(frozen=True)
class Preset:
    """Variables for a library on a network; valid since a release of the site's network stack.

    ``since`` is year, month and number of the release, all zero for any; ``source`` is where the variables
    are documented, and ``remark`` ends the note to the user. ``{devices}`` in a value is replaced by the
    node's InfiniBand devices.
    """

    name: str
    libraries: tuple[Library, ...]
    network: Network
    source: str
    remark: str
    variables: Mapping[str, str]
    since: tuple[int, int, int] = (0, 0, 0)


#: Presets for the same library and network are sorted from the newest to the oldest.
PRESETS = (
    Preset(
        "nccl-cxi-26.06.1", ("nccl",), "cxi", since=(26, 6, 1), remark=_PLUGIN_REMARK,
        source="CSCS, Container Engine documentation, AWS OFI NCCL hook, environment since v26.06.1",
        variables={
            "CUDA_CACHE_DISABLE": "1", "NCCL_CROSS_NIC": "0", "NCCL_PXN_DISABLE": "1",
            "NCCL_P2P_LEVEL": "NVL", "NCCL_NET_GDR_C2C": "1", "NCCL_NET_GDR_READ": "1",
            "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_PROTO": "^LL128", "NCCL_NCHANNELS_PER_NET_PEER": "4",
            "FI_CXI_RDZV_PROTO": "alt_read", "FI_CXI_RDZV_EAGER_SIZE": "0", "FI_CXI_RDZV_GET_MIN": "0",
            "FI_CXI_RDZV_THRESHOLD": "0", "FI_MR_CACHE_MAX_SIZE": "-1", "FI_MR_CACHE_MAX_COUNT": "524288",
            "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD": "16777216", "FI_CXI_DEFAULT_CQ_SIZE": "131072",
            "FI_CXI_DEFAULT_TX_SIZE": "16384", "FI_CXI_DISABLE_HOST_REGISTER": "1",
            "FI_CXI_RX_MATCH_MODE": "software", "FI_MR_CACHE_MONITOR": "userfaultfd",
        },
    ),
    Preset(
        "nccl-cxi", ("nccl",), "cxi", remark=_PLUGIN_REMARK,
        source="https://docs.cscs.ch/software/communication/nccl/, environment for use without the hook",
        variables={
            "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_CROSS_NIC": "1", "NCCL_PROTO": "^LL128",
            "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_DEFAULT_TX_SIZE": "32768",
            "FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_CXI_RX_MATCH_MODE": "software",
            "FI_MR_CACHE_MONITOR": "userfaultfd",
        },
    ),
    Preset(
        "rccl-cxi", ("rccl",), "cxi", remark=_PLUGIN_REMARK,
        source="https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html, RCCL network plugin",
        variables={
            "NCCL_CROSS_NIC": "1", "NCCL_NET_GDR_LEVEL": "PHB", "HSA_FORCE_FINE_GRAIN_PCIE": "1",
            # The page sets kdreg2, a kernel module that not every node has; it says userfaultfd is as safe.
            "FI_MR_CACHE_MONITOR": "userfaultfd", "FI_CXI_DISABLE_HOST_REGISTER": "1",
            "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_RDZV_PROTO": "alt_read",
            "FI_CXI_RDZV_EAGER_SIZE": "0", "FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_GET_MIN": "0",
            "FI_CXI_DEFAULT_TX_SIZE": "2048", "FI_CXI_RX_MATCH_MODE": "hybrid",
        },
    ),
    Preset(
        "infiniband", _BOTH, "infiniband", source=f"{_NCCL_MANUAL}#nccl-ib-hca",
        remark="InfiniBand is used where the image has libibverbs.",
        # Without it NCCL may use a RoCE device of the storage network.
        variables={"NCCL_IB_HCA": "={devices}"},
    ),
    Preset(
        "tcp-100g", _BOTH, "tcp-100g", source=f"{_NCCL_MANUAL}#nccl-socket-nthreads",
        remark="the node has neither Slingshot nor InfiniBand, so TCP is used.",
        variables={"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    ),
    Preset(
        "tcp", _BOTH, "tcp", source=f"{_NCCL_MANUAL}: the defaults are for such a network",
        remark="the node has neither Slingshot nor InfiniBand, so TCP is used.",
        variables={},
    ),
)  # fmt: skip


def choose_preset(library: Library, network: Network, version: str = "") -> Preset:
    """Return the newest preset for a release of the network stack.

    Parameters
    ----------
    version
        The release, such as ``26.06.1``; any other text, such as ``latest``, means the newest.
    """
    match = _VERSION.fullmatch(version)
    release = tuple(int(part or 0) for part in match.groups()) if match else (9999, 0, 0)
    fitting = (each for each in PRESETS if library in each.libraries and network == each.network)
    return next(each for each in fitting if each.since <= release)


class AwsOfiNccl:
    """Sets variables of NCCL or RCCL for the node's network; the plugin itself must be in the image."""

    name = "aws_ofi_nccl"

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],
        context: HookContext,  # noqa: ARG002
        node: Node,
    ) -> HookResult:
        """Add the preset's variables, except those that the request or the EDF sets."""
        library: Library = "rccl" if settings.get("variant", "").startswith("rocm") else "nccl"
        preset = choose_preset(library, node.network(), request.edf.annotations.get(_STACK_VERSION, ""))
        already_set = {*request.environment, *request.edf.env}
        devices = ",".join(node.infiniband())
        added = {
            name: value.replace("{devices}", devices)
            for name, value in preset.variables.items()
            if name not in already_set
        }
        unchanged = sorted(set(preset.variables) - set(added))
        return HookResult(
            request=request.model_copy(update={"environment": {**request.environment, **added}}),
            notes=(*_notes(preset, added, unchanged), *(_RENDERED_NOTE if request.render_only else ())),
        )


def _notes(preset: Preset, added: Mapping[str, str], unchanged: list[str]) -> list[str]:
    notes = []
    if added:
        assignments = " ".join(f"{name}={value}" for name, value in sorted(added.items()))
        notes.append(f"com.hooks.aws_ofi_nccl: preset {preset.name} sets {assignments}.")
    if unchanged:
        notes.append(f"com.hooks.aws_ofi_nccl: {', '.join(unchanged)} are set by you and not changed.")
    notes.append(f"com.hooks.aws_ofi_nccl: {preset.remark}")
    return notes
