"""GPUs that are slowed down, as their clocks' event reasons say."""

from collections.abc import Iterable

from ..sample import Sample
from .journal import Journal

#: Bits of NVML's ``nvmlClocksEventReasons``. A power cap by software is how a GPU under load works: no event.
_REASONS = {
    0x8: "its hardware slows it down",
    0x20: "its temperature slows it down",
    0x40: "its temperature slows it down",
    0x80: "its power supply slows it down",
}
#: Quiet for so long, a GPU that is slowed down again is news.
_QUIET_NS = 60 * 10**9


class Throttling:
    """Notes when it begins, once for each GPU and reason."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last_ns: dict[tuple[str, str], int] = {}

    def look(self, samples: Iterable[Sample]) -> None:
        """Look at the newest samples."""
        for sample in samples:
            bits = int(sample.values.get("CLOCKS_EVENT_REASONS") or 0)
            for words in {words for bit, words in _REASONS.items() if bits & bit}:
                key = (sample.device, words)
                quiet_since = self._last_ns.get(key)
                if quiet_since is None or sample.monotonic_ns - quiet_since > _QUIET_NS:
                    self._journal.note(
                        "throttle", f"The GPU doesn't run at full speed: {words}.", sample.device
                    )
                self._last_ns[key] = sample.monotonic_ns
