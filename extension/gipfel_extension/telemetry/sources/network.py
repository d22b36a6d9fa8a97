"""Bytes that a node's network carried: ``/proc/net/dev``, and the ports of RDMA networks, which bypass it.

InfiniBand and RoCE count in ``/sys/class/infiniband``, Slingshot (Cassini) in ``/sys/class/cxi``: the whole
node's bytes, not those of one job.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Ports of InfiniBand and RoCE count in words of four bytes (InfiniBand specification, PortCounters).
_WORD = 4.0


def network_counters(proc: Path, system: Path) -> dict[str, float | None]:
    """Return bytes so far, under the names of their rates; None where the kernel doesn't give them."""
    try:
        lines = (proc / "net/dev").read_text().splitlines()[2:]
    except OSError:
        return {"NET_RX_BYTES": None, "NET_TX_BYTES": None}
    fields = [line.replace(":", " ").split() for line in lines]
    infiniband, slingshot = list(_ports(system)), list(_cassini(system))
    # IP over InfiniBand and Ethernet over Slingshot are counted by the port already.
    barred = (
        "lo",
        *(("ib",) if any(ip for _, _, ip in infiniband) else ()),
        *(("hsn",) if slingshot else ()),
    )
    real = [field for field in fields if len(field) > 9 and not field[0].startswith(barred)]
    ports = [(received, sent) for received, sent, _ in infiniband] + slingshot
    return {
        "NET_RX_BYTES": sum(received for received, _ in ports) + sum(float(field[1]) for field in real),
        "NET_TX_BYTES": sum(sent for _, sent in ports) + sum(float(field[9]) for field in real),
    }


def _ports(system: Path) -> Iterator[tuple[float, float, bool]]:
    """Yield received and sent bytes of each RDMA port, and whether IP over it is counted too."""
    for port in system.glob("class/infiniband/*/ports/*"):
        with suppress(OSError, ValueError):
            layer = (port / "link_layer").read_text().strip()
            received = _WORD * float((port / "counters/port_rcv_data").read_text())
            sent = _WORD * float((port / "counters/port_xmit_data").read_text())
            # A port of RoCE counts RDMA alone; its Ethernet interface counts the rest.
            yield received, sent, layer == "InfiniBand"


def _cassini(system: Path) -> Iterator[tuple[float, float]]:
    """Yield received and sent bytes of each Slingshot NIC; its files hold ``value@time``."""
    for counters in system.glob("class/cxi/*/device/telemetry"):
        with suppress(OSError, ValueError):
            received = (counters / "hni_sts_rx_ok_octets").read_text().partition("@")[0]
            sent = (counters / "hni_sts_tx_ok_octets").read_text().partition("@")[0]
            yield float(received), float(sent)
