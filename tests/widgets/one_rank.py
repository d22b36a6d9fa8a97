"""Checkpoints of a training of one rank, which a test saves by itself."""

from pathlib import Path

import torch

from gipfel_widgets.checkpoints import Checkpoints


def saved(directory: Path, steps: int, **options: object) -> Checkpoints:
    """Save a checkpoint at each of the first steps, whose number is its weights' value."""
    checkpoints = Checkpoints(directory, every=1, **options)
    for step in range(1, steps + 1):
        assert checkpoints.due(step)
        checkpoints.save(step, {"weights": torch.full((1000,), float(step))})
    checkpoints.wait()
    return checkpoints


def names(directory: Path) -> list[str]:
    """Return what is in a directory beside its records."""
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".json")
