"""One GPU that is always busy: limits of its kernels."""

import numpy as np

from .phases import OFF, kernel, matmul, repeat, stream, transformer
from .recording import GH200, T4, Job, Phase, shape

Rng = np.random.Generator
_MODEL_ADVICE = ("batch-size", "activation-checkpointing")
_LOADER_ADVICE = ("loader-workers", "pinned-memory")


def _steady(rng: Rng, phase: Phase, **job: object) -> Job:
    """Return a job that runs one kind of kernel after a short start-up."""
    made = Job(rng, seconds=rng.uniform(30, 90), **job)  # type: ignore[arg-type]
    start = rng.uniform(0.2, 1.0)
    made.run(0, [(start, OFF), (made.seconds, phase)])
    made.serve(0, [(made.seconds, {"CPU_CORES_USED": rng.uniform(0.1, 1.05)})])
    return made


@shape("compute", why="the tensor pipe issues in nine of ten cycles")
def matmul_bf16(rng: Rng) -> Job:
    return _steady(rng, matmul(rng))


@shape("compute", why="the FP32 pipe issues in nine of ten cycles")
def matmul_fp32(rng: Rng) -> Job:
    return _steady(rng, kernel(pipe="FP32", load=rng.uniform(0.82, 0.93), dram=0.2, occupancy=0.25))


@shape(
    "compute",
    why="the FP64 tensor pipe is at its roof",
    unwanted_advice=("quarter-precision", "half-precision"),
)
def matmul_fp64_tensor(rng: Rng) -> Job:
    load = rng.uniform(0.85, 0.95)
    return _steady(rng, kernel(load=load, PIPE_TENSOR_DFMA_ACTIVE=load))


@shape("compute", why="the integer tensor pipe is the busiest", unwanted_advice=("quarter-precision",))
def matmul_int8(rng: Rng) -> Job:
    load = rng.uniform(0.65, 0.85)
    return _steady(rng, kernel(load=load, dram=rng.uniform(0.2, 0.4), PIPE_TENSOR_IMMA_ACTIVE=load))


@shape("compute", why="the FP64 pipe is at its roof", unwanted_advice=("half-precision", "quarter-precision"))
def vector_fp64(rng: Rng) -> Job:
    return _steady(rng, kernel(pipe="FP64", load=rng.uniform(0.8, 0.95), dram=rng.uniform(0.2, 0.5)))


@shape("compute", why="the integer pipe is at its roof")
def hashing_integers(rng: Rng) -> Job:
    return _steady(rng, kernel(pipe="INT", load=rng.uniform(0.8, 0.95), dram=0.05, occupancy=0.6))


@shape("compute", why="the FP16 pipe without tensor cores is at its roof")
def vector_fp16(rng: Rng) -> Job:
    return _steady(rng, kernel(pipe="FP16", load=rng.uniform(0.8, 0.93), dram=rng.uniform(0.2, 0.5)))


@shape("compute", why="a matrix product on one slice of a partitioned GPU fills that slice")
def matmul_on_a_slice(rng: Rng) -> Job:
    return _steady(
        rng, matmul(rng), unrecorded=("POWER_USAGE", "SM_CLOCK", "NVLINK_TX_BYTES", "NVLINK_RX_BYTES")
    )


@shape("memory", why="a copy moves what memory can")
def device_copy(rng: Rng) -> Job:
    return _steady(rng, stream(rng))


@shape(
    "memory",
    why="batches of Fourier transforms stream their data once per pass",
    unwanted_advice=_MODEL_ADVICE,
)
def fourier_transforms(rng: Rng) -> Job:
    phase = kernel(pipe="FP32", load=rng.uniform(0.25, 0.4), dram=rng.uniform(0.8, 0.9), occupancy=0.5)
    return _steady(rng, phase)


@shape("memory", why="a stencil in FP64 streams its grid", unwanted_advice=_MODEL_ADVICE)
def stencil_fp64(rng: Rng) -> Job:
    return _steady(
        rng, kernel(pipe="FP64", load=rng.uniform(0.1, 0.3), dram=rng.uniform(0.75, 0.88), occupancy=0.5)
    )


@shape(
    "memory",
    why="each token reads all weights",
    unwanted_advice=("activation-checkpointing", "half-precision"),
)
def decode_of_one_sequence(rng: Rng) -> Job:
    return _steady(
        rng, kernel(load=rng.uniform(0.02, 0.08), dram=rng.uniform(0.7, 0.86), active=0.96), filled=0.93
    )


@shape("memory", why="an optimizer reads and writes each parameter once", unwanted_advice=_MODEL_ADVICE)
def fused_optimizer_steps(rng: Rng) -> Job:
    return _steady(rng, stream(rng), filled=0.95)


@shape("memory", "unexplained", why="sparse rows: memory is the busiest unit, and not at its roof")
def sparse_matrix_vector(rng: Rng) -> Job:
    return _steady(
        rng, kernel(pipe="FP64", load=0.05, dram=rng.uniform(0.58, 0.75), active=0.95, occupancy=0.6)
    )


@shape(
    "compute",
    "unexplained",
    why="softmax on special-function units and shared memory binds, which no series shows",
    unwanted_advice=_MODEL_ADVICE,
)
def flash_attention(rng: Rng) -> Job:
    load = rng.uniform(0.36, 0.48)
    return _steady(
        rng,
        kernel(load=load, dram=rng.uniform(0.08, 0.2), occupancy=0.18, POWER_USAGE=rng.uniform(560, 690)),
        filled=rng.uniform(0.3, 0.95),
    )


@shape(
    "unexplained",
    why="the L2 cache binds, which no series shows; power says that units work",
    unwanted_advice=_MODEL_ADVICE,
)
def cache_at_its_roof(rng: Rng) -> Job:
    return _steady(
        rng,
        kernel(
            pipe="FP32",
            load=rng.uniform(0.1, 0.28),
            dram=rng.uniform(0.05, 0.25),
            occupancy=0.6,
            POWER_USAGE=rng.uniform(500, 680),
        ),
        filled=rng.uniform(0.2, 0.6),
    )


@shape("unexplained", why="shared memory binds, which no series shows", unwanted_advice=_MODEL_ADVICE)
def shared_memory_at_its_roof(rng: Rng) -> Job:
    return _steady(
        rng,
        kernel(
            pipe="FP32",
            load=rng.uniform(0.12, 0.3),
            dram=0.05,
            occupancy=0.45,
            POWER_USAGE=rng.uniform(450, 620),
        ),
    )


@shape("unexplained", why="special functions bind, which no series shows", unwanted_advice=_MODEL_ADVICE)
def special_functions(rng: Rng) -> Job:
    return _steady(
        rng,
        kernel(
            pipe="FP32",
            load=rng.uniform(0.15, 0.3),
            dram=0.05,
            occupancy=0.7,
            POWER_USAGE=rng.uniform(430, 600),
        ),
    )


@shape(
    "memory",
    "unexplained",
    why="random rows of a table: half of memory's rate, in lines used by half",
    unwanted_advice=("activation-checkpointing", "half-precision"),
)
def embedding_lookups(rng: Rng) -> Job:
    return _steady(
        rng, kernel(pipe="FP32", load=0.04, dram=rng.uniform(0.42, 0.6), occupancy=0.75), filled=0.92
    )


@shape("occupancy", why="few warps wait for memory's latency: occupancy is recorded and low, and so is power")
def few_warps_that_wait(rng: Rng) -> Job:
    return _steady(
        rng,
        kernel(
            pipe="FP32",
            load=rng.uniform(0.04, 0.12),
            dram=rng.uniform(0.05, 0.2),
            active=0.97,
            occupancy=rng.uniform(0.03, 0.1),
            POWER_USAGE=rng.uniform(180, 260),
        ),
        filled=rng.uniform(0.1, 0.5),
    )


@shape(
    "occupancy", "unexplained", why="dependent loads with half of the warps: latency, seen by low power alone"
)
def pointer_chasing(rng: Rng) -> Job:
    return _steady(
        rng,
        kernel(
            pipe="INT",
            load=0.05,
            dram=rng.uniform(0.1, 0.25),
            occupancy=rng.uniform(0.1, 0.2),
            POWER_USAGE=rng.uniform(190, 280),
        ),
    )


@shape("interconnect", why="a kernel reads the host's memory over C2C as fast as it goes")
def kernel_on_host_memory(rng: Rng) -> Job:
    return _steady(
        rng,
        kernel(pipe="FP32", load=0.05, dram=0.1, active=0.97, C2C_RX_ALL_BYTES=rng.uniform(360e9, 430e9)),
        model=GH200,
    )


@shape("compute", "unexplained", why="a mean over phases of a training step far below the interval")
def training_of_a_transformer(rng: Rng) -> Job:
    return _steady(rng, transformer(rng), filled=0.8)


@shape("compute", why="FP8 training keeps the tensor pipe busy most of the time")
def training_in_fp8(rng: Rng) -> Job:
    return _steady(rng, transformer(rng, scale=1.25), filled=0.85)


@shape("compute", "unexplained", why="convolutions fill tensor pipes between memory-bound layers")
def diffusion_model(rng: Rng) -> Job:
    step = [(rng.uniform(0.3, 0.6), kernel(load=rng.uniform(0.6, 0.75), dram=0.3)), (0.1, stream(rng))]
    made = _steady(rng, OFF)
    made.run(0, repeat(step, made.seconds, rng))
    return made


@shape(
    "memory",
    "unexplained",
    why="batched decode reads weights and cache: memory is the busiest unit",
    unwanted_advice=("activation-checkpointing", "half-precision"),
)
def decode_of_many_sequences(rng: Rng) -> Job:
    return _steady(
        rng, kernel(load=rng.uniform(0.1, 0.3), dram=rng.uniform(0.5, 0.66), active=0.93), filled=0.92
    )


@shape("launch", why="one block spins: the engine is on, and one SM of many has work")
def one_block_spins(rng: Rng) -> Job:
    phase = kernel(pipe="INT", load=0.003, dram=0.0, active=1 / 132, occupancy=0.0005)
    return _steady(rng, phase)


@shape(
    "launch",
    why="an old GPU runs small kernels one by one from one busy thread",
    unwanted_advice=_LOADER_ADVICE,
)
def small_kernels_on_a_t4(rng: Rng) -> Job:
    phase = kernel(
        pipe="FP32", load=0.05, dram=0.06, active=rng.uniform(0.08, 0.14), engine=rng.uniform(0.14, 0.3)
    )
    made = _steady(rng, {**phase, "GPU_UTIL": 0.9}, model=T4)
    made.serve(0, [(made.seconds, {"CPU_CORES_USED": rng.uniform(0.95, 1.1)})])
    return made


@shape("memory", "compute", why="phases of half a second each, compute and then memory")
def two_phases(rng: Rng) -> Job:
    step = [(rng.uniform(0.4, 0.6), matmul(rng)), (rng.uniform(0.4, 0.6), stream(rng))]
    made = _steady(rng, OFF)
    made.run(0, repeat(step, made.seconds, rng))
    return made
