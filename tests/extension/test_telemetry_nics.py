"""NICs as devices and health of GPUs: rates, wraps, missing files, events of errors that rise; made trees."""

import json
import os
from pathlib import Path

import pynvml
import pytest
from nvml_fake import FakeNvml, SetClock
from topology_trees import text

from gipfel_extension.recorder import Recorder, Settings
from gipfel_extension.server.job import JobView, job_figures
from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.sources import SourceRequest
from gipfel_extension.telemetry.sources.counters import (
    GpuHealth,
    RisingCounters,
    amd_counters,
    nvml_counters,
)
from gipfel_extension.telemetry.sources.host import HostSource
from gipfel_extension.telemetry.sources.nics import NicCounters, increase, read_counter
from gipfel_extension.telemetry.store.overview import read_overview
from gipfel_extension.telemetry.store.segments import read_samples

SECOND = 10**9
#: Large and healthy: a link that has replayed for months.
HEALTHY = 987_654_321


class Cassini:
    """A made tree of a Slingshot NIC, in the documented form ``value@seconds``."""

    def __init__(self, system: Path, number: int = 0) -> None:
        self.folder = system / f"class/cxi/cxi{number}/device/telemetry"
        self.values = dict.fromkeys(
            ("hni_sts_rx_ok_octets", "hni_sts_tx_ok_octets", "hni_rx_paused_0", "hni_tx_paused_7"), 1000
        )
        self.values |= {
            "hni_llr_tx_replay_event": HEALTHY,
            "hni_discard_cntr_0": HEALTHY,
            "hni_discard_cntr_1": HEALTHY,
            "pct_spt_timeouts": 0,
        }
        self.at(0.0)

    def at(self, seconds: float, **more: int) -> None:
        for name, value in more.items():
            self.values[name] += value
        for name, value in self.values.items():
            text(self.folder / name, f"{value % 2**56}@{1746204071 + seconds:.9f}")


def errors_of(nics: NicCounters) -> list[str]:
    return [f"{event.device} {event.message}" for event in nics.events()]


def test_slingshots_rates_use_the_drivers_times(tmp_path: Path) -> None:
    nic = Cassini(tmp_path)
    nics = NicCounters(tmp_path, "n1")
    assert [(each.uuid, each.kind, each.scope) for each in nics.devices] == [("nic:cxi0@n1", "nic", "node")]
    assert set(nics.read(0, 0)[0].values.values()) == {None}
    nic.at(
        2.0, hni_sts_rx_ok_octets=4_000_000, hni_sts_tx_ok_octets=200, hni_rx_paused_0=6, hni_tx_paused_7=4
    )
    # Read a second later by this clock; the counters are two seconds apart.
    values = nics.read(0, SECOND)[0].values
    assert (values["NIC_RX_BYTES"], values["NIC_TX_BYTES"], values["NIC_PAUSES"]) == (2e6, 100, 5)
    # The driver has not read its counters since: unknown, not 0.
    assert nics.read(0, 2 * SECOND)[0].values["NIC_RX_BYTES"] is None
    nic.at(4.0, hni_sts_rx_ok_octets=8)
    assert nics.read(0, 3 * SECOND)[0].values["NIC_RX_BYTES"] == 4


def test_a_counter_of_56_bits_wraps_around(tmp_path: Path) -> None:
    nic = Cassini(tmp_path)
    nic.at(0.0, hni_sts_rx_ok_octets=2**56 - 1500)
    nics = NicCounters(tmp_path, "n1")
    nics.read(0, 0)
    nic.at(1.0, hni_sts_rx_ok_octets=1000)
    assert nics.read(0, SECOND)[0].values["NIC_RX_BYTES"] == 1000
    assert increase(2**56 - 10, 5, 56) == 15
    assert increase(2**20, 5, 56) is None
    assert increase(5, 5, 64) == 0


def test_only_an_error_counter_that_rises_is_an_event_with_its_rate(tmp_path: Path) -> None:
    nic = Cassini(tmp_path)
    nics = NicCounters(tmp_path, "n1")
    seen = []
    for second in range(0, 100, 5):
        more = {20: 0, 40: 30, 45: 10, 50: 10}.get(second, 0)
        nic.at(second, hni_llr_tx_replay_event=more)
        (sample,) = nics.read(second, second * SECOND)
        seen += [(second, sample.values["NIC_ERRORS"], each) for each in errors_of(nics)]
    # Of three rises within a minute the first is told.
    assert seen == [
        (40, 6.0, f"nic:cxi0@n1 cxi0, link-level replays: 30 in 5 s, 6 per second (counter: {HEALTHY + 30}).")
    ]
    nic.at(200, hni_llr_tx_replay_event=1)
    nics.read(0, 200 * SECOND)
    assert len(errors_of(nics)) == 1


def test_a_rise_that_lasts_is_told_again_with_its_mean() -> None:
    rising = RisingCounters("nic_errors", "n1")
    told = []
    for second in range(0, 1300, 10):
        told += rising.check("d", "drops", 5 * second, second, second * SECOND)
    assert [each.time_ns for each in told] == [10, 610, 1210]
    assert told[1].message == "drops: 3000 in 600 s, 5 per second (counter: 3050)."


def test_files_that_are_missing_unreadable_or_odd_are_unknown_and_no_error(tmp_path: Path) -> None:
    nic = Cassini(tmp_path)
    os.mkfifo(nic.folder / "hni_pcs_uncorrected_cw")
    (tmp_path / "class/cxi/cxi1/device").mkdir(parents=True)
    nics = NicCounters(tmp_path, "n1")
    nics.read(0, 0)
    away = nic.folder / "hni_discard_cntr_1"
    away.unlink()
    nics.read(0, 5 * SECOND)
    # Readable again, and as before: nothing rose.
    nic.at(10)
    for odd in ("", "x@1", "12@y", "99999999999999999999999999999999@1", "\xff"):
        (nic.folder / "hni_sts_rx_ok_octets").write_text(odd, encoding="latin-1")
        first, second = nics.read(0, 10 * SECOND)
        assert first.values["NIC_RX_BYTES"] is None or odd.startswith("9")
        assert set(second.values.values()) == {None}
    nics.read(0, 15 * SECOND)
    assert errors_of(nics) == []
    assert read_counter(tmp_path) is None


@pytest.mark.parametrize(
    ("layer", "counter"), [("InfiniBand", "symbol_error"), ("Ethernet", "port_rcv_errors")]
)
def test_infiniband_and_roce_count_words_and_both_directories(
    tmp_path: Path, layer: str, counter: str
) -> None:
    port = tmp_path / "class/infiniband/mlx5_2/ports/1"
    values = {
        "counters/port_rcv_data": 1000,
        "counters/port_xmit_data": 2000,
        "counters/port_xmit_wait": 5,
        f"counters/{counter}": 65535,
        "hw_counters/np_cnp_sent": 70,
        "hw_counters/out_of_sequence": HEALTHY,
    }
    text(port / "link_layer", layer)

    def write(**more: int) -> None:
        for name, value in values.items():
            values[name] = value + more.get(name.partition("/")[2], 0)
            text(port / name, str(values[name]))

    write()
    nics = NicCounters(tmp_path, "n1")
    nics.read(0, 0)
    write(port_rcv_data=100, port_xmit_data=50, port_xmit_wait=3, np_cnp_sent=1, out_of_sequence=20)
    (sample,) = nics.read(0, 5 * SECOND)
    assert sample.values == {"NIC_RX_BYTES": 80, "NIC_TX_BYTES": 40, "NIC_PAUSES": 0.8, "NIC_ERRORS": 4}
    assert errors_of(nics) == [
        f"nic:mlx5_2@n1 mlx5_2, packets out of sequence: 20 in 5 s, 4 per second (counter: {HEALTHY + 20})."
    ]


def test_a_recording_has_each_nic_as_a_device_and_its_errors_as_events(tmp_path: Path) -> None:
    nics = [Cassini(tmp_path / "sys", number) for number in range(2)]
    clock = SetClock()
    source = HostSource(SourceRequest(environment={"GIPFEL_NODE": "n1"}, clock=clock), root=tmp_path)
    (tmp_path / "proc").mkdir()
    telemetry = tmp_path / "run/telemetry"
    telemetry.mkdir(parents=True)
    recorder = Recorder([source], Settings(telemetry, "n1", "job", 1.0, 1.0), clock=clock, environment={})
    for second in range(20):
        nics[0].at(second, hni_sts_rx_ok_octets=1000)
        nics[1].at(second, hni_sts_rx_ok_octets=3000, pct_spt_timeouts=second // 10)
        recorder.tick()
        clock.now_ns += SECOND
    recorder.close()
    table = read_samples(telemetry)
    assert [device.name for device in table.nics] == ["cxi0", "cxi1"]
    assert table["nic:cxi1@n1"]["NIC_RX_BYTES"][5] == 3000
    overview = read_overview(telemetry, buckets=4, metrics=("NIC_RX_BYTES",))
    row = [device.uuid for device in overview.devices].index("nic:cxi0@n1")
    assert overview.mean["NIC_RX_BYTES"][row][-1] == 1000
    (event,) = [each for each in read_events(telemetry) if each.kind == "nic_errors"]
    assert (event.node, event.device) == ("n1", "nic:cxi1@n1")
    assert event.message.startswith("cxi1, time-outs of requests: ")
    places = {"0": {"dp": 0, "node": "n1", "nic": "cxi0@n1"}, "1": {"dp": 1, "node": "n1", "nic": "cxi1@n1"}}
    (telemetry.parent / "roles.json").write_text(json.dumps(places))
    lines = {select: nic_lines(telemetry.parent, select) for select in ("", "dp=1", "nic=cxi0@n1")}
    assert set(lines[""]) >= {"cxi0@n1 · rank 0", "cxi1@n1 · rank 1"}
    assert [name for name in lines["dp=1"] if "@" in name] == ["cxi1@n1 · rank 1"]
    assert [name for name in lines["nic=cxi0@n1"] if "@" in name] == ["cxi0@n1 · rank 0"]
    received = lines[""]["cxi1@n1 · rank 1"]["NIC_RX_BYTES"]
    assert received[len(received) // 2] == pytest.approx(3000 / 1e9)
    assert any(value for value in lines[""]["cxi1@n1 · rank 1"]["NIC_ERRORS"])
    assert not any(value for value in lines[""]["cxi0@n1 · rank 0"]["NIC_ERRORS"])


def nic_lines(run: Path, select: str) -> dict[str, dict[str, list[float | None]]]:
    """Return the values of each line of the job page's figure of NICs, by label and metric."""
    found: dict[str, dict[str, list[float | None]]] = {}
    figure = job_figures(run, JobView(select=select, figures=("nics",)))["figures"]["nics"]
    for trace in figure["data"]:
        found.setdefault(trace["name"], {})[trace["uid"].partition("/")[0]] = trace["y"]
    return found


class Unhealthy(FakeNvml):
    """NVML's error counters, of which a test raises some."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ecc, self.crc, self.rows = [HEALTHY, 3], [5, 7], [2, 1, 0, 0]

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:  # noqa: N802
        assert counter == pynvml.NVML_VOLATILE_ECC
        return self.ecc[kind]

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, ...]:  # noqa: N802
        return tuple(self.rows)

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:  # noqa: N802
        if link >= len(self.crc):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: str, link: int, counter: int) -> int:  # noqa: N802
        self._check("nvmlDeviceGetNvLinkErrorCounter")
        return self.crc[link] if counter == 2 else 0


def test_a_gpus_errors_are_events_only_while_they_rise() -> None:
    clock, nvml = SetClock(), Unhealthy()
    health = GpuHealth({"GPU-a": lambda: nvml_counters(nvml, "gpu0")}, node="n1", clock=clock)

    def after(seconds: float) -> list[str]:
        clock.now_ns += int(seconds * SECOND)
        return [f"{each.kind} {each.device} {each.message}" for each in health.poll()]

    assert after(0) == []
    assert after(10) == []
    nvml.crc[1] += 20
    assert after(1) == []
    assert after(9) == [
        "gpu_errors GPU-a NVLink CRC errors of flits: 20 in 10 s, 2 per second (counter: 32)."
    ]
    nvml.refused["nvmlDeviceGetNvLinkErrorCounter"] = pynvml.NVML_ERROR_UNKNOWN
    assert after(10) == []
    nvml.refused.clear()
    nvml.ecc[1] += 1
    nvml.rows[1] += 1
    first, second = after(100)
    assert first == (
        "gpu_errors GPU-a Uncorrected memory errors (ECC): 1 in 100 s, 0.01 per second (counter: 4)."
    )
    assert second.startswith("gpu_errors GPU-a Memory rows remapped after uncorrected errors: 1 in 100 s")


def test_amds_counters_may_be_missing() -> None:
    class Smi:
        AmdSmiException = OSError

        def __init__(self, counts: object) -> None:
            self.counts = counts

        def amdsmi_get_gpu_total_ecc_count(self, handle: object) -> object:
            if self.counts is None:
                raise OSError("not supported")
            return self.counts

    assert list(amd_counters(Smi(None), 0)) == []
    found = dict(amd_counters(Smi({"correctable_count": 4, "uncorrectable_count": "N/A"}), 0))
    assert list(found.values()) == [4, None, None]
