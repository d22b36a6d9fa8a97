"""Detection of a node whose GPUs have all been idle for 20 minutes."""

from collections.abc import Iterable

from ..telemetry.sample import Device, Sample
from .journal import Journal

#: Seconds without work after which GPUs are reported as idle.
IDLE_S = 1200.0
#: Activity from which a GPU counts as busy, 0 to 1.
BUSY = 0.05
#: Metrics that show activity, the most precise first.
_METRICS = ("SM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL")


class IdleWatch:
    """Adds one event when all GPUs of this node have been idle, and again only after one was busy.

    A GPU whose activity is unknown is not idle. Simulated GPUs do not count.
    """

    def __init__(self, journal: Journal, devices: Iterable[Device]) -> None:
        self._journal = journal
        self._gpus = {each.uuid for each in devices if each.kind == "gpu" and not each.simulated}
        self._busy_ns: dict[str, int] = {}
        self._reported = False

    def check(self, samples: Iterable[Sample]) -> None:
        """Check the newest samples."""
        now_ns = 0
        for sample in samples:
            if sample.device not in self._gpus:
                continue
            now_ns = max(now_ns, sample.monotonic_ns)
            values = (sample.values.get(name) for name in _METRICS)
            activity = next((float(each) for each in values if each is not None), None)
            is_idle = activity is not None and activity < BUSY
            if not is_idle or sample.device not in self._busy_ns:
                self._busy_ns[sample.device] = sample.monotonic_ns
        if not now_ns or len(self._busy_ns) < len(self._gpus):
            return
        idle_s = (now_ns - max(self._busy_ns.values())) / 1e9
        if idle_s < IDLE_S:
            self._reported = False
        elif not self._reported:
            self._reported = True
            count = len(self._gpus)
            what = "The GPU has" if count == 1 else f"All {count} GPUs have"
            self._journal.note("gpus_idle", f"{what} been below {BUSY:.0%} for {IDLE_S / 60:.0f} minutes.")
