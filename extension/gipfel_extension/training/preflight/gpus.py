"""Enough GPUs are free: not held by another launch, by this kernel, or by a process that excludes others."""

import os

from gipfel_cluster.model import GipfelError, counted

from ..launches.claims import choose, granted_gpus, held, running_beside
from .holders import Holder, holders_of
from .protocol import CheckOutcome, Context

_NAMED = 4


class GpuCheck:
    """GPUs of this job that a launch can take."""

    name = "gpus"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look at other launches, and at what nvidia-smi shows of this node."""
        spec = context.plan.spec
        if spec.where == "job":
            return None
        granted = granted_gpus(context.environment)
        if not granted:
            run = "runs" if spec.gpus_per_node == 1 else "run"
            words = f"The job has no GPUs: {counted(spec.gpus_per_node, 'rank')} a node {run} on its CPUs."
            return CheckOutcome(check=self.name, verdict="pass", message=words)
        job = context.environment.get("SLURM_JOB_ID") or context.environment.get("GIPFEL_JOB_ID") or ""
        node = context.environment.get("GIPFEL_NODE") or os.uname().nodename
        try:
            chosen = choose([node], spec.gpus_per_node, granted, held(context.folder, job))
        except GipfelError as error:
            others = ", ".join(f"#{each.number} {each.name}" for each in running_beside(context.folder, job))
            more = f" Launches that run: {others}." if others else ""
            return CheckOutcome(check=self.name, verdict="fail", message=error.problem + more, fix=error.fix)
        return self._busy(context, chosen[node]) or CheckOutcome(
            check=self.name,
            verdict="pass",
            message=f"{len(chosen[node])} of the job's {granted} GPUs on each node are taken, all free.",
        )

    def _busy(self, context: Context, positions: tuple[int, ...]) -> CheckOutcome | None:
        rows = context.probe.gpus if context.probe else ()
        visible = [each for each in context.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        wanted = {visible[each] for each in positions if each < len(visible)}
        chosen = {
            row[2]: row[3] for row in rows if row[:1] == ("gpu",) and len(row) > 3 and wanted & set(row[1:3])
        }
        busy = [row for row in rows if row[:1] == ("process",) and len(row) > 2 and row[2] in chosen]
        if not busy or context.probe is None:
            return None
        exclusive = any("exclusive" in chosen[row[2]].lower() for row in busy)
        holders = holders_of(busy, context.probe, context.environment)
        who = ", ".join(str(each) for each in holders[:_NAMED]) or "processes that can't be told"
        return CheckOutcome(
            check=self.name,
            verdict="fail" if exclusive else "warn",
            message=f"GPUs of this launch are used by {who}{', which excludes others' if exclusive else ''}.",
            fix=_advice(holders),
            holders=holders,
        )


def _advice(holders: tuple[Holder, ...]) -> str:
    """What frees the GPUs, for each kind of holder that there is."""
    words = []
    freed = [f"pid {each.pid}" for each in holders if not each.kept]
    if freed:
        words.append(f"`--free`, or Free them in the form, ends {', '.join(freed[:_NAMED])}.")
    if any(each.own for each in holders):
        words.append("What this kernel holds is free once it is restarted: Kernel > Restart Kernel.")
    others = [f"pid {each.pid}: {each.kept}" for each in holders if each.kept and not each.own]
    if others:
        words.append(f"Not ended from here is {', '.join(others[:_NAMED])}.")
        words.append("Of a kernel of yours, choose Kernel > Shut Down Kernel; any other process: kill PID.")
    return " ".join(words)
