"""Counters of a host that not every node has: Lustre, NFS, InfiniBand, RoCE, Slingshot.

The files are typed from the documented formats: none was read on such hardware.
"""

from pathlib import Path

from gipfel_extension.telemetry.sources.counters import network_counters
from gipfel_extension.telemetry.sources.file_systems import (
    lustre_counters,
    nfs_counters,
    parse_lustre,
    parse_nfs,
)

_DATA = Path(__file__).parent / "data"


def test_lustre_counters_of_a_client(tmp_path: Path) -> None:
    text = (_DATA / "lustre_stats.txt").read_text()
    parsed = parse_lustre(text.splitlines())
    assert (parsed.read_bytes, parsed.written_bytes) == (13419520000.0, 41943650.0)
    assert parsed.metadata == 1525.0 + 1520 + 20114 + 3 + 99
    assert set(lustre_counters(tmp_path).values()) == {None}
    for name in ("scratch-ff0", "capstor-ff1"):
        folder = tmp_path / "sys/kernel/debug/lustre/llite" / name
        folder.mkdir(parents=True)
        (folder / "stats").write_text(text)
    assert lustre_counters(tmp_path)["LUSTRE_WRITE_BYTES"] == 2 * 41943650.0
    # Half a line, words, and a file that is none of it.
    odd = ["read_bytes 1 samples", "open x samples [usec]", "write_bytes 1 samples [bytes] 0 1 nine", "", "x"]
    assert parse_lustre(odd).read_bytes is None
    assert parse_lustre(odd).why


def test_infiniband_is_counted_by_its_ports(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(
        "Inter-| Receive | Transmit\n face |bytes |bytes\n"
        "   ib0: 500 0 0 0 0 0 0 0 700 0 0 0 0 0 0 0\n  eth0: 10 0 0 0 0 0 0 0 20 0 0 0 0 0 0 0\n"
    )
    assert network_counters(tmp_path / "proc", tmp_path / "sys")["NET_RX_BYTES"] == 510
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "counters/port_rcv_data").write_text("1000\n")
    (port / "counters/port_xmit_data").write_text("2000\n")
    counted = network_counters(tmp_path / "proc", tmp_path / "sys")
    assert (counted["NET_RX_BYTES"], counted["NET_TX_BYTES"]) == (4010, 8020)


def _net(tmp_path: Path, *interfaces: str) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    rows = "".join(f"  {name}: 10 0 0 0 0 0 0 0 20 0 0 0 0 0 0 0\n" for name in interfaces)
    (tmp_path / "proc/net/dev").write_text("Inter-| Receive | Transmit\n face |bytes |bytes\n" + rows)


def test_roce_counts_beside_its_interface(tmp_path: Path) -> None:
    _net(tmp_path, "eth0")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "link_layer").write_text("Ethernet\n")
    (port / "counters/port_rcv_data").write_text("1000\n")
    (port / "counters/port_xmit_data").write_text("2000\n")
    counted = network_counters(tmp_path / "proc", tmp_path / "sys")
    assert (counted["NET_RX_BYTES"], counted["NET_TX_BYTES"]) == (4010, 8020)


def test_slingshot_is_counted_by_its_nics(tmp_path: Path) -> None:
    _net(tmp_path, "hsn0", "nmn0")
    for number in range(2):
        counters = tmp_path / f"sys/class/cxi/cxi{number}/device/telemetry"
        counters.mkdir(parents=True)
        (counters / "hni_sts_rx_ok_octets").write_text("445855189712@1746204071.663026416\n")
        (counters / "hni_sts_tx_ok_octets").write_text("1000@1746204071.663026416\n")
    (tmp_path / "sys/class/cxi/cxi2/device/telemetry").mkdir(parents=True)
    counted = network_counters(tmp_path / "proc", tmp_path / "sys")
    assert (counted["NET_RX_BYTES"], counted["NET_TX_BYTES"]) == (2 * 445855189712 + 10, 2020)


_MOUNTS = """device proc mounted on /proc with fstype proc
device nas:/home mounted on /users with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t1 2 3 4 5000 6000 7 8
\tper-op statistics
device nas:/home mounted on /home with fstype nfs4 statvers=1.1
\tbytes:\t1 2 3 4 5000 6000 7 8
device nas:/data mounted on /data with fstype nfs statvers=1.1
\tbytes:\t0 0 0 0 70 80 0 0
device nas:/odd mounted on /odd with fstype nfs statvers=1.1
\tbytes:\tnone
device tmpfs mounted on /tmp with fstype tmpfs
\tbytes:\t9 9 9 9 9 9 9 9
"""


def test_nfs_counts_each_export_once(tmp_path: Path) -> None:
    assert nfs_counters(tmp_path) == {"NFS_READ_BYTES": None, "NFS_WRITE_BYTES": None}
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountstats").write_text(_MOUNTS)
    assert nfs_counters(tmp_path) == {"NFS_READ_BYTES": 5070.0, "NFS_WRITE_BYTES": 6080.0}
    assert parse_nfs(["device", "bytes: 1", ""]) == []
