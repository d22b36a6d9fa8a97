"""All probes side by side, so that those which hang cost one time limit in all."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .finding import Examination, Finding, Subject
from .machine import Machine

#: Above what a probe's commands may take by themselves.
PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class Probe:
    """A question and what answers it."""

    subject: Subject
    look: Callable[[Machine], Finding]


def examine(machine: Machine, probes: Iterable[Probe], *, seconds: float = PROBE_SECONDS) -> Examination:
    """Ask every probe; one that raises or takes longer than ``seconds`` is a finding by itself."""
    running = [_Running(probe, machine) for probe in probes]
    until = time.monotonic() + seconds
    return Examination(findings=tuple(each.finding(until, seconds) for each in running))


class _Running:
    """One probe in a thread of its own, which a file system that is gone may hold for ever."""

    def __init__(self, probe: Probe, machine: Machine) -> None:
        self._probe = probe
        self._machine = machine
        self._found: Finding | None = None
        self._thread = threading.Thread(target=self._look, daemon=True, name=probe.subject.name)
        self._thread.start()

    def _look(self) -> None:
        try:
            self._found = self._probe.look(self._machine)
        except Exception as error:  # noqa: BLE001 - one probe must not take the others' answers along
            self._found = self._probe.subject.warning(
                f"This could not be examined: {type(error).__name__}: {error}.", ""
            )

    def finding(self, until: float, seconds: float) -> Finding:
        self._thread.join(max(0.0, until - time.monotonic()))
        return self._found or self._probe.subject.missing(
            f"There was no answer within {seconds:.0f} s: a file system or a program hangs.",
            "Look for a mount that does not answer: timeout 5 df",
        )
