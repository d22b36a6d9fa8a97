"""Shapes that were written after the rules and their thresholds were set.

They are only for the final run of a campaign. Once a rule was changed because of them, move them to another
module and write new ones.
"""

import numpy as np

from .phases import HOT, OFF, collective, kernel, matmul, repeat, stream, tiny, transformer
from .recording import GH200, Job, Phase, Program, shape

Rng = np.random.Generator
_LAUNCH_ADVICE = ("cuda-graphs", "compile")
_LOADER_ADVICE = ("loader-workers", "pinned-memory")


def _alone(rng: Rng, program: Program, host: Phase, **job: object) -> Job:
    """Return a job of one GPU that repeats a program, and its host."""
    made = Job(rng, seconds=rng.uniform(45, 90), **job)  # type: ignore[arg-type]
    made.run(0, repeat(program, made.seconds, rng))
    made.serve(0, [(made.seconds, host)])
    return made


@shape("memory", why="passes of a radix sort move each key once: memory's roof, some integer work")
def radix_sort(rng: Rng) -> Job:
    phase = kernel(pipe="INT", load=rng.uniform(0.15, 0.3), dram=rng.uniform(0.78, 0.88), occupancy=0.7)
    return _alone(rng, [(1.0, phase)], {"CPU_CORES_USED": 0.4})


@shape("compute", why="random numbers and payoffs in FP32: its pipe issues in most cycles")
def monte_carlo(rng: Rng) -> Job:
    phase = kernel(pipe="FP32", load=rng.uniform(0.8, 0.92), dram=rng.uniform(0.0, 0.1), occupancy=0.8)
    return _alone(rng, [(1.0, phase)], {"CPU_CORES_USED": 1.0})


@shape(
    "compute",
    "memory",
    why="prompts are a matrix product, tokens read all weights: seconds of one, then of the other",
)
def prompts_and_tokens(rng: Rng) -> Job:
    prompts = kernel(load=rng.uniform(0.7, 0.85), dram=0.3)
    tokens = kernel(load=rng.uniform(0.05, 0.15), dram=rng.uniform(0.75, 0.88), occupancy=0.4)
    program: Program = [(rng.uniform(0.5, 2.0), prompts), (rng.uniform(0.5, 2.0), tokens)]
    return _alone(rng, program, {"CPU_CORES_USED": 1.2}, filled=0.93)


@shape("launch", why="a small model answers one request after the other", unwanted_advice=_LOADER_ADVICE)
def one_request_at_a_time(rng: Rng) -> Job:
    phase = tiny(rng, engine=rng.uniform(0.5, 0.75), active=rng.uniform(0.05, 0.12))
    return _alone(rng, [(1.0, phase)], {"CPU_CORES_USED": rng.uniform(1.0, 1.1)})


@shape(
    "input",
    "unexplained",
    why="workers fetch from an object store over the network and decode on many cores",
    unwanted_advice=_LAUNCH_ADVICE,
)
def loader_reads_an_object_store(rng: Rng) -> Job:
    rate = rng.uniform(3e8, 2e9)
    host = {"CPU_CORES_USED": rng.uniform(4, 12), "NET_RX_BYTES": rate, "NET_TX_BYTES": rate / 200}
    program: Program = [
        (rng.uniform(0.2, 0.6), OFF),
        (0.03, {"PCIE_RX_BYTES": 8e9}),
        (rng.uniform(0.08, 0.2), transformer(rng)),
    ]
    return _alone(rng, program, host)


@shape("input", why="eight threads tokenize text that is read from a disk", unwanted_advice=_LAUNCH_ADVICE)
def text_is_tokenized_on_the_way(rng: Rng) -> Job:
    host = {"CPU_CORES_USED": rng.uniform(7, 9), "IO_READ_BYTES": rng.uniform(1.2e8, 4e8)}
    program: Program = [(rng.uniform(0.3, 0.5), OFF), (rng.uniform(0.1, 0.2), transformer(rng))]
    return _alone(rng, program, host)


@shape(
    "unexplained",
    "launch",
    why="a thread compiles again and again for new lengths: a busy core and no work on the GPU",
    unwanted_advice=_LOADER_ADVICE,
)
def compiles_for_each_length(rng: Rng) -> Job:
    program: Program = [(rng.uniform(6, 12), OFF), (rng.uniform(2, 4), transformer(rng))]
    made = Job(rng, seconds=120.0)
    made.run(0, [(3.0, transformer(rng)), *repeat(program, 120.0, rng)])
    made.serve(0, [(120.0, {"CPU_CORES_USED": rng.uniform(0.98, 1.05)})])
    return made


@shape("idle", why="a debugger holds the program: memory is full, nothing moves, on the host neither")
def held_by_a_debugger(rng: Rng) -> Job:
    made = Job(rng, seconds=120.0, filled=0.95)
    runs = rng.uniform(5, 20)
    made.run(0, [(runs, matmul(rng)), (120.0, OFF)])
    made.serve(0, [(runs, {"CPU_CORES_USED": 1.0}), (120.0, {"CPU_CORES_USED": rng.uniform(0.0, 0.03)})])
    return made


@shape(
    "start_up",
    why="weights are read from Lustre and copied for most of a short job",
    unwanted_advice=_LAUNCH_ADVICE,
)
def weights_are_loaded_for_long(rng: Rng) -> Job:
    made = Job(rng, seconds=90.0, gpus=4, model=GH200, filled=0.9)
    loads = rng.uniform(56, 68)
    for number in range(4):
        made.run(number, [(loads, OFF), (90.0 - loads, transformer(rng))])
    reads = {"CPU_CORES_USED": rng.uniform(1, 4), "LUSTRE_READ_BYTES": rng.uniform(1e9, 5e9)}
    made.serve(0, [(loads, reads), (90.0 - loads, {"CPU_CORES_USED": 4.0})])
    return made


@shape(
    "communication",
    why="shards are gathered over NVLink, exposed for more than half of the step",
    unwanted_advice=(*_LAUNCH_ADVICE, *_LOADER_ADVICE),
)
def shards_are_gathered_in_a_node(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0, gpus=4)
    step, share = rng.uniform(0.3, 0.9), rng.uniform(0.58, 0.7)
    gather = collective(rng, nvlink=rng.uniform(8e10, 1.6e11))
    program: Program = [(step * (1 - share), transformer(rng)), (step * share, gather)]
    steps = repeat(program, 60.0, rng, jitter=0.01)
    for number in range(4):
        made.run(number, steps)
    made.serve(0, [(60.0, {"CPU_CORES_USED": 4.2})])
    return made


@shape(
    "compute",
    "imbalance",
    why="the four GPUs of one node take a third longer, those of the other wait in a collective",
    bounds={"imbalance": (6, 22)},
    unwanted_advice=_LOADER_ADVICE,
)
def one_node_is_slower(rng: Rng) -> Job:
    step, slower = rng.uniform(0.5, 1.5), rng.uniform(1.25, 1.45)
    work = transformer(rng)
    fast: Program = [
        (step, work),
        (step * (slower - 1), collective(rng)),
        (0.03, collective(rng, nvlink=2e11)),
    ]
    slow: Program = [(step * slower, work), (0.03, collective(rng, nvlink=2e11))]
    network = {"CPU_CORES_USED": 4.2, "NET_TX_BYTES": 6e8, "NET_RX_BYTES": 6e8}
    made = Job(rng, seconds=70.0, gpus=8, nodes=2)
    for number in range(8):
        made.run(number, repeat(slow if number < 4 else fast, 70.0, rng, jitter=0.0))
    for node in range(2):
        made.serve(node, [(70.0, network)])
    return made


@shape(
    "imbalance",
    "unexplained",
    why="rank 0 evaluates alone, seven ranks wait at a barrier for most of the time",
    unwanted_advice=_LOADER_ADVICE,
)
def first_rank_evaluates_alone(rng: Rng) -> Job:
    made = Job(rng, seconds=120.0, gpus=8)
    together, alone = rng.uniform(4, 7), rng.uniform(9, 13)
    work, waits = transformer(rng), collective(rng)
    for number in range(8):
        program: Program = [(together, work), (alone, work if number == 0 else waits)]
        made.run(number, repeat(program, 120.0, rng, jitter=0.0))
    made.serve(0, [(120.0, {"CPU_CORES_USED": 8.2})])
    return made


@shape(
    "compute",
    "capped",
    why="heat halves the clock for half of the time",
    bounds={"capped": (12, 38)},
    unwanted_advice=("half-precision", "quarter-precision"),
)
def hot_in_the_afternoon(rng: Rng) -> Job:
    made = Job(rng, seconds=90.0)
    full, hot = matmul(rng), rng.uniform(850, 1100)
    cool = rng.uniform(35, 55)
    slowed = {**full, "SM_CLOCK": hot, "CLOCKS_EVENT_REASONS": float(HOT)}
    made.run(0, [(0.5, OFF), (cool, full), (90.0, slowed)])
    made.serve(0, [(90.0, {"CPU_CORES_USED": 1.0})])
    return made


@shape(
    "memory",
    why="an optimizer's update at memory's roof beside a short step of one small model",
    unwanted_advice=("cuda-graphs", *_LOADER_ADVICE),
)
def updates_outweigh_the_step(rng: Rng) -> Job:
    program: Program = [(rng.uniform(0.05, 0.1), transformer(rng)), (rng.uniform(0.4, 0.8), stream(rng))]
    return _alone(rng, program, {"CPU_CORES_USED": 1.0}, filled=0.85)


@shape(
    "compute",
    "unexplained",
    why="checkpoints of a minute apart to a parallel file system, GPUs wait, by every node",
    bounds={"checkpoint": (8, 24)},
    unwanted_advice=_LOADER_ADVICE,
)
def every_node_writes_its_shard(rng: Rng) -> Job:
    work, pause = rng.uniform(40, 50), rng.uniform(6, 11)
    made = Job(rng, seconds=180.0, gpus=8, nodes=2, model=GH200)
    training = transformer(rng)
    for number in range(8):
        made.run(number, [(work, training), (pause, OFF)] * 4)
    write = {"CPU_CORES_USED": 5.0, "LUSTRE_WRITE_BYTES": rng.uniform(8e8, 6e9)}
    for node in range(2):
        made.serve(node, [(work, {"CPU_CORES_USED": 4.0}), (pause, write)] * 4)
    return made


@shape("compute", why="a simulation in FP64 with a short exchange of borders")
def stencil_with_exchange(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0, gpus=4)
    work = kernel(pipe="FP64", load=rng.uniform(0.75, 0.88), dram=rng.uniform(0.3, 0.5))
    steps = repeat([(rng.uniform(0.2, 0.4), work), (0.02, collective(rng, nvlink=1e11))], 60.0, rng)
    for number in range(4):
        made.run(number, steps)
    made.serve(0, [(60.0, {"CPU_CORES_USED": 4.0})])
    return made


@shape("idle", why="three GPUs of four were requested and never used", bounds={"idle": (65, 76)})
def one_of_four_used(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0, gpus=4)
    for number in range(4):
        made.run(number, [(60.0, transformer(rng) if number == 0 else OFF)])
    made.serve(0, [(60.0, {"CPU_CORES_USED": 1.0})])
    return made
