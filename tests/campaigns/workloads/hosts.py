"""GPUs that wait for their host: launches, input, start-up; and GPUs without work."""

import numpy as np

from .phases import OFF, kernel, matmul, repeat, stream, tiny, transformer
from .recording import GH200, Job, Phase, Program, shape

Rng = np.random.Generator
_LAUNCH_ADVICE = ("cuda-graphs", "compile")
_LOADER_ADVICE = ("loader-workers", "pinned-memory")


def _launching(rng: Rng, phase: Phase, cores: float, gpus: int = 1, **job: object) -> Job:
    made = Job(rng, seconds=rng.uniform(30, 90), gpus=gpus, **job)  # type: ignore[arg-type]
    for number in range(gpus):
        made.run(number, [(0.3, OFF), (made.seconds, phase)])
    made.serve(0, [(made.seconds, {"CPU_CORES_USED": cores * gpus})])
    return made


@shape(
    "launch", why="one thread launches small kernels with gaps between them", unwanted_advice=_LOADER_ADVICE
)
def eager_inference(rng: Rng) -> Job:
    phase = tiny(rng, engine=rng.uniform(0.4, 0.65), active=rng.uniform(0.08, 0.18))
    return _launching(rng, phase, rng.uniform(0.95, 1.08))


@shape("launch", why="one thread launches small kernels back to back", unwanted_advice=_LOADER_ADVICE)
def eager_training(rng: Rng) -> Job:
    phase = tiny(rng, engine=rng.uniform(0.8, 0.97), active=rng.uniform(0.1, 0.25))
    return _launching(rng, phase, rng.uniform(0.95, 1.1), gpus=int(rng.choice([1, 2, 4])))


@shape(
    "launch", why="a graph of tiny kernels: the engine is on, SMs are empty", unwanted_advice=_LOADER_ADVICE
)
def graph_of_tiny_kernels(rng: Rng) -> Job:
    phase = tiny(rng, engine=1.0, active=rng.uniform(0.06, 0.15))
    return _launching(rng, phase, rng.uniform(0.1, 0.4))


def _starved(
    rng: Rng,
    *,
    host: Phase,
    gpus: int = 1,
    waits: tuple[int, ...] | None = None,
    copy: Phase | None = None,
    off: tuple[float, float] = (0.15, 0.6),
    on: tuple[float, float] = (0.05, 0.15),
    **job: object,
) -> Job:
    """Return a job that mostly waits for batches; ``waits`` are the GPUs that wait, all by default."""
    made = Job(rng, seconds=rng.uniform(40, 90), gpus=gpus, **job)  # type: ignore[arg-type]
    gap, work = rng.uniform(*off), rng.uniform(*on)
    for number in range(gpus):
        step: Program = [(gap, OFF), (0.02, copy or {"PCIE_RX_BYTES": 6e9}), (work, transformer(rng))]
        if waits is not None and number not in waits:
            step = [(1.0, transformer(rng))]
        made.run(number, repeat(step, made.seconds, rng, jitter=0.1))
    made.serve(0, [(made.seconds, host)])
    return made


@shape(
    "input",
    why="workers decode on many cores and read files while the GPU has nothing to run",
    unwanted_advice=_LAUNCH_ADVICE,
)
def loader_reads_and_decodes(rng: Rng) -> Job:
    gpus = int(rng.choice([1, 2, 4]))
    cores = gpus * rng.uniform(3, 14)
    return _starved(rng, gpus=gpus, host={"CPU_CORES_USED": cores, "IO_READ_BYTES": rng.uniform(1.5e8, 2e9)})


@shape(
    "input",
    why="workers decode what is cached: many more cores than the launching thread",
    unwanted_advice=_LAUNCH_ADVICE,
)
def loader_decodes_from_cache(rng: Rng) -> Job:
    return _starved(rng, host={"CPU_CORES_USED": rng.uniform(3.5, 16)})


@shape("input", why="workers wait for a disk: reads and I/O pressure", unwanted_advice=_LAUNCH_ADVICE)
def loader_waits_for_disk(rng: Rng) -> Job:
    host = {
        "CPU_CORES_USED": rng.uniform(0.6, 1.4),
        "IO_READ_BYTES": rng.uniform(2e8, 9e8),
        "PRESSURE_IO": rng.uniform(0.3, 0.8),
    }
    return _starved(rng, host=host)


@shape(
    "input", why="workers read Lustre, which the cgroup's counters do not see", unwanted_advice=_LAUNCH_ADVICE
)
def loader_reads_lustre(rng: Rng) -> Job:
    host = {"CPU_CORES_USED": rng.uniform(0.8, 2.0), "LUSTRE_READ_BYTES": rng.uniform(3e8, 3e9)}
    return _starved(rng, host=host, gpus=4)


@shape(
    "input", why="workers read NFS, which the cgroup's counters do not see", unwanted_advice=_LAUNCH_ADVICE
)
def loader_reads_nfs(rng: Rng) -> Job:
    return _starved(
        rng, host={"CPU_CORES_USED": rng.uniform(0.8, 2.0), "NFS_READ_BYTES": rng.uniform(2e8, 1e9)}
    )


@shape("input", why="copies from pageable memory take most of the step", unwanted_advice=_LAUNCH_ADVICE)
def pageable_copies(rng: Rng) -> Job:
    rate = rng.uniform(3e9, 9e9)
    made = Job(rng, seconds=60.0)
    step: Program = [
        (rng.uniform(0.3, 0.6), {"PCIE_RX_BYTES": rate}),
        (rng.uniform(0.1, 0.2), transformer(rng)),
    ]
    made.run(0, repeat(step, 60.0, rng))
    made.serve(0, [(60.0, {"CPU_CORES_USED": rng.uniform(1.0, 1.3)})])
    return made


@shape(
    "input", why="batches come over PCIe at its roof while most SMs are empty", unwanted_advice=_LAUNCH_ADVICE
)
def pcie_at_its_roof(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0)
    work = kernel(load=0.12, dram=0.2, active=0.97)
    step: Program = [
        (0.03, {"PCIE_RX_BYTES": rng.uniform(48e9, 54e9)}),
        (0.01, {**work, "PCIE_RX_BYTES": rng.uniform(48e9, 54e9)}),
    ]
    made.run(0, repeat(step, 60.0, rng))
    made.serve(0, [(60.0, {"CPU_CORES_USED": rng.uniform(1.5, 4)})])
    return made


@shape(
    "input",
    why="storage writes into the GPU's memory over PCIe, without the host's CPU",
    unwanted_advice=_LAUNCH_ADVICE,
)
def storage_into_gpu_memory(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0)
    step: Program = [
        (rng.uniform(0.3, 0.6), {"PCIE_RX_BYTES": rng.uniform(12e9, 26e9)}),
        (0.3, transformer(rng)),
    ]
    made.run(0, repeat(step, 60.0, rng))
    made.serve(0, [(60.0, {"CPU_CORES_USED": 0.2})])
    return made


@shape(
    "input",
    "unexplained",
    why="the video decoder is busy and the SMs are not",
    unwanted_advice=(*_LAUNCH_ADVICE, *_LOADER_ADVICE),
)
def video_decoder_binds(rng: Rng) -> Job:
    phase = {
        **kernel(load=rng.uniform(0.05, 0.15), dram=0.15, active=0.25, engine=0.4),
        "NVDEC0_ACTIVE": rng.uniform(0.9, 0.98),
    }
    return _launching(rng, phase, rng.uniform(0.5, 1.2))


@shape("input", why="the main process reads and decodes each batch itself", unwanted_advice=_LAUNCH_ADVICE)
def loader_without_workers_reads(rng: Rng) -> Job:
    return _starved(rng, host={"CPU_CORES_USED": 1.0, "IO_READ_BYTES": rng.uniform(1.2e8, 5e8)})


@shape(
    "input",
    "unexplained",
    why="the main process works on the CPU; no series tells a loader from other code",
    unwanted_advice=_LAUNCH_ADVICE,
)
def loader_without_workers_computes(rng: Rng) -> Job:
    return _starved(rng, host={"CPU_CORES_USED": rng.uniform(0.97, 1.05)}, off=(0.3, 0.8))


@shape(
    "compute",
    "input",
    why="two of four GPUs wait for their loaders",
    bounds={"input": (12, 50)},
    unwanted_advice=("slow-rank", "capping"),
)
def two_of_four_starved(rng: Rng) -> Job:
    return _starved(
        rng,
        gpus=4,
        waits=(2, 3),
        off=(0.4, 0.9),
        on=(0.2, 0.5),
        host={"CPU_CORES_USED": rng.uniform(14, 30), "IO_READ_BYTES": rng.uniform(2e8, 1e9)},
    )


@shape(
    "input", "unexplained", why="simulators on many cores feed the learner", unwanted_advice=_LAUNCH_ADVICE
)
def actors_on_the_cpu(rng: Rng) -> Job:
    return _starved(rng, host={"CPU_CORES_USED": rng.uniform(12, 60)}, off=(0.8, 2.5), on=(0.2, 0.5))


@shape(
    "unexplained",
    "input",
    why="the host runs the optimizer on many cores: data moves both ways",
    unwanted_advice=_LAUNCH_ADVICE,
)
def optimizer_on_the_host(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0, model=GH200)
    moves = {"C2C_TX_ALL_BYTES": 3e10, "C2C_RX_ALL_BYTES": 3e10}
    made.run(
        0, repeat([(rng.uniform(0.4, 0.7), moves), (rng.uniform(0.2, 0.35), transformer(rng))], 60.0, rng)
    )
    made.serve(0, [(60.0, {"CPU_CORES_USED": rng.uniform(20, 60)})])
    return made


@shape(
    "unexplained",
    why="twenty seconds of CPU code by one thread, again and again: nothing says what it is",
    unwanted_advice=(*_LAUNCH_ADVICE, *_LOADER_ADVICE),
)
def evaluation_on_the_cpu(rng: Rng) -> Job:
    made = Job(rng, seconds=120.0)
    work, rest = rng.uniform(6, 9), rng.uniform(14, 20)
    made.run(0, repeat([(work, matmul(rng)), (rest, OFF)], 120.0, rng))
    made.serve(0, [(120.0, {"CPU_CORES_USED": 1.0})])
    return made


@shape("idle", why="nothing runs, on the GPU or on its host")
def nothing(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0, gpus=int(rng.choice([1, 4])))
    for number in range(made.gpus):
        made.run(number, [(60.0, OFF)])
    made.serve(0, [(60.0, {"CPU_CORES_USED": 0.02})])
    return made


@shape("idle", why="the work is done after a sixth of the time, and the job stays")
def forgotten_job(rng: Rng) -> Job:
    made = Job(rng, seconds=120.0)
    ends = rng.uniform(15, 30)
    made.run(0, [(ends, matmul(rng)), (120.0 - ends, OFF)])
    made.serve(0, [(ends, {"CPU_CORES_USED": 1.0}), (120.0 - ends, {"CPU_CORES_USED": 0.03})])
    return made


@shape("idle", why="a person thinks between cells")
def notebook_with_pauses(rng: Rng) -> Job:
    made = Job(rng, seconds=180.0)
    program: Program = []
    hosts: Program = []
    for _ in range(8):
        run, think = rng.uniform(2, 5), rng.uniform(15, 30)
        program = [*program, (run, transformer(rng)), (think, OFF)]
        hosts = [*hosts, (run, {"CPU_CORES_USED": 1.0}), (think, {"CPU_CORES_USED": 0.03})]
    made.run(0, program)
    made.serve(0, hosts)
    return made


@shape("idle", why="one GPU of eight is used, the others never work", bounds={"idle": (80, 92)})
def one_of_eight_used(rng: Rng) -> Job:
    made = Job(rng, seconds=60.0, gpus=8)
    for number in range(8):
        made.run(number, [(60.0, matmul(rng) if number == 0 else OFF)])
    made.serve(0, [(60.0, {"CPU_CORES_USED": 1.0})])
    return made


@shape("idle", why="a server of models waits for requests")
def server_without_requests(rng: Rng) -> Job:
    made = Job(rng, seconds=120.0, filled=0.92)
    busy = kernel(load=0.1, dram=0.6)
    made.run(0, repeat([(rng.uniform(0.5, 1.5), busy), (rng.uniform(10, 20), OFF)], 120.0, rng, jitter=0.4))
    made.serve(0, [(120.0, {"CPU_CORES_USED": rng.uniform(0.02, 0.15)})])
    return made


@shape("start_up", why="two thirds of the time pass before the first work: compilation on the host")
def long_start(rng: Rng) -> Job:
    made = Job(rng, seconds=90.0)
    starts = rng.uniform(55, 70)
    made.run(0, [(starts, OFF), (90.0 - starts, matmul(rng))])
    made.serve(0, [(starts, {"CPU_CORES_USED": rng.uniform(1, 8)}), (90.0 - starts, {"CPU_CORES_USED": 1.0})])
    return made


@shape("start_up", why="a blip of a library's start does not end the start-up")
def long_start_with_a_blip(rng: Rng) -> Job:
    made = Job(rng, seconds=90.0)
    starts, blip = rng.uniform(55, 70), rng.uniform(3, 8)
    first = kernel(load=0.01, active=0.03, engine=rng.uniform(0.05, 0.3))
    made.run(0, [(blip, OFF), (rng.uniform(0.3, 1.2), first), (starts - blip - 1, OFF), (90.0, matmul(rng))])
    made.serve(0, [(starts, {"CPU_CORES_USED": rng.uniform(1, 8)}), (90.0 - starts, {"CPU_CORES_USED": 1.0})])
    return made


@shape(
    "compute", why="a short start before long work costs its share and no more", bounds={"start_up": (2, 16)}
)
def short_start(rng: Rng) -> Job:
    made = Job(rng, seconds=120.0)
    starts = rng.uniform(5, 15)
    made.run(0, [(starts, OFF), (120.0 - starts, matmul(rng))])
    made.serve(0, [(120.0, {"CPU_CORES_USED": 1.0})])
    return made


@shape("memory", "compute", why="evaluation between epochs, on the GPU all the time")
def epochs_and_evaluation(rng: Rng) -> Job:
    made = Job(rng, seconds=120.0)
    made.run(0, repeat([(rng.uniform(18, 25), matmul(rng)), (rng.uniform(8, 15), stream(rng))], 120.0, rng))
    made.serve(0, [(120.0, {"CPU_CORES_USED": 1.0})])
    return made
