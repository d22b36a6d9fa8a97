"""Bound on what tests of means can find among 64 and 1 024 ranks: ``tests/campaigns/straggler_bound.py``.

For each family of noise of the campaign ``stragglers`` that is new in each step, the distribution of a rank's
mean over 20 steps beside its peers is computed by convolution, with healthy ranks that differ by 0.7 %. The
threshold is the one that all ranks together exceed in one of 1 000 windows; the power is the share of ranks,
slow by 10 % on average, beyond it. Everything that a rule must measure is known here: noise, its shape, what
ranks differ by, the peers' median. ``guarded`` has the further condition that one rank of twice the noise
of its peers, which is not slow, is not accused more often, by its mean alone.
"""

import json
import math
from collections.abc import Iterator

import numpy as np
from step_tables import Floats

_NOISE, _DIFFER, _SHARE, _STEPS, _FALSE = 0.05, 0.007, 0.10, 20, 1e-3
_WIDTH, _SIZE = 2e-4, 1 << 18
#: Logarithms of work, from far below to far above what 20 steps sum up to.
_X = (np.arange(_SIZE) - _SIZE // 2) * _WIDTH
_COURSES = ("saw teeth", "each third step", "by chance")


def _part(density: Floats) -> Floats:
    density = np.maximum(np.nan_to_num(density), 0)
    return np.asarray(density / density.sum())


def _normal(deviation: float) -> Floats:
    return _part(np.exp(-((_X / deviation) ** 2) / 2))


def _sum(*parts: tuple[Floats, int]) -> Floats:
    """Return the distribution of a sum of independent values, each so many times."""
    product = np.ones(_SIZE // 2 + 1, dtype=complex)
    for part, times in parts:
        product *= np.fft.rfft(np.fft.ifftshift(part)) ** times
    return _part(np.fft.fftshift(np.fft.irfft(product, _SIZE)))


def families(cv: float) -> dict[str, Floats]:
    """Return the distributions of logarithms of `step_tables`' queues, longest and neighbours."""
    growth = np.exp(np.clip(_X, -3, 3))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wald = 1 + (growth - 1) / cv * 0.5
        queues = np.where(wald > 0, wald**-1.5 * np.exp(-2 * (wald - 1) ** 2 / wald) * growth, 0)
        grid = np.linspace(0, 8, 400_001)
        share = np.diff((1 - np.exp(-(grid**2))) ** 5)
        mean = float((share * grid[1:]).sum())
        longest = mean + math.sqrt(float((share * (grid[1:] - mean) ** 2).sum())) * (growth - 1) / cv
        tail = np.exp(-(longest**2))
        longest = np.where(longest > 0, (1 - tail) ** 4 * longest * tail * growth, 0)
    own = math.sqrt(math.pi / 2) + math.sqrt(2 - math.pi / 2) * _X * math.sqrt(2) / cv
    rayleigh = _part(np.where(own > 0, own * np.exp(-(own**2) / 2), 0))
    return {
        "queues": _part(queues),
        "longest": _part(longest),
        "neighbours": _sum((_normal(cv / math.sqrt(2)), 1), (rayleigh, 1)),
    }


def _beyond(distribution: Floats) -> Floats:
    return np.asarray(np.cumsum(distribution[::-1])[::-1])


def powers(family: str, first: int, ranks: int, *, guarded: bool) -> Iterator[float]:
    """Yield the share of slow ranks found by course, of which `first` is the first step that is seen."""
    noise = families(_NOISE)[family]
    centre = _STEPS * float((noise * _X).sum())
    differ = _normal(_DIFFER * _STEPS)
    healthy = _sum((noise, _STEPS), (differ, 1))
    threshold = _X[np.argmax(_beyond(healthy) < _FALSE / ranks)] - centre
    if guarded:
        noisy = families(2 * _NOISE)[family]
        alone = _beyond(_sum((noisy, _STEPS), (differ, 1)))
        threshold = max(threshold, _X[np.argmax(alone < _FALSE)] - _STEPS * float((noisy * _X).sum()))
    steps = np.arange(first, first + _STEPS)
    for shares in (0.4 + 0.3 * (steps % 5), np.where(steps % 3 == 0, 1.8, 0.6)):
        shift = float(np.log1p(_SHARE * shares).sum())
        yield float(_beyond(healthy)[np.argmax(threshold + centre - shift <= _X)])
    grid = np.linspace(0, 8, 80_001)
    counts, _ = np.histogram(
        np.log1p(_SHARE * grid),
        bins=np.append(_X, _X[-1] + _WIDTH) - _WIDTH / 2,
        weights=grid * np.exp(-(grid**2) * math.pi / 4),
    )
    unsteady = _beyond(_sum((noise, _STEPS), (differ, 1), (_part(counts), _STEPS)))
    yield float(unsteady[np.argmax(threshold + centre <= _X)])


def main() -> None:
    """Print the bounds."""
    for count in (64, 1024):
        for name, first in (("slow from the start", 10), ("became slow", 0)):
            for guarded in (False, True):
                found = {each: list(powers(each, first, count, guarded=guarded)) for each in families(_NOISE)}
                mean = float(np.mean(list(found.values())))
                courses = {each: dict(zip(_COURSES, values, strict=True)) for each, values in found.items()}
                row = {"ranks": count, "case": name, "guarded": guarded, "found": mean}
                print(json.dumps({**row, "by family": courses}))


if __name__ == "__main__":
    main()
