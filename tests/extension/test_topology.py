"""Topology of a run: collection on made trees, Slurm's switches, places of ranks, scatter, and its text."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_trees import FakeSmi, collected, gh200, hgx, kfd

from gipfel_extension.cli.main import main
from gipfel_extension.diagnosis.roles import roles_of_layout
from gipfel_extension.job.ranks import read_job
from gipfel_extension.telemetry.ranks import RankLocation, ranks_file, ranks_json
from gipfel_extension.topology import FOLDER, SLURM_FILE, NodeTopology, slurm_place
from gipfel_extension.topology.collect import collect_node, is_first_node, slurm_topology, store_node
from gipfel_extension.topology.collect.hardware import KfdTopology
from gipfel_extension.topology.read import (
    Fabric,
    cabinet_path,
    fewest_leaves,
    fragmentation,
    merge,
    neighbours,
    parse_fabric,
    read_topology,
)

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=nid[000-003]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=nid[004-007]
SwitchName=root Level=1 LinkSpeed=1 Nodes=nid[000-007] Switches=s[0-1]
"""
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=nid[000-003] BlockSize=4
BlockName=b2 BlockIndex=1 Nodes=nid[004-007] BlockSize=4
"""


def nics(node: NodeTopology) -> list[str | None]:
    return [nic.name if (nic := node.nic_of(gpu)) else None for gpu in node.gpus]


def test_gh200_has_a_nic_per_superchip_and_direct_links(tmp_path: Path) -> None:
    node = collected(tmp_path, gh200(tmp_path))
    assert [each.cores for each in node.numa] == ["0-71", "72-143", "144-215", "216-287"]
    assert [(gpu.bus, gpu.numa) for gpu in node.gpus][3] == ("0039:01:00.0", 3)
    # The interfaces of Slingshot's NICs are not NICs of their own.
    assert [(nic.name, nic.kind) for nic in node.nics] == [(f"cxi{each}", "slingshot") for each in range(4)]
    assert nics(node) == ["cxi0", "cxi1", "cxi2", "cxi3"]
    assert [(each.kind, each.count) for each in node.links].count(("nvlink", 6)) == 6
    assert {each.second for each in node.links if each.kind == "c2c"} == {f"numa:{each}" for each in range(4)}


def test_hgx_h100_has_nvswitches_and_the_nic_of_the_same_pcie_switch(tmp_path: Path) -> None:
    fake = hgx(tmp_path)
    fake.fabric = (bytes(range(16)), 7)
    node = collected(tmp_path, fake)
    assert nics(node) == [f"mlx5_{number}" for number in range(8)]
    assert {(each.kind, each.count) for each in node.links} == {("nvswitch", 18)}
    assert {gpu.fabric for gpu in node.gpus} == {bytes(range(16)).hex() + "/7"}
    kinds = {nic.name: nic.kind for nic in node.nics}
    assert (kinds["mlx5_0"], kinds["mlx5_8"], kinds["eth0"]) == ("infiniband", "roce", "ethernet")
    assert "eth0" not in {nic.name for nic in node.fast_nics}


def test_mi300_has_xgmi_between_all_pairs_and_the_uuids_of_amd_smi(tmp_path: Path) -> None:
    kfd(tmp_path, tuple((15,) * 8 for _ in range(8)))
    part = KfdTopology(tmp_path, FakeSmi()).read()
    assert len(part.gpus) == 8
    assert {each.kind for each in part.links} == {"xgmi"}
    assert len(part.links) == 28
    assert part.gpus[7].uuid == "GPU-7dff74a1-0000-1000-8000-000000000000"
    assert (part.gpus[7].bus, part.gpus[7].numa) == ("0000:75:00.0", 1)
    assert len({gpu.fabric for gpu in part.gpus}) == 1


def test_mi250_pairs_over_another_gpu_are_not_links(tmp_path: Path) -> None:
    row = (0, 15, 15, 30, 30, 30, 15, 30)
    kfd(tmp_path, tuple(tuple(row[(place - start) % 8] for place in range(8)) for start in range(8)))
    part = KfdTopology(tmp_path, SimpleNamespace(AmdSmiException=OSError, amdsmi_init=_refuse)).read()
    own = part.gpus[0].uuid
    assert own == "GPU-abc0"
    assert sorted(each.second for each in part.links if each.first == own) == [
        "GPU-abc1",
        "GPU-abc2",
        "GPU-abc6",
    ]


def _refuse() -> None:
    raise OSError("no driver")


def test_a_node_without_any_of_it_has_no_gpus_and_no_error(tmp_path: Path) -> None:
    assert collect_node("n0", {}, 1, system=tmp_path, xname_file=tmp_path / "x", readers=()) == NodeTopology(
        "n0", 1
    )


def test_a_gpu_between_two_equal_nics_has_none(tmp_path: Path) -> None:
    node = collected(tmp_path, gh200(tmp_path))
    twice = replace(node, nics=(node.nics[0], replace(node.nics[0], name="cxi9"), *node.nics[1:]))
    assert nics(twice) == [None, "cxi1", "cxi2", "cxi3"]


@pytest.mark.parametrize(
    ("address", "pattern", "expected"),
    [
        ("s0.s4.s8.tux1", "switch.switch.switch.node", (("s0", "s4", "s8"), "tree")),
        ("b8.tux1", "block.node", (("b8",), "block")),
        ("tux1", "node", ((), "")),
        ("", "", ((), "")),
        ("a.b.c", "switch", (("a",), "tree")),
    ],
)
def test_slurms_variables_name_the_switches(
    address: str, pattern: str, expected: tuple[tuple[str, ...], str]
) -> None:
    found = slurm_place({"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern})
    assert found == expected


def test_slurms_lists_of_switches_and_blocks() -> None:
    tree = parse_fabric(TREE)
    assert (tree.kind, tree.path("nid005"), tree.sizes) == ("tree", ("root", "s1"), {"s0": 4, "s1": 4})
    blocks = parse_fabric(BLOCKS)
    assert (blocks.kind, blocks.path("nid004"), blocks.sizes) == ("block", ("b2",), {"b1": 4, "b2": 4})
    assert parse_fabric("No topology information available\n") == Fabric()
    assert parse_fabric("SwitchName=a Level=1 Switches=b\nSwitchName=b Level=1 Switches=a\n").path("n") == ()
    assert cabinet_path("x1100c0s6b1n0") == ("x1100", "x1100c0")
    assert cabinet_path("nid001234") == ()
    with pytest.raises(ValueError, match="brackets"):
        parse_fabric("SwitchName=a Level=0 Nodes=n[1-")
    with pytest.raises(ValueError, match="more than"):
        parse_fabric("".join(f"SwitchName=a{each} Level=0 Nodes=n{each}x[1-60000]\n" for each in range(4)))


def test_scontrol_that_is_missing_silent_or_fails_tells_nothing() -> None:
    assert slurm_topology({}, ("/nonexistent/scontrol",)) == ""
    assert slurm_topology(dict(os.environ), ("sh", "-c", "echo SwitchName=x; exit 1")) == ""
    assert slurm_topology(dict(os.environ), ("echo", "No topology information available")) == ""
    assert slurm_topology(dict(os.environ), ("echo", "SwitchName=x Level=0 Nodes=a")).startswith(
        "SwitchName=x"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Eight nodes of four GPUs on two of three switches: ranks of pp=8,dp=4, a stage to a node."""
    folder = tmp_path / "alps-1"
    (folder / "telemetry").mkdir(parents=True)
    system = tmp_path / "gh200"
    node = collected(system, gh200(system))
    used = [f"nid{number:03}" for number in (0, 1, 2, 4, 5, 6, 7, 8)]
    for number, name in enumerate(used):
        renamed = {gpu.uuid: f"GPU-{number}-{gpu.index}" for gpu in node.gpus}
        gpus = tuple(replace(gpu, uuid=renamed[gpu.uuid]) for gpu in node.gpus)
        links = tuple(
            replace(link, first=renamed[link.first], second=renamed.get(link.second, link.second))
            for link in node.links
        )
        store_node(folder, replace(node, node=name, gpus=gpus, links=links))
        locations = [
            RankLocation(4 * number + each, name, 100 + each, f"GPU-{number}-{each}", "python")
            for each in range(4)
        ]
        ranks_file(folder / "telemetry", name, "job").write_text(ranks_json(locations))
    switches = TREE.replace("Switches=s[0-1]", "Switches=s[0-2]")
    (folder / FOLDER / SLURM_FILE).write_text(switches + "SwitchName=s2 Level=0 Nodes=nid[008-015]\n")
    return folder


def test_ranks_have_the_nic_and_the_switch_of_their_gpu(run: Path) -> None:
    ranks = read_job(run, layout="pp=8,dp=4").job.ranks
    assert (ranks[13].node, ranks[13].switch, ranks[13].nic) == ("nid004", "s1", "cxi1@nid004")
    assert (ranks[31].node, ranks[31].switch, ranks[31].nic) == ("nid008", "s2", "cxi3@nid008")
    # No process is pinned to cores, so the NUMA node is that of the GPU.
    assert [each.numa for each in ranks[12:16]] == [0, 1, 2, 3]


def test_the_command_tells_how_scattered_the_job_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", str(run), "--json", "--layout", "pp=8,dp=4"]) == 0
    scatter = json.loads(capsys.readouterr().out)["scatter"]
    # Eight nodes fit on the largest leaf, s2.
    assert (scatter["used"], scatter["fewest"], scatter["leaves"]) == (3, 1, {"s0": 3, "s1": 4, "s2": 1})
    assert scatter["crossings"] == [
        {"axis": "pp", "pairs": 28, "crossing": 8},
        {"axis": "dp", "pairs": 32, "crossing": 0},
    ]
    assert scatter["sentence"] == (
        "3 leaf switches used, 1 would do; 29 % of pp neighbours (8 of 28 pairs) and 0 % of dp neighbours "
        "(0 of 32 pairs) cross one."
    )


def test_the_text_fits_80_columns_and_names_equal_nodes_once(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", str(run), "--layout", "pp=8,dp=4", "--select", "pp=6,7 & dp=0"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "alps-1: 8 nodes, 32 GPUs, 32 NICs, 32 ranks"
    assert text.count("NUMA 0: cores 0-71; GPU 0 by cxi0 (NVIDIA H100); cxi0") == 1
    assert "NVLink, 6 each: all 4 GPUs with each other" in text
    assert "Selected ranks (2):\n  nid007: rank 24 on cxi0\n  nid008: rank 28 on cxi0\n" in text


def test_what_is_wrong_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--select", "zz=1"], ["--select", "pp"], ["--select", "x" * 1001], ["--here"]):
        assert main(["topology", str(run), *options]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert main(["topology", str(run.parent)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_files_of_others_are_named_and_nothing_hangs(run: Path) -> None:
    folder = run / FOLDER
    os.mkfifo(folder / "a.json")
    (folder / "b.json").symlink_to("/etc/passwd")
    (folder / "c.json").write_text("[" * 100_000)
    (folder / "d.json").write_text('{"node": "x", "gpus": 3}')
    (folder / "e.json").write_text('{"node": "y", "links": [{"first": "a", "second": "b", "kind": "rope"}]}')
    with (folder / "f.json").open("wb") as file:
        file.truncate(1 << 40)
    (folder / SLURM_FILE).write_bytes(b"SwitchName=s Level=0 Nodes=[[\xff")
    found = read_topology(run)
    assert len(found.nodes) == 8
    assert len(found.problems) == 7
    assert all("\n" not in each for each in found.problems)
    assert any("d.json is not a node's topology: gpus is not valid." in each for each in found.problems)
    assert found.source == ""


def test_without_slurms_list_nodes_and_their_names_tell_the_switches() -> None:
    told = [NodeTopology(f"n{each}", switches=("root", f"s{each // 2}"), plugin="tree") for each in range(4)]
    assert merge(told, Fabric()).paths["n3"] == ("root", "s1")
    named = merge([NodeTopology("nid1", xname="x1100c0s6b1n0"), NodeTopology("nid2")], Fabric())
    assert (named.source, named.paths) == ("cabinet", {"nid1": ("x1100", "x1100c0")})
    assert merge([], Fabric(), ["x9c1s0b0n0"]).leaf("x9c1s0b0n0") == "x9c1"
    assert merge([NodeTopology("n0")], Fabric()).source == ""


sizes_of_axes = st.fixed_dictionaries(
    {"pp": st.integers(1, 5), "dp": st.integers(1, 5), "tp": st.integers(1, 3)}
)


@given(
    sizes=sizes_of_axes,
    per_node=st.integers(1, 4),
    leaves=st.lists(st.integers(0, 4), min_size=75, max_size=75),
)
@settings(max_examples=60, deadline=None)
def test_scatter_holds_for_every_layout(sizes: Mapping[str, int], per_node: int, leaves: list[int]) -> None:
    roles = roles_of_layout(sizes).coordinates
    node_of = {rank: f"n{rank // per_node}" for rank in roles}
    leaf_of = {node: f"s{leaves[int(node[1:])]}" for node in node_of.values()}
    room = {leaf: sum(each == leaf for each in leaf_of.values()) for leaf in leaf_of.values()}
    found = fragmentation(leaf_of, room, roles, node_of)
    assert sum(found.leaves.values()) == found.nodes == len(leaf_of)
    # The leaves in use have just enough room, so that fewer than all never do.
    assert found.fewest == len(found.leaves)
    pp, dp, tp = sizes["pp"], sizes["dp"], sizes["tp"]
    ring = dp if dp > 2 else dp - 1
    assert found.crossings["pp"].pairs == (pp - 1) * dp * tp
    assert found.crossings["dp"].pairs == ring * pp * tp
    for axis, each in found.crossings.items():
        crossing = [
            pair for pair in neighbours(roles, axis) if leaf_of[node_of[pair[0]]] != leaf_of[node_of[pair[1]]]
        ]
        assert each.crossing == len(crossing)
    one = fragmentation(dict.fromkeys(leaf_of, "s"), {}, roles, node_of)
    assert (one.fewest, [each.crossing for each in one.crossings.values()]) == (None, [0, 0])
    assert fragmentation({}, {}, roles, node_of).sentence() == ""


@given(nodes=st.integers(0, 40), sizes=st.lists(st.integers(0, 12), max_size=8))
def test_the_fewest_leaves_have_room_and_one_less_has_none(nodes: int, sizes: list[int]) -> None:
    fewest = fewest_leaves(nodes, sizes)
    largest = sorted(sizes, reverse=True)
    if fewest is None:
        assert sum(sizes) < nodes or not sizes
    else:
        assert sum(largest[:fewest]) >= nodes
        assert fewest == 0 or sum(largest[: fewest - 1]) < nodes


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("nid[001-004,7],login", "nid001"), ("a,b", "a"), ("r1[2-3]c[4,5]x", "r12c4x"), ("n1", "n1")],
)
def test_the_first_node_is_that_of_the_job_and_not_of_a_step(nodes: str, first: str) -> None:
    step = {"SLURM_JOB_ID": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": nodes}
    assert is_first_node(step, first)
    assert not is_first_node(step, "nid002")
    assert not is_first_node({}, first)
    assert not is_first_node({"SLURM_JOB_NODELIST": ""}, "")
