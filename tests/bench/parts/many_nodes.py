"""Create the run folder of many nodes quickly: one node is recorded, the others are copies."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gipfel_extension.recorder.sample_files import SecondAggregator
from gipfel_extension.saturation.loss_breakdown import score_parts
from gipfel_extension.telemetry.metric_table import GPU_METRICS, HOST_METRICS, SCORE_PARTS
from gipfel_extension.telemetry.sample import FINE_INTERVAL, Device, Sample
from gipfel_extension.telemetry.sources.simulated import SyntheticSource
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter

START_NS = 1_750_000_000 * 10**9
#: As long as every other name, so that a copy differs in names alone.
_NODE = "nid0000"

Made = Callable[[tuple[Device, ...], int], Iterator[list[Sample]]]


@dataclass(frozen=True)
class Recorded:
    """Output of a recorder: values that are not missing, and bytes of segment and summaries."""

    values: int
    segment: int
    summaries: int


class _Clock:
    """A clock that is set by hand."""

    now_ns = START_NS

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns - 10**15 - self.now_ns % 200

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        return True


def devices_of(node: str, gpus: int) -> tuple[Device, ...]:
    """A host and its GPUs."""
    host = Device(f"host:{node}", "host", node, None, node=node)
    return (
        host,
        *(Device(f"GPU-{node}-{i}", "gpu", "NVIDIA GH200 120GB", i, node=node) for i in range(gpus)),
    )


def node_samples(
    devices: tuple[Device, ...], seconds: int, *, interval: float = 1.0
) -> Iterator[list[Sample]]:
    """The samples of a node that trains, a beat at a time: noise on a step of some seconds."""
    noise = np.random.default_rng(1)
    for beat in range(int(seconds / interval)):
        time_ns = START_NS + int(beat * interval * 1e9)
        samples = []
        for device in devices:
            late = int(noise.integers(50_000, 900_000))
            values = _host(noise) if device.kind == "host" else _gpu(noise, beat * interval)
            # Two clocks, read one after the other.
            apart = 10**15 + int(noise.integers(30, 300))
            samples.append(Sample(time_ns + late, time_ns + late - apart, device.uuid, values))
        yield samples


def synthetic_samples(devices: tuple[Device, ...], seconds: int) -> Iterator[list[Sample]]:
    """The seconds of a node whose GPUs are those of ``synthetic:training``, read ten times in each."""
    noise = np.random.default_rng(2)
    means = SecondAggregator(devices[1:], score_parts)
    for beat, samples in enumerate(fine_samples(devices, seconds), start=1):
        means.add(samples)
        if beat % 10 == 0:
            last = samples[-1]
            yield [Sample(last.time_ns, last.monotonic_ns, devices[0].uuid, _host(noise)), *means.drain()]


def fine_samples(devices: tuple[Device, ...], seconds: int) -> Iterator[list[Sample]]:
    """The GPUs of ``synthetic:training``, a tenth of a second at a time."""
    noise = np.random.default_rng(3)
    clock = _Clock()
    source = SyntheticSource("training", clock=clock, gpus=len(devices) - 1)
    names = dict(zip((each.uuid for each in source.devices), devices[1:], strict=True))
    for beat in range(10 * seconds):
        clock.now_ns = START_NS + beat * 10**8 + int(noise.integers(50_000, 900_000))
        yield [replace(each, device=names[each.device].uuid) for each in source.read()]


def record_node(
    folder: Path,
    seconds: int,
    *,
    gpus: int = 4,
    flush: int = 2,
    made: Made = node_samples,
    fine: bool = False,
) -> Recorded:
    """Write one node's hour or less, as its recorder would, and say how much that took.

    Parameters
    ----------
    fine
        Whether what is made are fine samples, and no seconds with the parts of their score.
    """
    devices = devices_of(_NODE, gpus)
    origin = Provenance(
        _NODE,
        "job",
        "host, nvml+gpm",
        simulated=True,
        interval=FINE_INTERVAL if fine else 1.0,
        devices=devices,
        extra=() if fine else tuple(SCORE_PARTS),
    )
    writer = SegmentWriter(folder, origin, start_ns=START_NS, summaries=not fine)
    waiting: list[Sample] = []
    values = 0
    for beat, samples in enumerate(made(devices, seconds), start=1):
        waiting += samples
        if beat % flush == 0:
            writer.write(waiting)
            values += sum(v is not None for s in waiting for v in s.values.values())
            waiting = []
    segment = writer.close()
    summaries = sum(path.stat().st_size for path in folder.glob("*.summary"))
    return Recorded(values, segment.stat().st_size, summaries)


def copy_node(folder: Path, nodes: int) -> None:
    """Make the other nodes of :func:`record_node`'s one, which is no Parquet yet."""
    made = {path: path.read_bytes() for path in folder.iterdir() if _NODE in path.name}
    for number in range(1, nodes):
        name = f"nid{number:04}"
        for path, content in made.items():
            # Names stand in the heads, which are not compressed.
            head, rest = content[: 2**16], content[2**16 :]
            copy = path.with_name(path.name.replace(_NODE, name))
            copy.write_bytes(head.replace(_NODE.encode(), name.encode()) + rest)


def _gpu(noise: np.random.Generator, seconds: float) -> dict[str, float | None]:
    busy = 1.0 if seconds % 30 < 27 else 0.1
    values: dict[str, float | None] = dict.fromkeys(GPU_METRICS)
    jitter = noise.random(8)
    values |= {
        "GPU_UTIL": 1.0,
        "GR_ENGINE_ACTIVE": busy * (0.95 + 0.05 * jitter[0]),
        "SM_ACTIVE": busy * (0.8 + 0.1 * jitter[1]),
        "SM_OCCUPANCY": busy * (0.3 + 0.1 * jitter[2]),
        "PIPE_TENSOR_ACTIVE": busy * (0.5 + 0.1 * jitter[3]),
        "DRAM_ACTIVE": busy * (0.4 + 0.1 * jitter[4]),
        "PIPE_FP64_ACTIVE": 0.0,
        "PIPE_FP32_ACTIVE": 0.05 * busy * jitter[5],
        "PIPE_FP16_ACTIVE": 0.0,
        "PIPE_INT_ACTIVE": 0.05 * busy * jitter[6],
        "FB_USED": 7.1e10,
        "FB_TOTAL": 1.02e11,
        "POWER_USAGE": float(noise.integers(400_000, 690_000)) / 1000,
        "GPU_TEMP": float(noise.integers(55, 62)),
        "SM_CLOCK": float(1980 - 15 * noise.integers(0, 4)),
        "CLOCKS_EVENT_REASONS": 4.0,
    }
    for link in ("PCIE", "NVLINK", "C2C"):
        for way in ("TX", "RX"):
            name = f"{link}_{way}_ALL_BYTES" if link == "C2C" else f"{link}_{way}_BYTES"
            values[name] = float(noise.integers(0, 40_000)) * 2**20
    # Three of one kind are parts of a whole; where one was bound is a number of tenths.
    parts = {
        name: float(part) / 3 for name, part in zip(SCORE_PARTS, noise.random(len(SCORE_PARTS)), strict=True)
    }
    bound = {name: round(part, 1) for name, part in parts.items() if "_BOUND_" in name}
    return values | parts | bound | {"SCORE_SHARE": 1.0}


def _host(noise: np.random.Generator) -> dict[str, float | None]:
    values: dict[str, float | None] = dict.fromkeys(HOST_METRICS)
    jitter = noise.random(4)
    values |= {
        "CPU_UTIL": 0.2 + 0.1 * jitter[0],
        "CPU_CORES_USED": 60.0 + 10 * jitter[1],
        "MEMORY_USED": 2e11 + 4096.0 * float(noise.integers(0, 10**6)),
        "MEMORY_TOTAL": 8.6e11,
        "PRESSURE_CPU": 0.01 * jitter[2],
        "PRESSURE_MEMORY": 0.0,
        "PRESSURE_IO": 0.01 * jitter[3],
    }
    for name in ("IO_READ_BYTES", "IO_WRITE_BYTES", "NET_TX_BYTES", "NET_RX_BYTES"):
        values[name] = float(noise.integers(0, 10**9))
    return values
