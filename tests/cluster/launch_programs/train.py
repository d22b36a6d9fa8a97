"""Trains a small model, with checkpoints; ``kill=RANK:STEP`` and ``fail=RANK:STEP`` break it once.

The same data goes to every rank, so that the final weights do not depend on how many there are. A file
``enough`` beside the checkpoint makes the next step the last one.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

given = dict(word.split("=", 1) for word in sys.argv[1:])
steps, pause = int(given.get("steps", "20")), float(given.get("pause", "0"))
folder = Path(os.environ["GIPFEL_CHECKPOINT"])
file, marker = folder / "last.pt", folder / "killed"
asked: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first = 0
if file.exists():
    kept = torch.load(file, weights_only=True)
    model.module.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    first = kept["step"]
print(f"START {first} world {world} resume {os.environ.get('GIPFEL_RESUME', '0')}", flush=True)

for step in range(first, steps):
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, f"{file}.new")
        Path(f"{file}.new").replace(file)
    leave = torch.tensor([float(len(asked)), float((folder / "enough").exists())])
    dist.all_reduce(leave)
    print(f"STEP {step + 1}", flush=True)
    if given.get("kill") == f"{rank}:{step + 1}" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if given.get("fail") == f"{rank}:{step + 1}":
        raise ValueError("the loss went to the moon")
    if leave[1]:
        break
    if leave[0]:
        print("LEFT", flush=True)
        dist.barrier()
        sys.exit(0)
    time.sleep(pause)

if rank == 0:
    values = b"".join(each.numpy().tobytes() for each in model.module.state_dict().values())
    print("FINAL " + hashlib.sha256(values).hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
