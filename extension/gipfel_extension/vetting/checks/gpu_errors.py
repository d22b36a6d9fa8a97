"""Checks of GPU errors and links: ECC, remapped rows, XID, NVLink, PCIe."""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from gipfel_cluster.model import pluralize

from ..check import CheckContext, Host, MissingRequirement, required
from ..gpus import GpuReading
from ..model import Finding, Verdict, degraded, failed, inconclusive, passed
from .gpus import ANOTHER_NODE, BaseCheck, GpuCheck, not_reported

#: XIDs after which a GPU or its memory can't be trusted: those in Azure's list for ND H100 v5, and 95, an
#: uncontained error of the memory, after which NVIDIA asks for a reset.
SERIOUS = (48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120)
_XID_PREFIX = "NVRM: Xid"
_TIME = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]", re.MULTILINE)
#: A log whose first line is from these first seconds after boot is complete.
_COMPLETE_FROM_S = 60.0
_LINE = re.compile(r"\[\s*(\d+\.\d+)\].*?NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)")
#: PCIe lanes of every data-centre card since the V100; superchips have no slot.
_CARD_LANES = 16
_CARD_NAMES = ("A100", "H100", "H200", "B200", "L40S", "L4 ")
_SUPERCHIPS = ("GH200", "GB200")


class Ecc(GpuCheck):
    """Check that ECC is on, without uncorrected errors, and with few corrected ones.

    Parameters
    ----------
    most_corrected
        Allowed corrected errors: the smaller of the limits in the node checks of Azure (20 million) and Meta
        (50 million).
    must_be_on
        Whether a GPU without ECC fails.
    """

    most_corrected: Annotated[int, Field(ge=0)] = 20_000_000
    must_be_on: bool = True

    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""
        if gpu.ecc_enabled is False:
            if not self.must_be_on:
                return passed("ECC is off, as the protocol allows.")
            return failed("ECC is off.", "Ask the operators to turn it on, or use another node.")
        if gpu.ecc_uncorrected is None:
            return not_reported("the memory errors")
        if gpu.ecc_uncorrected:
            fix = "Use another node, and tell the operators: the GPU needs at least a reset."
            return failed(
                f"{gpu.ecc_uncorrected} uncorrected memory error(s).", fix, float(gpu.ecc_uncorrected)
            )
        corrected = gpu.ecc_corrected or 0
        if corrected > self.most_corrected:
            reason = f"{corrected} corrected memory errors, more than {self.most_corrected}."
            return degraded(reason, "Tell the operators: this memory is wearing out.", float(corrected))
        return passed(f"No uncorrected memory error, {corrected} corrected.", 0.0)


class RemappedRows(GpuCheck):
    """Check that no remapping of memory rows failed or is pending.

    Parameters
    ----------
    most_uncorrected
        Allowed rows remapped after uncorrected errors; 512 is the number of spare rows of an H100, and
        Azure's limit.
    most_retired
        Allowed retired pages, on GPUs that retire pages instead; Meta's limit is 10.
    """

    most_uncorrected: Annotated[int, Field(ge=0)] = 512
    most_retired: Annotated[int, Field(ge=0)] = 10

    def judge(self, gpu: GpuReading) -> Finding:  # noqa: PLR0911 - one return for each kind of problem
        """Return the finding for one GPU."""
        rows = gpu.remapped
        if rows is None:
            return self._pages(gpu)
        reset = "Use another node, and ask the operators to reset this GPU."
        if rows.failed:
            return failed(
                "A row of memory could not be remapped.", "Use another node: this GPU must be replaced."
            )
        if rows.pending:
            return failed("The remapping of memory rows is pending until the GPU is reset.", reset)
        if rows.uncorrected > self.most_uncorrected:
            text = f"{pluralize(rows.uncorrected, 'row')} remapped after uncorrected errors."
            return failed(text, ANOTHER_NODE, float(rows.uncorrected))
        if gpu.recovery_action:
            return failed("The driver requests a reset of this GPU or a reboot of its node.", reset)
        if rows.uncorrected:
            text = f"{pluralize(rows.uncorrected, 'row')} remapped after uncorrected errors; none is pending."
            return passed(text, float(rows.uncorrected))
        return passed(f"{pluralize(rows.corrected, 'row')} remapped; none is pending.", 0.0)

    def _pages(self, gpu: GpuReading) -> Finding:
        if gpu.retired_pages is None:
            return not_reported("remapped rows or retired pages")
        text, count = f"{pluralize(gpu.retired_pages, 'page')} retired.", float(gpu.retired_pages)
        if gpu.retired_pages > self.most_retired:
            return failed(text, ANOTHER_NODE, count)
        return passed(text, count)


class Xid(BaseCheck):
    """Check that the kernel log of the last hours, or since boot, has no serious XID.

    Parameters
    ----------
    serious
        XID numbers with which the check fails; with others it is `degraded`, except those in `of_programs`.
    of_programs
        XID numbers that user programs cause.
    hours
        How far back the log is searched; its times are relative to boot.
    """

    serious: tuple[int, ...] = SERIOUS
    of_programs: tuple[int, ...] = (13, 31, 43, 45)
    hours: Annotated[float, Field(gt=0)] = 2.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        context.gpus.read()
        now = float(context.host.text("/proc/uptime").split()[0])
        text = _kernel_log(context.host)
        log = text.splitlines()
        matches = [(line, _LINE.search(line)) for line in log if _XID_PREFIX in line]
        if unread := [line for line, match in matches if match is None]:
            # A log in an unknown format must not hide an error.
            reason = f"A line about an XID can't be parsed: {unread[0].strip()[:160]}"
            return [inconclusive(reason, "Read the kernel log of this node.")]
        found = [
            (int(match[3]), match[2])
            for _, match in matches
            if match and now - float(match[1]) <= self.hours * 3600
        ]
        serious = sorted({f"{number} on {bus}" for number, bus in found if number in self.serious})
        if serious:
            reason = f"XID {', '.join(serious[:8])} in the last {self.hours:g} h."
            numbers = sorted({number for number, _ in found if number in self.serious})
            finding = failed(reason, ANOTHER_NODE, float(len(serious)))
            return [finding.model_copy(update={"evidence": {"xids": numbers}})]
        if too_short := self._too_short(text, now):
            return [too_short]
        other = sorted({number for number, _ in found if number not in self.of_programs})
        if other:
            reason = f"XID {', '.join(map(str, other))} in the last {self.hours:g} h."
            finding = degraded(reason, "Tell the operators.")
            return [finding.model_copy(update={"evidence": {"xids": other}})]
        return [passed(f"No XID in the last {self.hours:g} h.", 0.0)]

    def _too_short(self, log: str, now: float) -> Finding | None:
        """Return a finding if the log does not reach back `hours`, else None."""
        first = _TIME.search(log)
        fix = "Set fewer 'hours', or find out what clears the kernel log."
        if first is None:
            return inconclusive("The kernel log has no times, so it is unknown how far back it reaches.", fix)
        begins = float(first[1])
        reach = now - begins
        if begins <= _COMPLETE_FROM_S or reach >= self.hours * 3600:
            return None
        reason = (
            f"No serious XID, but the kernel log reaches back only {reach / 3600:.2g} of {self.hours:g} h."
        )
        return inconclusive(reason, fix)


def _kernel_log(host: Host) -> str:
    with required("The kernel log can't be read", "Set `severity: warning` for this check."):
        ran = host.run(["dmesg"], 10.0)
    if ran.status:
        last_line = ran.output.strip().splitlines()[-1:] or ["no reason given"]
        fix = "Only root may read it here. Remove this check, or set `severity: warning`."
        raise MissingRequirement(f"dmesg exited with status {ran.status}: {last_line[0][:200]}.", fix)
    if not ran.output.strip():
        raise MissingRequirement(
            "The kernel log is empty: it was cleared, or can't be read here.",
            "Remove this check, or set `severity: warning`.",
        )
    return ran.output


class NvLinks(GpuCheck):
    """Check that all NVLinks are up, with few replays and recoveries.

    Parameters
    ----------
    links
        Required number of links that are up; None for all that NVML lists.
    most_recoveries
        Allowed recoveries (retrainings) of all links together.
    most_replays
        Allowed replays and CRC errors of all links together; a healthy node of Alps had 95.
    required
        Whether a GPU without NVLink fails.
    """

    links: Annotated[int, Field(ge=1, le=36)] | None = None
    most_recoveries: Annotated[int, Field(ge=0)] = 0
    most_replays: Annotated[int, Field(ge=0)] = 1000
    required: bool = True

    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""
        if not gpu.nvlinks and not self.required and self.links is None:
            reason = "This GPU has no NVLink, as the protocol allows."
            evidence: dict[str, JsonValue] = {"applies": False, "not_required": True}
            return Finding(verdict=Verdict.NOT_RUN, reason=reason, evidence=evidence)
        if not gpu.nvlinks:
            return not_reported("the NVLinks")
        unknown = [str(link.index) for link in gpu.nvlinks if link.active is None]
        if unknown:
            return not_reported(f"whether NVLink {', '.join(unknown)} is up")
        return self._judge_links(gpu)

    def _judge_links(self, gpu: GpuReading) -> Finding:
        up = [link for link in gpu.nvlinks if link.active]
        expected = self.links or len(gpu.nvlinks)
        if len(up) < expected:
            down = ", ".join(str(link.index) for link in gpu.nvlinks if not link.active)
            fix = "Use another node, and tell the operators: a link, its switch or its GPU is faulty."
            return failed(
                f"{len(up)} of {expected} NVLinks are up; down: {down or 'not listed'}.", fix, float(len(up))
            )
        recoveries = sum(link.recovery_errors or 0 for link in up)
        fix = "Tell the operators. A bandwidth check shows whether it costs performance."
        if recoveries > self.most_recoveries:
            return degraded(f"NVLinks recovered {recoveries} time(s).", fix, float(recoveries))
        replays = sum((link.replay_errors or 0) + (link.crc_errors or 0) for link in up)
        if replays > self.most_replays:
            return degraded(f"NVLinks had {replays} replay(s).", fix, float(replays))
        return passed(f"{len(up)} NVLinks are up, with {replays} replay(s).", float(len(up)))


def _is_card(model: str) -> bool:
    words = model.upper() + " "
    return any(name in words for name in _CARD_NAMES) and not any(name in words for name in _SUPERCHIPS)


class Pcie(GpuCheck):
    """Check that the PCIe link has its full width and, if `generation` is set, at least that generation.

    An idle link runs at a lower generation.

    Parameters
    ----------
    width
        Required lanes; None for the maximum of the link.
    generation
        Required generation; None for any.
    most_replays
        Allowed replays since the driver was loaded.
    """

    width: Annotated[int, Field(ge=1, le=32)] | None = None
    generation: Annotated[int, Field(ge=1, le=8)] | None = None
    most_replays: Annotated[int, Field(ge=0)] = 10_000

    def judge(self, gpu: GpuReading) -> Finding:
        """Return the finding for one GPU."""
        width, expected = gpu.pcie_width, self.width or gpu.pcie_width_max
        if width is None or expected is None:
            return not_reported("the width of its PCIe link")
        fix = "Use another node, and tell the operators: the card may not be seated well in its slot."
        if width < expected:
            return failed(f"PCIe uses {width} of {expected} lanes.", fix, float(width), "x")
        if self.width is None and expected < _CARD_LANES and _is_card(gpu.name):
            reason = f"Its slot has {expected} lanes; the card has {_CARD_LANES}."
            return degraded(reason, fix, float(expected), "x")
        now, top = gpu.pcie_generation, gpu.pcie_generation_max
        # An idle link reports a lower generation than it will use.
        best = max(now or 0, top or 0)
        if self.generation is not None and best < self.generation:
            return failed(f"PCIe supports generation {best}, not {self.generation}.", fix, float(best))
        if (gpu.pcie_replays or 0) > self.most_replays:
            return degraded(f"PCIe had {gpu.pcie_replays} replays.", fix, float(gpu.pcie_replays or 0))
        return passed(f"PCIe {now or '?'}.0 x{width}.", float(width), "x")
