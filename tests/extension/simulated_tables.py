"""Tables of simulated GPUs beside a host, for figures and views."""

from gipfel_extension.telemetry.metric_table import HOST_METRICS
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_extension.telemetry.sources.simulated import SyntheticSource

START = 1_700_000_000 * 10**9
HOST = Device("host:n1", "host", "n1", None, node="n1", scope="job cgroup")
EMPTY = SampleTable(columns={})


class SetClock:
    now_ns = START

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


def simulated(seconds: int = 60, interval: float = 1.0, *, gpus: int = 4) -> SampleTable:
    """GPUs that train, and their host, a sample per interval."""
    clock = SetClock()
    source = SyntheticSource("training", clock=clock, gpus=gpus)
    samples = []
    known = dict.fromkeys(HOST_METRICS) | {"CPU_UTIL": 0.25, "MEMORY_USED": 3e9, "MEMORY_TOTAL": 12e9}
    for number in range(round(seconds / interval)):
        clock.now_ns = START + round(number * interval * 1e9)
        samples += [*source.read(), Sample(clock.now_ns, 0, HOST.uuid, known)]
    return SampleTable.from_samples(samples, (*source.devices, HOST), interval=interval)
