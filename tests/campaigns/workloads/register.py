"""The table of workload shapes, which the modules of families fill."""

from collections.abc import Callable, Mapping

import numpy as np

from .recording import Job, Shape

Draw = Callable[[np.random.Generator], Job]
SHAPES: dict[str, Shape] = {}


def shape(
    *accepted: str,
    why: str,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    silent: tuple[str, ...] = (),
) -> Callable[[Draw], Draw]:
    """Register a function that draws a job as a shape under its own name."""

    def keep(draw: Draw) -> Draw:
        name = draw.__name__.replace("_", "-")
        assert name not in SHAPES
        assert 1 <= len(accepted) <= 2
        SHAPES[name] = Shape(name, accepted, draw, why, bounds or {}, silent)
        return draw

    return keep
