"""The GPUs and links that a plan is made for."""

from gipfel_cluster.model import Frozen, GipfelError

from ...saturation.ceilings import ceilings_of

#: Memory in GB (1e9 bytes) and dense bf16 tensor operations in 1e12/s, from NVIDIA's data sheets.
_GPUS: dict[str, tuple[float, float]] = {
    "A100-40": (40, 312),
    "A100": (80, 312),
    "H100": (80, 989),
    "H200": (141, 989),
    "GH200": (96, 989),
    "B200": (180, 2250),
    "GB200": (186, 2500),
    "V100": (32, 125),
    "L40S": (48, 362),
}
MACHINES = tuple(_GPUS)

_DEFAULT_NODE = {"GH200": 4, "GB200": 4}
#: What a training step reaches of a GPU's peak, where communication costs nothing; large models on A100
#: reached 0.52 with it (Narayanan et al. 2021, arXiv:2104.04473, table 1).
_REACHED = 0.5


class Machine(Frozen):
    """What a plan is made for: memory in bytes, operations and bytes per second, in one direction.

    ``node_bandwidth`` is that of one GPU inside its node, ``network_bandwidth`` of one GPU between nodes,
    ``storage_bandwidth`` of all GPUs together. ``failure_hours`` is the mean time between failures of a node.
    """

    name: str
    memory: float
    operations: float
    gpus_per_node: int
    node_bandwidth: float
    network_bandwidth: float
    storage_bandwidth: float = 10e9
    failure_hours: float = 10_000.0
    reached: float = _REACHED


def machine_of(
    gpu: str,
    *,
    gpus_per_node: int = 0,
    network_gbps: float = 0.0,
    storage_gbps: float = 0.0,
    memory_gb: float = 0.0,
) -> Machine:
    """The machine of a GPU model; rates in GB/s, 0 for the usual ones.

    Raises
    ------
    GipfelError
        The model is not known.
    """
    name = next((known for known in _GPUS if known.lower() == gpu.lower()), "")
    if not name:
        raise GipfelError(f"The GPU {gpu!r} is not known.", f"Choose one of {', '.join(MACHINES)}.")
    memory, operations = _GPUS[name]
    links = ceilings_of(name).links
    return Machine(
        name=name,
        memory=(memory_gb or memory) * 1e9,
        operations=operations * 1e12,
        gpus_per_node=gpus_per_node or _DEFAULT_NODE.get(name, 8),
        node_bandwidth=links.get("nvlink") or links.get("pcie") or 25e9,
        # 200 Gbit/s for each GPU: Slingshot 11 on Alps, and InfiniBand HDR.
        network_bandwidth=(network_gbps or 25.0) * 1e9,
        storage_bandwidth=(storage_gbps or 10.0) * 1e9,
    )
