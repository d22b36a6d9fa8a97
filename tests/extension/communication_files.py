"""Made recordings of communication: dumps of the flight recorder, files of NCCL Inspector, answers of RAS.

Nothing here was recorded on a GPU. The forms are those of torch 2.13, of NCCL's
ext-profiler/inspector/README.md (v4.0) and of the RAS client of NCCL 2.28.
"""

import json
import pickle
from pathlib import Path
from typing import Any

START_NS = 1_800_000_000 * 10**9
TP, STEPS = 8, 10
#: Bytes of the all-reduce of a tensor-parallel group, and of one over all ranks, in float32.
TP_BYTES, DP_BYTES = 4 << 20, 64 << 20


def write_dumps(folder: Path, ranks: int, *, slow_group: int | None = None, steps: int = STEPS) -> None:
    """Write dumps of a job with groups of eight, each on one node, and one group of all ranks.

    The calls of ``slow_group`` take twice as long. A rank that waits for others takes longer than the last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    everybody = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    for rank in range(ranks):
        first = rank // TP * TP
        name = str(1 + rank // TP)
        own = {"name": name, "desc": "tp", "ranks": str(list(range(first, first + TP)))}
        slow = 2 if rank // TP == slow_group else 1
        entries = []
        for step in range(1, steps + 1):
            entries.append(entry(step, name, "all_reduce", TP_BYTES, slow * (0.4 + 0.01 * (rank % TP))))
            entries.append(entry(step, "0", "all_reduce", DP_BYTES, 8.0 + 0.01 * (rank % 5)))
        content = {"version": "2.10", "pg_config": {"0": everybody, name: own}, "entries": entries}
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))


def entry(number: int, group: str, name: str, size: int, milliseconds: float, **more: Any) -> dict[str, Any]:
    """Return the entry of a finished call of NCCL."""
    return {
        "record_id": number, "pg_id": int(group), "process_group": (group, "x"),
        "collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": f"nccl:{name}",
        "time_created_ns": START_NS + number * 10**9,
        "duration_ms": milliseconds, "input_sizes": [[size // 4]], "input_dtypes": ["Float"],
        "output_sizes": [[size // 4]], "output_dtypes": ["Float"], "state": "completed", "is_p2p": False,
        **more,
    }  # fmt: skip


def inspector_record(
    rank: int, number: int, *, size: int, microseconds: int, ranks: int = 8, host: str = "nid001"
) -> dict[str, Any]:
    """Return an object of NCCL Inspector: an all-reduce of communicator ``0xa``."""
    return {
        "header": {"id": "0xa", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": 1_748_030_377_748_202 + number, "hostname": host, "pid": 1000 + rank,
        },
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size,
            "coll_exec_time_us": microseconds, "coll_algobw_gbs": 0.0, "coll_busbw_gbs": 0.0,
        },
    }  # fmt: skip


def write_inspector(folder: Path, ranks: int = 8) -> None:
    """Write a file of ten all-reduces of a GiB for each rank; the last rank comes last and waits least."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        lines = [
            json.dumps(
                inspector_record(rank, number, size=1 << 30, microseconds=9000 - 100 * rank, ranks=ranks)
            )
            for number in range(10)
        ]
        (folder / f"nid001-pid{1000 + rank}.log").write_text("\n".join(lines) + "\n")


def ras_answer(ranks: int = 4) -> dict[str, Any]:
    """Return RAS's JSON of two nodes with two ranks each: a communicator of all, and one of each node."""

    def rank(number: int, process: int, calls: int) -> dict[str, Any]:
        return {
            "rank": number, "host": f"nid00{process // 2}", "pid": 100 + process, "cuda_dev": process % 2,
            "collective_counts": {"AllReduce": calls, "AllGather": 0},
        }  # fmt: skip

    return {
        "nccl_version": "2.28.9",
        "communicators": [
            {
                "hash": "0x1",
                "size": ranks,
                "ranks": [rank(n, n, 50) for n in range(ranks)],
                "missing_ranks": [],
            },
            {"hash": "0x2", "size": 2, "ranks": [rank(n, n + 2, 7) for n in range(2)], "missing_ranks": []},
        ],
    }
