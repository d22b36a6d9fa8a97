"""Checks of GPU errors and links: ECC, remapped rows, XID, NVLink, PCIe."""

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue

from gipfel_cluster.model import Frozen

from ..check import CheckContext, Missing
from ..gpus import GpuReading
from ..host import Host
from ..model import Finding, Scope, Verdict
from .gpus import failed, for_each, passed, readings, unsaid

#: Errors after which a GPU or its memory is not to be trusted: Azure's list for ND H100 v5, and 95, an
#: uncontained error of the memory, after which NVIDIA asks for a reset.
SERIOUS = (48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120)
_MARK = "NVRM: Xid"
_TIME = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]", re.MULTILINE)
#: A log that begins so soon after the machine's start has lost nothing.
_FROM_START_S = 60.0
_LINE = re.compile(r"\[\s*(\d+\.\d+)\].*?NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")
#: Lanes of every data-centre card since the V100; superchips have no slot.
_CARDS = 16
_NAMES = ("A100", "H100", "H200", "B200", "L40S", "L4 ")
_SUPERCHIPS = ("GH200", "GB200")


class Ecc(Frozen):
    """ECC is on, no uncorrected error, and not very many corrected ones.

    Parameters
    ----------
    most_corrected
        The lower of what Azure's (20 million) and Meta's (50 million) node checks allow.
    must_be_on
        Whether a GPU without ECC fails.
    """

    type: ClassVar[str] = "ecc"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    most_corrected: Annotated[int, Field(ge=0)] = 20_000_000
    must_be_on: bool = True

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if gpu.ecc_enabled is False:
            if not self.must_be_on:
                return passed("ECC is off, as the protocol allows.")
            return failed("ECC is off.", "Ask the operators to turn it on, or take another node.")
        if gpu.ecc_uncorrected is None:
            return unsaid("how many memory errors it had")
        if gpu.ecc_uncorrected:
            fix = "Take another node, and tell the operators: the GPU needs a reset at least."
            return failed(
                f"{gpu.ecc_uncorrected} uncorrected memory error(s).", fix, float(gpu.ecc_uncorrected)
            )
        corrected = gpu.ecc_corrected or 0
        if corrected > self.most_corrected:
            reason = f"{corrected} corrected memory errors, more than {self.most_corrected}."
            fix = "Tell the operators: this memory is wearing out."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(corrected))
        return passed(f"No uncorrected memory error, {corrected} corrected.", 0.0)


class RemappedRows(Frozen):
    """No remapping failed or waits for a reset.

    Parameters
    ----------
    most_uncorrected
        Rows replaced after uncorrected errors; 512 is what an H100's spare rows allow, and Azure's limit.
    most_retired
        Pages, on GPUs that retire pages instead; Meta's limit is 10.
    """

    type: ClassVar[str] = "remapped_rows"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    most_uncorrected: Annotated[int, Field(ge=0)] = 512
    most_retired: Annotated[int, Field(ge=0)] = 10

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:  # noqa: PLR0911 - one for each thing that can be wrong
        rows = gpu.remapped
        if rows is None:
            return self._pages(gpu)
        reset = "Take another node, and ask the operators to reset this GPU."
        if rows.failed:
            return failed(
                "A row of memory could not be replaced.", "Take another node: this GPU needs replacing."
            )
        if rows.pending:
            return failed("Rows of memory wait for a reset to be replaced.", reset)
        if rows.uncorrected > self.most_uncorrected:
            text = f"{rows.uncorrected} rows were replaced after uncorrected errors."
            return failed(text, "Take another node, and tell the operators.", float(rows.uncorrected))
        if gpu.recovery_action:
            return failed("The driver asks for this GPU to be reset or its node rebooted.", reset)
        if rows.uncorrected:
            text = f"{rows.uncorrected} row(s) were replaced after uncorrected errors, none waits."
            return Finding(verdict=Verdict.PASS, reason=text, figure=float(rows.uncorrected))
        return passed(f"{rows.corrected} row(s) replaced, none waits.", 0.0)

    def _pages(self, gpu: GpuReading) -> Finding:
        if gpu.retired_pages is None:
            return unsaid("which rows or pages were replaced")
        count = float(gpu.retired_pages)
        if gpu.retired_pages > self.most_retired:
            return failed(
                f"{gpu.retired_pages} pages are retired.", "Take another node, and tell the operators.", count
            )
        return passed(f"{gpu.retired_pages} page(s) retired.", count)


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
        """Return one finding for the node."""
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
        """Return a finding where the log reaches back less than asked."""
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


class NvLinks(Frozen):
    """All links are up and rarely had to repeat.

    Parameters
    ----------
    links
        How many must be up; None takes all that NVML lists.
    most_recoveries
        Times that a link had to be trained again.
    most_replays
        A healthy node of Alps had 95: replays alone convict nobody.
    required
        Whether a GPU without NVLink fails.
    """

    type: ClassVar[str] = "nvlink"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    links: Annotated[int, Field(ge=1, le=36)] | None = None
    most_recoveries: Annotated[int, Field(ge=0)] = 0
    most_replays: Annotated[int, Field(ge=0)] = 1000
    required: bool = True

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        if not gpu.nvlinks and not self.required and self.links is None:
            reason = "This GPU has no NVLink, as the protocol allows."
            evidence: dict[str, JsonValue] = {"applies": False, "left_out": True}
            return Finding(verdict=Verdict.NOT_RUN, reason=reason, evidence=evidence)
        if not gpu.nvlinks:
            return unsaid("anything of NVLink")
        unknown = [str(link.index) for link in gpu.nvlinks if link.active is None]
        if unknown:
            return unsaid(f"whether NVLink {', '.join(unknown)} is up")
        return self._of_links(gpu)

    def _of_links(self, gpu: GpuReading) -> Finding:
        up = [link for link in gpu.nvlinks if link.active]
        wanted = self.links or len(gpu.nvlinks)
        if len(up) < wanted:
            down = ", ".join(str(link.index) for link in gpu.nvlinks if not link.active)
            fix = "Take another node, and tell the operators: the link, its switch or its GPU needs them."
            return failed(
                f"{len(up)} of {wanted} NVLinks are up; down: {down or 'not listed'}.", fix, float(len(up))
            )
        recoveries = sum(link.recovery_errors or 0 for link in up)
        if recoveries > self.most_recoveries:
            fix = "Tell the operators; a bandwidth check says whether it costs anything."
            reason = f"NVLinks had to recover {recoveries} time(s)."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(recoveries))
        replays = sum((link.replay_errors or 0) + (link.crc_errors or 0) for link in up)
        if replays > self.most_replays:
            fix = "Tell the operators; a bandwidth check says whether it costs anything."
            reason = f"NVLinks repeated {replays} time(s)."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(replays))
        return passed(f"{len(up)} NVLinks are up, {replays} repetitions.", float(len(up)))


def _is_card(model: str) -> bool:
    words = model.upper() + " "
    return any(name in words for name in _NAMES) and not any(name in words for name in _SUPERCHIPS)


class Pcie(Frozen):
    """The link has its full width; its speed is judged only by a given generation: an idle link rests.

    Parameters
    ----------
    width
        Lanes; None takes the most that the link can have.
    generation
        Least generation; None takes none.
    most_replays
        Repeated transfers since the driver was loaded.
    """

    type: ClassVar[str] = "pcie"
    scope: ClassVar[Scope] = Scope.GPU
    time_limit_s: ClassVar[float] = 30.0

    width: Annotated[int, Field(ge=1, le=32)] | None = None
    generation: Annotated[int, Field(ge=1, le=8)] | None = None
    most_replays: Annotated[int, Field(ge=0)] = 10_000

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per GPU."""
        return for_each(context, self._look)

    def _look(self, gpu: GpuReading) -> Finding:
        width, wanted = gpu.pcie_width, self.width or gpu.pcie_width_max
        if width is None or wanted is None:
            return unsaid("the width of its PCIe link")
        fix = "Take another node, and tell the operators: the card may sit badly in its slot."
        if width < wanted:
            return failed(f"PCIe runs with {width} of {wanted} lanes.", fix, float(width), "x")
        if self.width is None and wanted < _CARDS and _is_card(gpu.name):
            reason = f"Its slot gives {wanted} lanes at most; the card has {_CARDS}."
            return Finding(verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(wanted), unit="x")
        now, top = gpu.pcie_generation, gpu.pcie_generation_max
        if self.generation is not None:
            # A resting link shows a lower generation than it will run at.
            best = max(now or 0, top or 0)
            if best < self.generation:
                return failed(f"PCIe can do generation {best}, not {self.generation}.", fix, float(best))
        if (gpu.pcie_replays or 0) > self.most_replays:
            reason = f"PCIe repeated {gpu.pcie_replays} transfers."
            return Finding(
                verdict=Verdict.DEGRADED, reason=reason, fix=fix, figure=float(gpu.pcie_replays or 0)
            )
        return passed(f"PCIe {now or '?'}.0 x{width}.", float(width), "x")
