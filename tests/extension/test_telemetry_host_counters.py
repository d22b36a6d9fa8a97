"""Counters of a host that not every node has: Lustre's, InfiniBand's."""

from pathlib import Path

from gipfel_extension.telemetry.sources.lustre import lustre_counters, parse_stats
from gipfel_extension.telemetry.sources.network import network_counters

_DATA = Path(__file__).parent / "data"


def test_lustre_counters_of_a_client(tmp_path: Path) -> None:
    text = (_DATA / "lustre_stats.txt").read_text()
    assert parse_stats(text.splitlines()) == {
        "LUSTRE_READ_BYTES": 13419520000.0,
        "LUSTRE_WRITE_BYTES": 41943650.0,
        "LUSTRE_METADATA_OPS": 1525.0 + 1520 + 20114 + 3 + 99,
    }
    assert set(lustre_counters(tmp_path).values()) == {None}
    for name in ("scratch-ff0", "capstor-ff1"):
        folder = tmp_path / "sys/kernel/debug/lustre/llite" / name
        folder.mkdir(parents=True)
        (folder / "stats").write_text(text)
    assert lustre_counters(tmp_path)["LUSTRE_WRITE_BYTES"] == 2 * 41943650.0
    # Half a line, words, and a file that is none of it.
    odd = ["read_bytes 1 samples", "open x samples [usec]", "write_bytes 1 samples [bytes] 0 1 nine", "", "x"]
    assert set(parse_stats(odd).values()) == {0.0}


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
