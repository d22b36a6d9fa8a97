"""How often a user may let the hub ask something that costs the cluster or the user's machine an effort."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable

_MOST_NAMES = 4096


class Rate:
    """So many questions within so many seconds, for each name."""

    def __init__(
        self, most: int, seconds: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._asked: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, name: str) -> float:
        """Count one question; 0, or the seconds until the next one is let through, which is not counted."""
        now = self._clock()
        times = self._asked.setdefault(name, deque())
        self._asked.move_to_end(name)
        while len(self._asked) > _MOST_NAMES:
            self._asked.popitem(last=False)
        while times and now - times[0] >= self._seconds:
            times.popleft()
        if len(times) >= self._most:
            return self._seconds - (now - times[0])
        times.append(now)
        return 0.0
