"""A GPU's clocks and heat, watched while a probe loads it."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType

from pydantic import JsonValue

from ..check import CheckContext
from ..gpus.reading import GpuReading, ReadingError
from ..model import Finding, Verdict
from .clocks import REASONS

_EVERY_S = 1.0
_ENDS_S = 5.0
#: NVML's bits for slowdowns that no load explains; a power cap is normal under full load.
_TROUBLE = 0x08 | 0x20 | 0x40 | 0x80
#: So often must a slowdown be seen: a moment is none.
_LEAST_SEEN, _LEAST_SHARE = 2, 0.1


class LoadWatch:
    """Reads the GPUs of a node once a second, as a context manager around the probe.

    Parameters
    ----------
    every_s
        Seconds between two readings.
    """

    def __init__(self, context: CheckContext, *, every_s: float = _EVERY_S) -> None:
        self._context, self._every_s = context, every_s
        self._ended = threading.Event()
        self._seen: dict[str, list[GpuReading]] = defaultdict(list)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="gipfel-clocks")

    def __enter__(self) -> "LoadWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_ENDS_S)

    def _watch(self) -> None:
        while True:
            try:
                for gpu in self._context.gpus.read():
                    self._seen[gpu.uuid].append(gpu)
            except ReadingError:
                # Without any reading, `judged` says that nothing was watched.
                pass
            if self._ended.wait(self._every_s):
                return

    def judged(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings that pass with what was seen of their GPU, and the others as they are."""
        return [self._judged(each) if each.verdict is Verdict.PASS else each for each in findings]

    def _judged(self, finding: Finding) -> Finding:
        seen = [each for each in self._seen.get(finding.subject, ()) if each.clock_reasons is not None]
        if not seen:
            reason = "Its clocks could not be watched under load."
            fix = "See whether NVML can be read here, or take `heat` out of the protocol."
            return finding.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": reason, "fix": fix})
        clocks = [each.sm_clock_mhz for each in seen if each.sm_clock_mhz is not None]
        heat = [each.temperature_c for each in seen if each.temperature_c is not None]
        evidence: dict[str, JsonValue] = {
            **finding.evidence, "watched": len(seen),
            "least_sm_clock_mhz": min(clocks, default=None), "most_temperature_c": max(heat, default=None),
        }  # fmt: skip
        slowed = [bits for each in seen if (bits := (each.clock_reasons or 0) & _TROUBLE)]
        if len(slowed) < max(_LEAST_SEEN, _LEAST_SHARE * len(seen)):
            return finding.model_copy(update={"evidence": evidence})
        names = [name for bit, name in REASONS.items() if any(bit & each for each in slowed)]
        reason = f"Slowed down under load, in {len(slowed)} of {len(seen)} s: {', '.join(names)}."
        fix = "Take another node; heat or power of this one need the operators."
        return finding.model_copy(
            update={"verdict": Verdict.FAIL, "reason": reason, "fix": fix, "evidence": evidence}
        )
