"""``com.hooks.aws_ofi_nccl``: variables of NCCL and RCCL for the node's network; no plugin is installed.

The presets are versioned, each with its source. ``NCCL_NET`` is in none of them: it makes a run fail where
the image has no plugin, and without it the library takes the plugin that it finds. ``NCCL_SOCKET_IFNAME``
neither: names of interfaces are a site's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..engines.protocol import ContainerRequest
from .protocol import HookContext, HookResult, Network, Node

Library = Literal["nccl", "rccl"]
_BOTH: tuple[Library, ...] = ("nccl", "rccl")
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_NCCL_MANUAL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_PLUGIN = "the image must bring libfabric for Slingshot and the plugin, or the network is slow."
_SHOWN = ("com.hooks.aws_ofi_nccl: that is for this machine's network; the job's node may have another one.",)
_STACK_VERSION = "com.hooks.netstack.version"


@dataclass(frozen=True)
class Preset:
    """Variables for a library on a network, from one release of the site's network stack on.

    ``since`` is year, month and number, all zero for any release; ``{devices}`` in a value means the
    node's InfiniBand devices.
    """

    name: str
    libraries: tuple[Library, ...]
    network: Network
    source: str
    remark: str
    variables: Mapping[str, str]
    since: tuple[int, int, int] = (0, 0, 0)


#: Of those for one library and network the newest comes first.
PRESETS = (
    Preset(
        "nccl-cxi-26.06.1", ("nccl",), "cxi", since=(26, 6, 1), remark=_PLUGIN,
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
        "nccl-cxi", ("nccl",), "cxi", remark=_PLUGIN,
        source="https://docs.cscs.ch/software/communication/nccl/, environment for use without the hook",
        variables={
            "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_CROSS_NIC": "1", "NCCL_PROTO": "^LL128",
            "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_DEFAULT_TX_SIZE": "32768",
            "FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_CXI_RX_MATCH_MODE": "software",
            "FI_MR_CACHE_MONITOR": "userfaultfd",
        },
    ),
    Preset(
        "rccl-cxi", ("rccl",), "cxi", remark=_PLUGIN,
        source="https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html, RCCL network plugin",
        variables={
            "NCCL_CROSS_NIC": "1", "NCCL_NET_GDR_LEVEL": "PHB", "HSA_FORCE_FINE_GRAIN_PCIE": "1",
            # The page sets kdreg2, a kernel module that not every node has, and calls userfaultfd as safe.
            "FI_MR_CACHE_MONITOR": "userfaultfd", "FI_CXI_DISABLE_HOST_REGISTER": "1",
            "FI_CXI_DEFAULT_CQ_SIZE": "131072", "FI_CXI_RDZV_PROTO": "alt_read",
            "FI_CXI_RDZV_EAGER_SIZE": "0", "FI_CXI_RDZV_THRESHOLD": "0", "FI_CXI_RDZV_GET_MIN": "0",
            "FI_CXI_DEFAULT_TX_SIZE": "2048", "FI_CXI_RX_MATCH_MODE": "hybrid",
        },
    ),
    Preset(
        "infiniband", _BOTH, "infiniband", source=f"{_NCCL_MANUAL}#nccl-ib-hca",
        remark="InfiniBand is used where the image has libibverbs.",
        # Without it an Ethernet device of the same kind, for storage, is taken for one of the network's.
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
    """Choose the newest preset that a release of the network stack has.

    Parameters
    ----------
    version
        Such as ``26.06.1``; any other text, such as ``latest``, means the newest.
    """
    match = _VERSION.fullmatch(version)
    release = tuple(int(part or 0) for part in match.groups()) if match else (9999, 0, 0)
    fitting = (each for each in PRESETS if library in each.libraries and network == each.network)
    return next(each for each in fitting if each.since <= release)


class AwsOfiNccl:
    """Sets the environment for the network that the node has; the plugin must be in the image."""

    name = "aws_ofi_nccl"

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],
        where: HookContext,  # noqa: ARG002
        node: Node,
    ) -> HookResult:
        """Offer the preset's variables: the image's and the EDF's own win."""
        library: Library = "rccl" if settings.get("variant", "").startswith("rocm") else "nccl"
        preset = choose_preset(library, node.network(), request.edf.annotations.get(_STACK_VERSION, ""))
        own = {*request.environment, *request.edf.env}
        devices = ",".join(node.infiniband())
        added = {
            name: value.replace("{devices}", devices)
            for name, value in preset.variables.items()
            if name not in own
        }
        kept = sorted(set(preset.variables) - set(added))
        return HookResult(
            request=request.model_copy(update={"environment": {**request.environment, **added}}),
            notes=(*_notes(preset, added, kept), *(_SHOWN if request.only_shown else ())),
        )


def _notes(preset: Preset, added: Mapping[str, str], kept: list[str]) -> list[str]:
    notes = []
    if added:
        words = " ".join(f"{name}={value}" for name, value in sorted(added.items()))
        notes.append(f"com.hooks.aws_ofi_nccl: preset {preset.name} sets {words}.")
    if kept:
        notes.append(f"com.hooks.aws_ofi_nccl: {', '.join(kept)} are set by you and stay.")
    notes.append(f"com.hooks.aws_ofi_nccl: {preset.remark}")
    return notes
