"""Bytes that a node's network carried: ``/proc/net/dev``, and the ports of InfiniBand, which bypass it."""

from contextlib import suppress
from pathlib import Path

#: InfiniBand counts in words of four bytes.
_WORD = 4.0


def network_counters(proc: Path, system: Path) -> dict[str, float | None]:
    """Bytes so far, under the names of their rates; None where the kernel doesn't give them."""
    try:
        lines = (proc / "net/dev").read_text().splitlines()[2:]
    except OSError:
        return {"NET_RX_BYTES": None, "NET_TX_BYTES": None}
    fields = [line.replace(":", " ").split() for line in lines]
    received, sent, ports = _infiniband(system)
    # IP over InfiniBand is counted by the port already.
    barred = ("lo", *(("ib",) if ports else ()))
    real = [field for field in fields if len(field) > 9 and not field[0].startswith(barred)]
    return {
        "NET_RX_BYTES": received + sum(float(field[1]) for field in real),
        "NET_TX_BYTES": sent + sum(float(field[9]) for field in real),
    }


def _infiniband(system: Path) -> tuple[float, float, int]:
    received = sent = 0.0
    ports = 0
    for port in system.glob("class/infiniband/*/ports/*"):
        with suppress(OSError, ValueError):
            if (port / "link_layer").read_text().strip() == "InfiniBand":
                into = float((port / "counters/port_rcv_data").read_text())
                out = float((port / "counters/port_xmit_data").read_text())
                received, sent, ports = received + _WORD * into, sent + _WORD * out, ports + 1
    return received, sent, ports
