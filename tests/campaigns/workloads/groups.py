"""Several GPUs that wait for each other: collectives, pipelines, slow ranks."""

import numpy as np

from .phases import OFF, collective, in_step, kernel, repeat, tiny, transformer
from .recording import GH200, L40S, Job, Phase, Program, shape

Rng = np.random.Generator
_LAUNCH_ADVICE = ("cuda-graphs", "compile")
_LOADER_ADVICE = ("loader-workers", "pinned-memory")
#: Traffic between stages of a pipeline while they work.
_ACTIVATIONS = {"NVLINK_TX_BYTES": 2e9, "NVLINK_RX_BYTES": 2e9}
_WRONG = (*_LAUNCH_ADVICE, *_LOADER_ADVICE)


def _parallel(
    rng: Rng,
    steps: list[Program],
    *,
    nodes: int = 1,
    host: Phase | None = None,
    wait: Phase = OFF,
    **job: object,
) -> Job:
    """Return a job whose GPUs end each step together."""
    made = Job(rng, seconds=rng.uniform(50, 90), gpus=len(steps), nodes=nodes, **job)  # type: ignore[arg-type]
    for number, program in enumerate(in_step(steps, wait, made.seconds, rng)):
        made.run(number, program)
    cores = rng.uniform(0.8, 1.15) * len(steps) / nodes
    for node in range(nodes):
        made.serve(node, [(made.seconds, {"CPU_CORES_USED": cores, **(host or {})})])
    return made


@shape("interconnect", why="an all-reduce fills NVLink all the time")
def all_reduce_in_a_node(rng: Rng) -> Job:
    phase = collective(rng, nvlink=rng.uniform(340e9, 400e9))
    return _parallel(rng, [[(1.0, phase)]] * 8)


def _data_parallel(
    rng: Rng, *, exposed: tuple[float, float], phase: Phase, nodes: int, host: Phase, **job: object
) -> Job:
    step = rng.uniform(0.3, 1.2)
    share = rng.uniform(*exposed)
    programs = [[(step * (1 - share), transformer(rng)), (step * share, phase)] for _ in range(4 * nodes)]
    return _parallel(rng, programs, nodes=nodes, host=host, **job)


@shape("communication", why="most of the step is an all-reduce over InfiniBand", unwanted_advice=_WRONG)
def data_parallel_over_infiniband(rng: Rng) -> Job:
    rate = rng.uniform(8e9, 25e9)
    return _data_parallel(
        rng,
        exposed=(0.55, 0.7),
        phase=collective(rng, nvlink=2e9),
        nodes=2,
        host={"NET_TX_BYTES": rate, "NET_RX_BYTES": rate},
    )


@shape(
    "communication",
    why="most of the step is an all-reduce over Slingshot, whose counters are read",
    unwanted_advice=_WRONG,
)
def data_parallel_over_slingshot(rng: Rng) -> Job:
    rate = rng.uniform(5e9, 40e9)
    return _data_parallel(
        rng,
        exposed=(0.55, 0.7),
        phase=collective(rng),
        nodes=2,
        model=GH200,
        host={"NET_TX_BYTES": rate, "NET_RX_BYTES": rate},
    )


@shape(
    "unexplained",
    "communication",
    why="an all-reduce over a network whose counters are not recorded",
    unwanted_advice=_WRONG,
)
def data_parallel_unseen_network(rng: Rng) -> Job:
    return _data_parallel(
        rng,
        exposed=(0.6, 0.7),
        phase=collective(rng),
        nodes=2,
        host={},
        unrecorded=("NET_TX_BYTES", "NET_RX_BYTES"),
    )


@shape(
    "compute",
    "communication",
    why="a tenth to a quarter of the step is exposed all-reduce",
    bounds={"communication": (4, 32)},
    unwanted_advice=_LOADER_ADVICE,
)
def data_parallel_mostly_overlapped(rng: Rng) -> Job:
    return _data_parallel(
        rng,
        exposed=(0.1, 0.25),
        phase=collective(rng, nvlink=60e9),
        nodes=2,
        host={"NET_TX_BYTES": 1.2e10, "NET_RX_BYTES": 1.2e10},
    )


@shape(
    "communication",
    why="gathers of sharded parameters between nodes take most of the step",
    unwanted_advice=_WRONG,
)
def sharded_parameters_between_nodes(rng: Rng) -> Job:
    return _data_parallel(
        rng,
        exposed=(0.6, 0.72),
        phase=collective(rng, nvlink=rng.uniform(1e10, 5e10)),
        nodes=4,
        host={"NET_TX_BYTES": 2e10, "NET_RX_BYTES": 2e10},
    )


@shape(
    "communication",
    why="experts exchange tokens over NVLink, below its peak, for most of the step",
    unwanted_advice=_WRONG,
)
def exchange_between_experts(rng: Rng) -> Job:
    return _data_parallel(
        rng, exposed=(0.6, 0.72), phase=collective(rng, nvlink=rng.uniform(60e9, 120e9)), nodes=1, host={}
    )


@shape(
    "communication",
    "interconnect",
    why="an all-reduce between GPUs without NVLink: PCIe both ways",
    unwanted_advice=_WRONG,
)
def all_reduce_over_pcie(rng: Rng) -> Job:
    rate = rng.uniform(9e9, 18e9)
    return _data_parallel(
        rng, exposed=(0.6, 0.72), phase=collective(rng, pcie=rate), nodes=1, host={}, model=L40S
    )


@shape(
    "launch",
    "communication",
    why="small kernels of eight GPUs that decode together",
    unwanted_advice=("bucket-size", *_LOADER_ADVICE),
)
def tensor_parallel_decode(rng: Rng) -> Job:
    phase = {
        **tiny(rng, engine=0.96, active=rng.uniform(0.15, 0.3)),
        "NVLINK_TX_BYTES": 5e10,
        "NVLINK_RX_BYTES": 5e10,
    }
    return _parallel(rng, [[(1.0, phase)]] * 8)


@shape(
    "communication",
    "unexplained",
    why="ranks of MPI spin on the host between short kernels",
    unwanted_advice=_WRONG,
)
def host_messages(rng: Rng) -> Job:
    rate = rng.uniform(2e8, 4e9)
    step = rng.uniform(0.1, 0.4)
    work = kernel(pipe="FP64", load=0.2, dram=0.7)
    programs: list[Program] = [[(0.35 * step, work), (0.65 * step, OFF)]] * 8
    return _parallel(rng, programs, nodes=2, host={"NET_TX_BYTES": rate, "NET_RX_BYTES": rate})


def _pipeline(rng: Rng, wait: Phase) -> Job:
    """Return a pipeline of four stages; the bubble is a third to a half of the step."""
    unit = rng.uniform(0.08, 0.2)
    batches = int(rng.integers(3, 6))
    programs: list[Program] = [
        [
            (stage * unit, wait),
            (batches * unit, {**transformer(rng), **_ACTIVATIONS}),
            ((3 - stage) * unit, wait),
        ]
        for stage in range(4)
    ]
    return _parallel(rng, programs, wait=wait)


@shape(
    "compute",
    "imbalance",
    why="stages wait for each other in a kernel that spins on one SM",
    unwanted_advice=_WRONG,
)
def pipeline_that_spins(rng: Rng) -> Job:
    return _pipeline(rng, {"GR_ENGINE_ACTIVE": 1.0, "SM_ACTIVE": 0.01, "SM_OCCUPANCY": 0.001})


@shape(
    "compute", "imbalance", why="stages wait for each other with nothing on the GPU", unwanted_advice=_WRONG
)
def pipeline_that_stops(rng: Rng) -> Job:
    return _pipeline(rng, OFF)


@shape(
    "imbalance",
    "compute",
    why="the last stage of a pipeline has more layers than the others",
    unwanted_advice=_WRONG,
    bounds={"imbalance": (8, 60)},
)
def uneven_stages(rng: Rng) -> Job:
    spin = {"GR_ENGINE_ACTIVE": 1.0, "SM_ACTIVE": 0.01, "SM_OCCUPANCY": 0.001}
    step, more = rng.uniform(0.4, 1.0), rng.uniform(1.4, 2.0)
    programs: list[Program] = [
        [(step * (more if stage == 3 else 1.0), {**transformer(rng), **_ACTIVATIONS})] for stage in range(4)
    ]
    return _parallel(rng, programs, wait=spin)


def _straggler(rng: Rng, slower: float) -> Job:
    """Return a job in which seven ranks wait in a collective for one that computes longer."""
    step = rng.uniform(0.5, 1.5)
    slow = int(rng.integers(8))
    reduce = (0.03, collective(rng, nvlink=2e11))
    programs: list[Program] = [
        [(step * (1 + slower if rank == slow else 1.0), transformer(rng)), reduce] for rank in range(8)
    ]
    return _parallel(rng, programs, wait=collective(rng))


@shape(
    "compute",
    "unexplained",
    why="one rank of eight is a tenth slower",
    bounds={"imbalance": (2, 14)},
    unwanted_advice=_WRONG,
)
def rank_10_percent_slower(rng: Rng) -> Job:
    return _straggler(rng, rng.uniform(0.08, 0.13))


@shape(
    "compute",
    "unexplained",
    why="one rank of eight is a fifth slower",
    bounds={"imbalance": (6, 22)},
    unwanted_advice=_WRONG,
)
def rank_20_percent_slower(rng: Rng) -> Job:
    return _straggler(rng, rng.uniform(0.18, 0.25))


@shape(
    "compute",
    "imbalance",
    why="one rank of eight takes half as long again",
    bounds={"imbalance": (15, 45)},
    unwanted_advice=_WRONG,
)
def rank_50_percent_slower(rng: Rng) -> Job:
    return _straggler(rng, rng.uniform(0.4, 0.6))


@shape(
    "compute",
    "imbalance",
    why="batches of uneven length: at each step another rank is the last",
    bounds={"imbalance": (5, 40)},
    unwanted_advice=_LOADER_ADVICE,
)
def uneven_batches(rng: Rng) -> Job:
    made = Job(rng, seconds=70.0, gpus=8)
    step, wait, reduce = rng.uniform(0.5, 1.0), collective(rng), collective(rng, nvlink=2e11)
    work = transformer(rng)
    programs: list[list[tuple[float, Phase]]] = [[] for _ in range(8)]
    total = 0.0
    while total < 70.0:
        lengths = step * rng.lognormal(0.0, 0.3, 8)
        for own, length in zip(programs, lengths, strict=True):
            own.extend([(float(length), work), (float(lengths.max() - length), wait), (0.03, reduce)])
        total += float(lengths.max()) + 0.03
    for number, program in enumerate(programs):
        made.run(number, program)
    made.serve(0, [(70.0, {"CPU_CORES_USED": 8.0})])
    return made


@shape(
    "compute",
    "unexplained",
    why="eight equal ranks: none is behind",
    bounds={"imbalance": (0, 2.5)},
    unwanted_advice=("slow-rank", *_LOADER_ADVICE),
)
def equal_ranks(rng: Rng) -> Job:
    step = rng.uniform(0.4, 1.2)
    return _parallel(
        rng, [[(step, transformer(rng)), (0.02, collective(rng, nvlink=2e11))] for _ in range(8)]
    )


@shape(
    "compute",
    "unexplained",
    why="an island trains alone beside a node that trains alone: no rank waits",
    bounds={"imbalance": (0, 4)},
    unwanted_advice=("slow-rank",),
)
def independent_runs(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0, gpus=4)
    for number in range(4):
        step: Program = [(rng.uniform(0.3, 0.9), transformer(rng)), (rng.uniform(0.02, 0.05), OFF)]
        made.run(number, repeat(step, 60.0, rng))
    made.serve(0, [(60.0, {"CPU_CORES_USED": 4.0})])
    return made
