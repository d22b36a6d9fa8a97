"""Sum the ranks with an all-reduce, and print the variables of this rank."""

import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
value = torch.tensor([float(rank + 1)])
dist.all_reduce(value)
told = {
    "rank": rank,
    "world": world,
    "sum": value.item(),
    "node": os.environ["GIPFEL_NODE"],
    "words": sys.argv[1:],
    "address": os.environ["MASTER_ADDR"],
    "threads": os.environ["OMP_NUM_THREADS"],
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "mine": os.environ.get("MINE"),
    "leaked": sorted(name for name in ("SLURM_NTASKS", "SLURM_NPROCS", "PMI_RANK") if name in os.environ),
}
print("TOLD " + json.dumps(told), flush=True)
dist.barrier()
dist.destroy_process_group()
