"""A run folder of many simulated GPUs and ranks as recorders leave it: four GPUs and ranks to a node."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gipfel_extension.recorder.journal import Journal
from gipfel_extension.recorder.sample_files import SampleWriter, Settings
from gipfel_extension.telemetry.ranks import RankLocation, ranks_file, ranks_json
from gipfel_extension.telemetry.sample import Device, Provenance, Sample
from gipfel_extension.telemetry.sources import SystemClock
from gipfel_extension.topology import Gpu, NodeTopology
from gipfel_extension.topology.collect import store_node

GPUS_PER_NODE = 4
#: Seconds between two samples of a GPU.
INTERVAL = 5
START_NS = 1_800_000_000 * 10**9
_METRICS = ("SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "POWER_USAGE", "GPU_TEMP")
_STEP_S = 20


class LargeRun:
    """Writes the run; ``extend`` adds seconds to it, as a run that goes on does.

    Parameters
    ----------
    run
        Folder that is made.
    gpus
        Number of GPUs, and of ranks: ``pp`` is the node modulo 8, ``dp`` the others.
    """

    def __init__(self, run: Path, gpus: int, *, start_ns: int = START_NS) -> None:
        self.run, self._start_ns, self._seconds = run, start_ns, 0
        telemetry = run / "telemetry"
        telemetry.mkdir(parents=True)
        self._writers = [
            self._node(telemetry, f"nid{number:06}", number) for number in range(gpus // GPUS_PER_NODE)
        ]
        roles = {
            str(rank): {"pp": rank // GPUS_PER_NODE % 8, "dp": rank // 32 * 4 + rank % 4}
            for rank in range(gpus)
        }
        (run / "roles.json").write_text(json.dumps(roles))
        switches = "".join(
            f"SwitchName=s{leaf:02} Level=0 LinkSpeed=1 Nodes=nid[{16 * leaf:06}-{16 * leaf + 15:06}]\n"
            for leaf in range(-(-gpus // GPUS_PER_NODE // 16))
        )
        (run / "topology" / "slurm.txt").write_text(switches)

    def extend(self, seconds: int) -> None:
        """Add a sample per GPU and interval."""
        for number, (writer, devices) in enumerate(self._writers):
            writer.add(list(_samples(devices, number, self._start_ns, self._seconds, seconds)))
            writer.flush()
        self._seconds += seconds

    def finish(self) -> None:
        """Close the segments."""
        for writer, _ in self._writers:
            writer.finish()

    def _node(self, telemetry: Path, name: str, number: int) -> tuple[SampleWriter, tuple[Device, ...]]:
        devices = tuple(
            Device(f"GPU-{number:04}-{index}", "gpu", "NVIDIA GH200 120GB", index, name, simulated=True)
            for index in range(GPUS_PER_NODE)
        )
        origin = Provenance(name, "job", "test", True, float(INTERVAL), devices)
        settings = Settings(telemetry, name, "job", float(INTERVAL), 5.0)
        clock = SystemClock()
        ranks = [
            RankLocation(GPUS_PER_NODE * number + index, name, 100 + index, each.uuid, "python")
            for index, each in enumerate(devices)
        ]
        ranks_file(telemetry, name, "job").write_text(ranks_json(ranks))
        gpus = tuple(Gpu(uuid=each.uuid, index=each.index, name=each.name) for each in devices)
        store_node(self.run, NodeTopology(node=name, gpus=gpus))
        return SampleWriter(settings, origin, Journal(telemetry, name, "job", clock), clock), devices


def _samples(
    devices: tuple[Device, ...], node: int, start_ns: int, first: int, seconds: int
) -> Iterator[Sample]:
    random = np.random.default_rng(node * 100_003 + first)
    for second in range(first, first + seconds, INTERVAL):
        # A checkpoint now and then; one node is slow from the middle on.
        busy = 0.1 if second % 600 < _STEP_S else 0.8 - (0.3 if node == 5 and second > 1800 else 0.0)
        noise = random.normal(0, 0.03, (len(devices), 3))
        for device, (one, two, three) in zip(devices, noise.tolist(), strict=True):
            values = (busy + one, 0.6 * busy + two, 0.5 * busy + three, 200 + 400 * busy, 40 + 20 * busy)
            yield Sample(
                start_ns + second * 10**9,
                second * 10**9,
                device.uuid,
                {name: max(0.0, value) for name, value in zip(_METRICS, values, strict=True)},
            )
