"""XID errors that the NVIDIA driver wrote into the kernel's log."""

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from ..check import CheckContext, Missing
from ..host import Host
from ..model import Finding, Scope, Verdict
from .gpus import failed, readings

#: Errors after which a GPU or its memory is not to be trusted: Azure's list for ND H100 v5, and 95, an
#: uncontained error of the memory, after which NVIDIA asks for a reset.
SERIOUS = (48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120)
_MARK = "NVRM: Xid"
_TIME = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]", re.MULTILINE)
#: A log that begins so soon after the machine's start has lost nothing.
_FROM_START_S = 60.0
_LINE = re.compile(r"\[\s*(\d+\.\d+)\].*?NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")


class Xid(Frozen):
    """No serious XID in the last hours; the log must reach back so far, or to the machine's start.

    Parameters
    ----------
    serious
        The numbers that fail; others are noted as degraded, except those of user programs (13, 31, 43, 45).
    hours
        How far back; the log's times are since the start of the machine.
    """

    type: ClassVar[str] = "xid"
    scope: ClassVar[Scope] = Scope.NODE
    time_limit_s: ClassVar[float] = 30.0

    serious: tuple[int, ...] = SERIOUS
    of_programs: tuple[int, ...] = (13, 31, 43, 45)
    hours: Annotated[float, Field(gt=0)] = 2.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """One finding for the node."""
        readings(context)
        now = float(context.host.text("/proc/uptime").split()[0])
        text = _kernel_log(context.host)
        log = text.splitlines()
        matches = [(line, _LINE.search(line)) for line in log if _MARK in line]
        if unread := [line for line, match in matches if match is None]:
            # A log in another form than expected must not hide an error.
            fix = "Look at the kernel's log on this node."
            reason = f"A line on an XID can't be read: {unread[0].strip()[:160]}"
            return [Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, fix=fix)]
        found = [
            (int(match[3]), match[2])
            for _, match in matches
            if match and now - float(match[1]) <= self.hours * 3600
        ]
        serious = sorted({f"{number} on {bus}" for number, bus in found if number in self.serious})
        if serious:
            fix = "Take another node, and tell the operators."
            reason = f"XID {', '.join(serious[:8])} in the last {self.hours:g} h."
            numbers = sorted({number for number, _ in found if number in self.serious})
            finding = failed(reason, fix, float(len(serious)))
            return [finding.model_copy(update={"evidence": {"xids": numbers}})]
        if short := self._short(text, now):
            return [short]
        other = sorted({number for number, _ in found if number not in self.of_programs})
        if other:
            reason = f"XID {', '.join(map(str, other))} in the last {self.hours:g} h."
            evidence: dict[str, JsonValue] = {"xids": [*other]}
            fix = "Tell the operators."
            return [Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, evidence=evidence)]
        return [Finding(verdict=Verdict.PASS, reason=f"No XID in the last {self.hours:g} h.", figure=0.0)]

    def _short(self, log: str, now: float) -> Finding | None:
        """Say how far back the log reaches where that is less than what is asked."""
        first = _TIME.search(log)
        fix = "Ask for fewer hours, or see who clears the kernel's log."
        if first is None:
            reason = "The kernel's log has no times: how far back it reaches can't be told."
            return Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, fix=fix)
        begins = float(first[1])
        reach = now - begins
        if begins <= _FROM_START_S or reach >= self.hours * 3600:
            return None
        reason = f"No serious XID, but the kernel's log reaches back {reach / 3600:.2g} of {self.hours:g} h."
        return Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, fix=fix)


def _kernel_log(host: Host) -> str:
    try:
        ran = host.run(["dmesg"], 10.0)
    except OSError as error:
        raise Missing(
            f"The kernel's log can't be read: {error}.", "Make this check a warning here."
        ) from error
    if ran.status:
        said = ran.output.strip().splitlines()[-1:] or ["no reason given"]
        fix = "Only root may read it here: leave this check to the operators, or make it a warning."
        raise Missing(f"dmesg ended with status {ran.status}: {said[0][:200]}.", fix)
    if not ran.output.strip():
        raise Missing("The kernel's log is empty.", "It was cleared, or may not be read here.")
    return ran.output
