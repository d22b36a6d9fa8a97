"""Runs that the job page shows: a recorded one of 16 ranks, and a launch that runs."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from communication_files import write_dumps
from topology_trees import collected, gh200

from gipfel_cluster.egress.log import GateLog
from gipfel_extension.network import Limits, Owner, Socket, TrafficWatch
from gipfel_extension.network.record import NetworkFile
from gipfel_extension.recorder.journal import Journal
from gipfel_extension.recorder.sample_files import SampleWriter, Settings
from gipfel_extension.storage import FilesRow, MountRow, Period, ProbeRow, RankRow, StorageFile
from gipfel_extension.telemetry.ranks import RankLocation, ranks_file, ranks_json
from gipfel_extension.telemetry.sample import Device, Provenance, Sample
from gipfel_extension.telemetry.sources import SystemClock
from gipfel_extension.topology.cluster import ClusterState, NodeCounts, SwitchLoad, append_state
from gipfel_extension.topology.collect import store_node
from gipfel_extension.training.launch import Launch, launch
from gipfel_extension.training.record.spec import LaunchSpec


def _made_storage(run: Path, start_ns: int) -> None:
    """Write a job that opens a few small files of a Lustre that others slow for a while."""
    files = FilesRow(
        "/scratch/imagenet/*", "data", "shared", "/scratch", "lustre", "small files", (0, 1), 5120,
        290_000_000, 121_000, "/scratch/imagenet/n01440764/7.jpg", False, None,
    )  # fmt: skip
    rank = RankRow(0, 0.4e6, 0.1e6, 0.4e6, 0.0, 7.0, 3.0, 0.1)
    why = "Only root reads /sys/kernel/debug, where Lustre has its statistics since version 2.12."
    for number in range(12):
        mount = MountRow("/scratch", "lustre", "shared", 8.0, None, None, None, None, None, why)
        probe = ProbeRow("/scratch", 90.0 if 4 <= number < 9 else 1.2, None, None, 0.8, None, "")
        time_ns = start_ns + number * 5 * 10**9
        period = Period("nid000", time_ns, 5.0, "", (rank,), (mount,), (probe,))
        StorageFile(run, "nid000").append(period, [files])


def made_run(run: Path, system: Path) -> None:
    """Make a run of four nodes with four GPUs and ranks each, a pipeline stage to a node."""
    start_ns = time.time_ns() - 90 * 10**9
    telemetry = run / "telemetry"
    telemetry.mkdir(parents=True)
    node = collected(system, gh200(system))
    for number in range(4):
        name = f"nid{number:03}"
        uuids = {gpu.uuid: f"GPU-{number}-{gpu.index}" for gpu in node.gpus}
        gpus = tuple(replace(gpu, uuid=uuids[gpu.uuid]) for gpu in node.gpus)
        links = tuple(
            replace(each, first=uuids[each.first], second=uuids.get(each.second, each.second))
            for each in node.links
        )
        store_node(run, replace(node, node=name, gpus=gpus, links=links))
        devices = tuple(Device(f"GPU-{number}-{i}", "gpu", "NVIDIA GH200 120GB", i, name) for i in range(4))
        nics = tuple(
            Device(f"nic:cxi{i}@{name}", "nic", f"cxi{i}", i, node=name, scope="node") for i in range(4)
        )
        origin = Provenance(name, "job", "test", True, 1.0, (*devices, *nics))
        settings = Settings(telemetry, name, "job", 1.0, 5.0)
        writer = SampleWriter(settings, origin, Journal(telemetry, name, "job", SystemClock()), SystemClock())
        values = {"SM_ACTIVE": 0.8, "PIPE_TENSOR_ACTIVE": 0.5, "DRAM_ACTIVE": 0.4}
        writer.add(
            [Sample(start_ns + s * 10**9, s, each.uuid, values) for s in range(60) for each in devices]
        )
        traffic = {"NIC_RX_BYTES": 2e9, "NIC_TX_BYTES": 1e9, "NIC_PAUSES": 0.0, "NIC_ERRORS": 0.0}
        writer.add([Sample(start_ns + s * 10**9, s, each.uuid, traffic) for s in range(60) for each in nics])
        writer.flush()
        writer.finish()
        where = [
            RankLocation(4 * number + i, name, 100 + i, each.uuid, "python") for i, each in enumerate(devices)
        ]
        ranks_file(telemetry, name, "job").write_text(ranks_json(where))
    watch = TrafficWatch(Limits(), lambda _: Owner("python", 3))
    peer, own = ip_address("203.0.113.5"), ip_address("10.1.1.1")
    sockets = [
        Socket("tcp", own, 40000, peer, 443, 0, 1, 1, False, 3_200_000, 1500),
        Socket("tcp", ip_address("0.0.0.0"), 8888, ip_address("0.0.0.0"), 0, 0, 2, 2, True),
    ]
    changed, _ = watch.update(sockets, [], start_ns)
    NetworkFile(run, "nid000").append(watch.flows, changed)
    gate = GateLog(run / "gate", "nid000", clock_ns=lambda: start_ns)
    found = gate.note("data.example", 443, "tcp", allowed=True, address="203.0.113.9")
    gate.add_bytes(found, sent=400, received=5_000_000)
    for _ in range(2):
        gate.note("files.example", 22, "tcp", allowed=False, reason="not on the allow list")
    gate.flush(at_once=True)
    for minute in range(2):
        counts = NodeCounts(allocated=60 + minute, idle=3, down=1)
        neighbours = SwitchLoad(name="leaf1", own=4, others=2, idle=1, jobs=2)
        state = ClusterState(
            time_ns=start_ns + minute * 30 * 10**9, source="sinfo and squeue", nodes=counts,
            partition="normal", partition_nodes=counts, running=7, pending=12, switches=(neighbours,),
        )  # fmt: skip
        append_state(run, state)
    _made_storage(run, start_ns)
    roles = {str(rank): {"pp": rank // 4, "dp": rank % 4} for rank in range(16)}
    (run / "roles.json").write_text(json.dumps(roles))
    launch = run / "launches" / "1"
    write_dumps(launch / "flight_recorder", 16)
    (launch / "ranks").mkdir()


_PROGRAM = """
import os, time
def wait_for_data():
    time.sleep(600)
wait_for_data()
"""


@contextmanager
def running_launch(run: Path, home: Path) -> Iterator[Launch]:
    """Start two ranks in a run folder, and stop them."""
    (run / "telemetry").mkdir(parents=True)
    (home / "train.py").write_text(_PROGRAM)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(home), "GIPFEL_RUN": str(run),
        "GIPFEL_RUNS": str(run.parent), "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    spec = LaunchSpec(target="train.py", launcher="srun", gpus_per_node=2, preflight=False)
    started = launch(spec, environment, directory=home)
    assert isinstance(started, Launch)
    try:
        yield started
    finally:
        started.stop()
        assert started.wait(60) is not None
