"""NICs of Slingshot, InfiniBand and RoCE, each as a separate device: traffic, pauses, and errors as events.

Slingshot (Cassini): ``/sys/class/cxi/cxi0/device/telemetry/NAME`` holds ``value@seconds``, with 56 bits.
InfiniBand and RoCE: ``counters`` and ``hw_counters`` in ``/sys/class/infiniband/NAME/ports/N``. The counters
include the traffic of all jobs on the node.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..events import Event
from ..metric_table import NIC_METRICS
from ..sample import Device, Sample
from .counters import RisingCounters

_CASSINI_BITS = 56
_WORD = 4
_MOST_BYTES = 64
_MOST_NICS = 64
#: Seconds between two readings of the error counters, which are dozens of files.
_ERRORS_S = 5.0


@dataclass(frozen=True)
class Reading:
    """A counter's value, and the driver's time stamp of it in seconds; None where the file has none."""

    value: int
    seconds: float | None = None


#: Error counters of Slingshot by what they count (names of Cassini's telemetry files).
_CASSINI_ERRORS: Mapping[str, tuple[str, ...]] = {
    "uncorrected codewords": ("hni_pcs_uncorrected_cw",),
    "link-level replays": ("hni_llr_tx_replay_event",),
    "discarded packets": ("hni_discard_cntr_*",),
    "NACKs for lack of resources": ("pct_no_tct_nacks",),
    "time-outs of requests": ("pct_spt_timeouts",),
}
#: Error counters of InfiniBand and RoCE (Linux, Documentation/ABI/stable/sysfs-class-infiniband).
_PORT_ERRORS: Mapping[str, tuple[str, ...]] = {
    "symbol errors": ("counters/symbol_error",),
    "link recoveries": ("counters/link_error_recovery",),
    "link failures": ("counters/link_downed",),
    "packets with errors": (
        "counters/port_rcv_errors",
        "counters/port_rcv_remote_physical_errors",
        "counters/local_link_integrity_errors",
        "counters/excessive_buffer_overrun_errors",
    ),
    "discarded packets": ("counters/port_xmit_discards", "hw_counters/out_of_buffer"),
    "packets out of sequence": ("hw_counters/out_of_sequence", "hw_counters/packet_seq_err"),
    "time-outs of acknowledgements": ("hw_counters/local_ack_timeout_err",),
    "retries exceeded, receiver not ready": ("hw_counters/rnr_nak_retry_err",),
}
_PORT_PAUSES = ("counters/port_xmit_wait", "hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled")
_CASSINI_PAUSES = ("hni_rx_paused_*", "hni_tx_paused_*")


@dataclass(frozen=True)
class _Nic:
    """A NIC, its directories of counters, and the names of its counter files.

    `received`, `sent`, `pauses` and `errors` are file names or patterns; `errors` are by what they count.
    `unit` is the number of bytes per count of traffic, `bits` the width of the counters.
    """

    device: Device
    folders: tuple[Path, ...]
    received: str
    sent: str
    pauses: tuple[str, ...]
    errors: Mapping[str, tuple[str, ...]]
    unit: int
    bits: int


class NicCounters:
    """The fast NICs of a node.

    Parameters
    ----------
    system
        Mount point of sysfs.
    """

    def __init__(self, system: Path, node: str) -> None:
        self._nics = [*_slingshot(system, node), *_infiniband(system, node)][:_MOST_NICS]
        self._rising = RisingCounters("nic_errors", node)
        self._files = {nic.device.uuid: _CounterFiles(nic) for nic in self._nics}
        self._before: dict[tuple[str, str], tuple[int, Reading]] = {}
        self._error_values: dict[Path, int] = {}
        self._totals: dict[tuple[str, str], int] = {}
        self._errors_read_ns: dict[str, int] = {}
        self._error_rates: dict[str, float | None] = {}
        self._errors_due_ns = 0
        self._events: list[Event] = []

    @property
    def devices(self) -> tuple[Device, ...]:
        """The NICs."""
        return tuple(nic.device for nic in self._nics)

    def read(self, time_ns: int, now_ns: int) -> list[Sample]:
        """Return a sample of each NIC; rates are None at the first read and where a file can't be read."""
        if now_ns >= self._errors_due_ns:
            self._errors_due_ns = now_ns + int(_ERRORS_S * 1e9)
            for nic in self._nics:
                self._error_rates[nic.device.uuid] = self._check_errors(nic, time_ns, now_ns)
        return [Sample(time_ns, now_ns, nic.device.uuid, self._values(nic, now_ns)) for nic in self._nics]

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        found, self._events = self._events, []
        return found

    def _values(self, nic: _Nic, now_ns: int) -> dict[str, float | None]:
        uuid = nic.device.uuid
        values: dict[str, float | None] = dict.fromkeys(NIC_METRICS)
        for metric, names in (
            ("NIC_RX_BYTES", (nic.received,)),
            ("NIC_TX_BYTES", (nic.sent,)),
            ("NIC_PAUSES", nic.pauses),
        ):
            files = [path for name in names for path in self._files[uuid].find(name)]
            factor = nic.unit if metric != "NIC_PAUSES" else 1
            rates = [self._rate(uuid, path, nic.bits, now_ns) for path in files]
            known = [rate for rate in rates if rate is not None]
            values[metric] = factor * sum(known) if known else None
        values["NIC_ERRORS"] = self._error_rates.get(uuid)
        return values

    def _rate(self, uuid: str, path: Path, bits: int, now_ns: int) -> float | None:
        reading = read_counter(path)
        before = self._before.get((uuid, str(path)))
        if reading is None:
            return None
        if before is not None and reading.seconds is not None and reading.seconds == before[1].seconds:
            # The driver has not updated the counter since the last reading.
            return None
        self._before[uuid, str(path)] = (now_ns, reading)
        if before is None:
            return None
        then_ns, last = before
        seconds = (now_ns - then_ns) / 1e9
        if reading.seconds is not None and last.seconds is not None:
            seconds = reading.seconds - last.seconds
        risen = increase(last.value, reading.value, bits)
        return risen / seconds if risen is not None and seconds > 0 else None

    def _check_errors(self, nic: _Nic, time_ns: int, now_ns: int) -> float | None:
        """Add an event for each error counter that rises; return the errors per second, None at first."""
        uuid, risen, known = nic.device.uuid, 0, False
        for text, names in nic.errors.items():
            key = (uuid, text)
            for path in (path for name in names for path in self._files[uuid].find(name)):
                reading = read_counter(path)
                if reading is None:
                    continue
                before = self._error_values.get(path)
                self._error_values[path] = reading.value
                # Add increases: a plain sum would jump when an unreadable file becomes readable again.
                more = reading.value if before is None else increase(before, reading.value, nic.bits) or 0
                self._totals[key] = self._totals.get(key, 0) + more
                risen += more if before is not None else 0
                known = True
            message = f"{nic.device.name}, {text}"
            self._events += self._rising.check(uuid, message, self._totals.get(key), time_ns, now_ns)
        then_ns = self._errors_read_ns.get(uuid)
        if not known:
            return None
        self._errors_read_ns[uuid] = now_ns
        return None if then_ns is None or now_ns <= then_ns else risen * 1e9 / (now_ns - then_ns)


class _CounterFiles:
    """Counter files of a NIC by name or pattern; directories are listed once."""

    def __init__(self, nic: _Nic) -> None:
        self._folders = nic.folders
        self._found: dict[str, tuple[Path, ...]] = {}

    def find(self, name: str) -> tuple[Path, ...]:
        """Return the files of a name or pattern."""
        if name not in self._found:
            if "*" in name:
                self._found[name] = tuple(
                    sorted(path for folder in self._folders for path in folder.glob(name))
                )
            else:
                self._found[name] = tuple(folder / name for folder in self._folders)
        return self._found[name]


def read_counter(path: Path) -> Reading | None:
    """Return a counter, ``value`` or ``value@seconds``; None where it can't be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.read(handle, _MOST_BYTES).decode("ascii")
        finally:
            os.close(handle)
        value, at, seconds = text.strip().partition("@")
        return Reading(int(value), float(seconds) if at else None)
    except (OSError, ValueError):
        return None


def increase(before: int, after: int, bits: int) -> int | None:
    """Return by how much a counter rose, also if it wrapped around; None if it was reset.

    Parameters
    ----------
    bits
        Bits of the counter. A decrease counts as wrap-around only from its upper half to its lower half.
    """
    if after >= before:
        return after - before
    half = 1 << (bits - 1)
    return after + (1 << bits) - before if before >= half > after else None


def _slingshot(system: Path, node: str) -> Iterator[_Nic]:
    for folder in _listed(system / "class/cxi"):
        yield _Nic(
            _device(folder.name, node),
            (folder / "device/telemetry",),
            "hni_sts_rx_ok_octets",
            "hni_sts_tx_ok_octets",
            _CASSINI_PAUSES,
            _CASSINI_ERRORS,
            1,
            _CASSINI_BITS,
        )


def _infiniband(system: Path, node: str) -> Iterator[_Nic]:
    for folder in _listed(system / "class/infiniband"):
        ports = tuple(_listed(folder / "ports"))
        if ports:
            yield _Nic(
                _device(folder.name, node),
                ports,
                "counters/port_rcv_data",
                "counters/port_xmit_data",
                _PORT_PAUSES,
                _PORT_ERRORS,
                _WORD,
                64,
            )


def _device(name: str, node: str) -> Device:
    digits = name[len(name.rstrip("0123456789")) :]
    return Device(f"nic:{name}@{node}", "nic", name, int(digits) if digits else None, node=node, scope="node")


def _listed(folder: Path) -> Iterable[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
    return ()
