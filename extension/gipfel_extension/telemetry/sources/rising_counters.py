"""Error counters of devices: an event when one rises, none for a high one that does not."""

from dataclasses import dataclass

from ..events import Event

#: A counter that did not rise for this long gets a new event when it does.
_QUIET_NS = 60 * 10**9
#: A counter that keeps rising gets an event at most this often.
_AGAIN_NS = 600 * 10**9


@dataclass
class _Counter:
    """A counter: its value, when it last rose, and value and time of the last event."""

    value: int
    read_ns: int
    rose_ns: int | None = None
    told_ns: int = 0
    told_value: int = 0


class RisingCounters:
    """Watch of counters that should not rise.

    Parameters
    ----------
    kind
        Kind of the events.
    """

    def __init__(self, kind: str, node: str) -> None:
        self._kind = kind
        self._node = node
        self._known: dict[tuple[str, str], _Counter] = {}

    def check(
        self, device: str, text: str, value: int | None, time_ns: int, monotonic_ns: int
    ) -> list[Event]:
        """Return an event if a counter begins to rise, or has been rising for ten minutes.

        The first reading is the baseline, whatever its size. A counter that falls was reset.

        Parameters
        ----------
        text
            What it counts, for people, in the plural.
        value
            None where it could not be read.
        """
        if value is None:
            return []
        known = self._known.get((device, text))
        if known is None or value < known.value:
            self._known[device, text] = _Counter(value, monotonic_ns)
            return []
        before, before_ns = known.value, known.read_ns
        known.value, known.read_ns = value, monotonic_ns
        if value == before:
            return []
        begins = known.rose_ns is None or monotonic_ns - known.rose_ns > _QUIET_NS
        known.rose_ns = monotonic_ns
        if begins:
            known.told_value, since_ns = before, before_ns
        elif monotonic_ns - known.told_ns >= _AGAIN_NS:
            since_ns = known.told_ns
        else:
            return []
        risen, seconds = value - known.told_value, (monotonic_ns - since_ns) / 1e9
        known.told_ns, known.told_value = monotonic_ns, value
        rate = f", {_number(risen / seconds)} per second" if seconds > 0 else ""
        message = f"{text}: {risen} in {_number(seconds)} s{rate} (counter: {value})."
        return [Event(time_ns, self._node, self._kind, device, message)]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
