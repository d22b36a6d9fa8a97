"""Trains a sharded tensor whose checkpoints go to the node's memory first; ``kill=STEP`` kills all ranks.

They end when all of them have written that step to their nodes, and before much of it was copied. The final
weights depend on the number of steps alone.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from gipfel_widgets import Checkpoints

ROWS, COLUMNS = 1 << 10, 1 << 10

given = dict(word.split("=", 1) for word in sys.argv[1:])
steps, every, pause = int(given["steps"]), int(given.get("every", "5")), float(given.get("pause", "0"))
folder = Path(os.environ["GIPFEL_CHECKPOINT"])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
start = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS)
weights = distribute_tensor(start, init_device_mesh("cpu", (world,)), [Shard(0)])
state = {"weights": weights}
checkpoints = Checkpoints(folder, every=every, local="memory", limit=float(given.get("limit", "0")))
first = checkpoints.load(state)
print(f"START {first} world {world} resume {os.environ.get('GIPFEL_RESUME', '0')}", flush=True)
for step in range(first + 1, steps + 1):
    weights.to_local().mul_(0.5).add_(step)
    time.sleep(pause)
    due = checkpoints.due(step)
    dist.barrier()
    print(f"STEP {step}", flush=True)
    if due:
        checkpoints.save(step, state)
        print(f"SAVING {step}", flush=True)
    if given.get("kill") == str(step):
        asked = f"gipfel-{os.getuid()}-*/step-{step}/request.json"
        while rank == 0 and not list(Path("/dev/shm").glob(asked)):
            time.sleep(0.01)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    if checkpoints.ending:
        checkpoints.close()
        print("LEFT", flush=True)
        sys.exit(0)
checkpoints.close()
whole = weights.full_tensor()
if rank == 0:
    print("FINAL " + hashlib.sha256(whole.numpy().tobytes()).hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
