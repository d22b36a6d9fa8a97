"""Trains a small model under DDP in paced steps: short bursts of work with sleeps between, so that eight
ranks together use less than one core.

Words are ``name=value``: ``steps``, ``seed``, and one fault: ``asleep=RANK:STEP``, ``shape=RANK:STEP``,
``stage=RANK,RANK,…`` (these have 40 % more pieces of work), ``samples=SPREAD`` (pieces differ from step to
step), ``reader=ADDRESS:PORT`` (each rank reads its batch from PORT + RANK), ``checkpoint=EVERY``.
"""

import os
import random
import socket
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

#: Pieces of work in a step; seconds of CPU time and of sleep of each.
PIECES, BURST_S, REST_S = 12, 0.004, 0.032
#: Ranks of a stage with more work have so many pieces more.
HEAVIER = 5
BATCH_BYTES = 400_000

given = dict(word.split("=", 1) for word in sys.argv[1:])


def at(name: str, rank: int) -> int:
    """Return the step of a fault of this rank; -1 for none."""
    who, _, step = given.get(name, "-1:-1").partition(":")
    return int(step) if int(who) == rank else -1


def burst(seconds: float) -> None:
    """Use so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def fetch(reader: socket.socket) -> None:
    """Read one batch."""
    reader.sendall(b"n")
    left = BATCH_BYTES
    while left:
        part = reader.recv(left)
        if not part:
            raise ConnectionError("the reader has ended")
        left -= len(part)


def save_checkpoint(rank: int) -> None:
    """Write 60 MB in two seconds on rank 0, for which the others wait."""
    if rank == 0:
        with tempfile.TemporaryFile() as file:
            for _ in range(4):
                file.write(os.urandom(15_000_000))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.5)
    dist.barrier()


def wait_for_a_lock_that_nobody_opens() -> None:
    """Sleep in Python."""
    time.sleep(3600)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = random.Random(f"{given.get('seed')} {rank}")
    heavy = str(rank) in given.get("stage", "").split(",")
    reader = None
    if "reader" in given:
        address, _, port = given["reader"].partition(":")
        reader = socket.create_connection((address, int(port) + rank), 60)
    print(f"READY {rank} pid {os.getpid()}", flush=True)
    for step in range(int(given.get("steps", "40"))):
        if step == at("asleep", rank):
            wait_for_a_lock_that_nobody_opens()
        pieces = PIECES + HEAVIER * heavy
        if "samples" in given:
            pieces = max(4, round(pieces * draw.gauss(1, float(given["samples"]))))
        if reader is not None:
            fetch(reader)
        for _ in range(pieces):
            burst(BURST_S)
            time.sleep(REST_S)
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        size = 7 if step == at("shape", rank) else 5
        dist.all_reduce(torch.ones(size))
        print(f"STEP {step + 1}", flush=True)
        if "checkpoint" in given and (step + 1) % int(given["checkpoint"]) == 0:
            save_checkpoint(rank)
    dist.barrier()
    dist.destroy_process_group()


main()
