"""Detection of a node's network, and the variables of NCCL and RCCL for it."""

from pathlib import Path

import pytest
from test_hooks_apply import QuietNode

from gipfel_cluster.edf.model import Edf
from gipfel_cluster.engines.protocol import ContainerRequest
from gipfel_cluster.hooks import HookResult, apply_hooks
from gipfel_cluster.hooks.libraries import PRESETS, choose_preset
from gipfel_cluster.hooks.protocol import Network, Node


def hooked(
    network: Network,
    annotations: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    **host: str,
) -> HookResult:
    asked = {"com.hooks.aws_ofi_nccl.enabled": "true", **(annotations or {})}
    edf = Edf(name="a", path=None, image="/a.sqsh", annotations=asked, env=env or {})
    request = ContainerRequest(edf=edf, command=("true",), scratch="/s", environment=host)
    return apply_hooks(request, engine="bubblewrap", runtime=None, node=QuietNode(network))


@pytest.mark.parametrize(
    ("variant", "version", "name", "cross"),
    [
        ("cuda-dl", "", "nccl-cxi-26.06.1", "0"),
        ("cuda12", "latest", "nccl-cxi-26.06.1", "0"),
        ("cuda13", "26.08.1", "nccl-cxi-26.06.1", "0"),
        ("cuda13", "26.06.1", "nccl-cxi-26.06.1", "0"),
        ("cuda13", "26.05.1", "nccl-cxi", "1"),
        ("", "26.02.1", "nccl-cxi", "1"),
        ("rocm6", "26.08.1", "rccl-cxi", "1"),
    ],
)
def test_slingshot_by_variant_and_release(variant: str, version: str, name: str, cross: str) -> None:
    annotations = {"com.hooks.aws_ofi_nccl.variant": variant}
    done = hooked("cxi", annotations | ({"com.hooks.netstack.version": version} if version else {}))
    assert done.request.environment["NCCL_CROSS_NIC"] == cross
    assert f"preset {name} sets " in done.notes[0]
    for key, value in done.request.environment.items():
        assert f"{key}={value}" in done.notes[0]


def test_infiniband_names_the_devices_that_are_up() -> None:
    done = hooked("infiniband")
    assert done.request.environment == {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}


def test_plain_networks() -> None:
    fast = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
    assert hooked("tcp-100g").request.environment == fast
    done = hooked("tcp")
    assert done.request.environment == {}
    assert done.notes == (
        "com.hooks.aws_ofi_nccl: the node has neither Slingshot nor InfiniBand, so TCP is used.",
    )


def test_values_set_by_the_user_are_kept_with_a_note() -> None:
    done = hooked("cxi", env={"NCCL_PROTO": "Simple", "NCCL_CROSS_NIC": ""}, FI_MR_CACHE_MONITOR="kdreg2")
    assert not {"NCCL_PROTO", "NCCL_CROSS_NIC"} & set(done.request.environment)
    assert done.request.environment["FI_MR_CACHE_MONITOR"] == "kdreg2"
    assert done.request.edf.env == {"NCCL_PROTO": "Simple", "NCCL_CROSS_NIC": ""}
    assert "FI_MR_CACHE_MONITOR, NCCL_CROSS_NIC, NCCL_PROTO are set by you and not changed." in done.notes[1]


def test_no_preset_forces_a_plugin_quotes_a_value_or_lacks_a_source() -> None:
    for preset in PRESETS:
        assert not {"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_SOCKET_IFNAME"} & set(preset.variables)
        assert not [value for value in preset.variables.values() if set(value) & set("\"' \n")]
        assert preset.source
        for library in preset.libraries:
            assert choose_preset(library, preset.network)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _port(system: Path, device: str, state: str, layer: str) -> None:
    _write(system / f"class/infiniband/{device}/ports/1/state", state)
    _write(system / f"class/infiniband/{device}/ports/1/link_layer", layer)


def _interface(system: Path, name: str, speed: str, *, device: bool = True) -> None:
    _write(system / f"class/net/{name}/speed", speed)
    if device:
        (system / f"class/net/{name}/device").mkdir()


def test_the_network_is_read_from_the_kernel(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.network() == "tcp"
    _interface(tmp_path, "eth0", "-1")
    _interface(tmp_path, "eth1", "25000")
    _interface(tmp_path, "bond0", "200000", device=False)
    assert node.network() == "tcp"
    _interface(tmp_path, "eth2", "100000")
    assert node.network() == "tcp-100g"
    _port(tmp_path, "mlx5_2", "4: ACTIVE", "Ethernet")
    _port(tmp_path, "mlx5_1", "1: DOWN", "InfiniBand")
    assert (node.network(), node.infiniband()) == ("tcp-100g", ())
    _port(tmp_path, "mlx5_3", "4: ACTIVE", "InfiniBand")
    _port(tmp_path, "mlx5_0", "4: ACTIVE", "InfiniBand")
    assert (node.network(), node.infiniband()) == ("infiniband", ("mlx5_0", "mlx5_3"))
    (tmp_path / "class/cxi/cxi0").mkdir(parents=True)
    assert node.network() == "cxi"


def test_host_node_returns_facts_of_this_machine() -> None:
    assert Node().network() in {"cxi", "infiniband", "tcp-100g", "tcp"}
