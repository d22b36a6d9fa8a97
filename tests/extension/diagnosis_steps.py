"""Steps of small jobs for the tests of diagnosis."""

import numpy as np

from gipfel_extension.diagnosis import Roles, StepTable

START_NS = 1_800_000_000 * 10**9


def work(ranks: int = 16, steps: int = 60, noise: float = 0.03, seed: int = 1) -> np.ndarray:
    """Own work of a healthy job in seconds, shape (ranks, steps)."""
    return np.exp(np.random.default_rng(seed).normal(0, noise, (ranks, steps)))


def table(seconds: np.ndarray, *, step_s: np.ndarray | None = None) -> StepTable:
    """The table of such work; a step lasts as long as its slowest rank works."""
    ranks, steps = seconds.shape
    whole = np.nanmax(seconds, axis=0) * 1.05 if step_s is None else step_s
    times = START_NS + (np.cumsum(whole) * 1e9).astype(np.int64)
    return StepTable(np.arange(ranks), np.arange(steps), times, np.tile(whole, (ranks, 1)), seconds)


def roles(ranks: int = 16, *, dp: int = 8, per_node: int = 4) -> Roles:
    """Roles of dp neighbours in each pipeline stage, with a GPU each, nodes, and two nodes a switch."""
    coordinates = {rank: {"dp": rank % dp, "pp": rank // dp} for rank in range(ranks)}
    places = {
        rank: {
            "gpu": f"GPU-{rank}",
            "node": f"n{rank // per_node}",
            "switch": f"s{rank // (2 * per_node)}",
        }
        for rank in range(ranks)
    }
    return Roles(coordinates, places)
