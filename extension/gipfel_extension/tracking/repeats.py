"""Values that a program wrote again, because it rewrites its file as a whole."""

from dataclasses import dataclass, field

from .scalar import Scalar


@dataclass
class _Series:
    """Values of one name: their number, a hash of the first and a chained hash of all."""

    count: int = 0
    first: int = 0
    chain: int = 0
    waiting: list[Scalar] = field(default_factory=list)

    def add(self, scalar: Scalar) -> None:
        self.count += 1
        # repr, since NaN is not equal to itself and has no fixed hash.
        self.chain = hash((self.chain, scalar.step, repr(scalar.value)))
        if self.count == 1:
            self.first = self.chain


class Repeats:
    """Filter that removes values that were read before from a file that was rewritten.

    Lightning's CSVLogger rewrites its file when a new metric appears, and transformers rewrites
    ``trainer_state.json`` at each checkpoint, with all earlier values at the beginning. A name whose first
    values differ from those that were read before is a new series, of which everything counts.
    """

    def __init__(self) -> None:
        self._read: dict[str, _Series] = {}
        self._earlier: dict[str, _Series] = {}

    def restart(self) -> None:
        """Take note that the file is read from its beginning again."""
        for name, series in self._read.items():
            # A file that is replaced while it is read again still repeats what came before it.
            if name not in self._earlier or series.count >= self._earlier[name].count:
                self._earlier[name] = series
        self._read = {}

    def filter(self, scalars: list[Scalar]) -> list[Scalar]:
        """Return the values that were not read before; those of which that is not certain yet come later."""
        if not self._earlier:
            for each in scalars:
                self._read.setdefault(each.name, _Series()).add(each)
            return scalars
        found: list[Scalar] = []
        for each in scalars:
            series = self._read.setdefault(each.name, _Series())
            series.add(each)
            earlier = self._earlier.get(each.name)
            if earlier is None:
                found.append(each)
                continue
            series.waiting.append(each)
            if series.count == earlier.count or series.first != earlier.first:
                if series.chain != earlier.chain:
                    found += series.waiting
                series.waiting = []
                del self._earlier[each.name]
        return found

    def finish(self) -> list[Scalar]:
        """Return the values of a file that ended before it repeated all that was read: a new series."""
        found = [each for series in self._read.values() for each in series.waiting]
        for name, series in self._read.items():
            if series.waiting:
                series.waiting = []
                del self._earlier[name]
        return found
