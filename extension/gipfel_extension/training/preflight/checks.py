"""Checks of a launch's scheduler, EDF, image, script, notebook kernel, checkpoint directory and vetting."""

import sys
from collections.abc import Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.steps.container import setting_of_host

from ..launches.launchers import launcher_of
from ..papermill.notebook_file import asked_kernel, find_kernel, is_native
from .context import CheckOutcome, Context


class SchedulerCheck:
    """Check that Slurm's commands, if installed, have a cluster."""

    name = "scheduler"

    def run(self, context: Context) -> CheckOutcome | None:
        """Ask the place that it is launched from; a launch inside a job needs no scheduler."""
        if context.plan.request is None:
            return None
        note = context.here.scheduler_note(context.plan.spec.scheduler)
        return CheckOutcome(check=self.name, verdict="warn", message=note) if note else None


class EdfCheck:
    """Check of the EDF: warnings such as a hook that is ignored."""

    name = "edf"

    def run(self, context: Context) -> CheckOutcome | None:
        """Lint it where the host has it: here, or through the job's broker."""
        edf = context.plan.edf
        if not edf:
            return None
        try:
            found = context.here.lint(edf, Path(context.plan.directory))
        except GipfelError as error:
            words = f"{edf} was found on the host, and could not be checked there: {error.problem}"
            return CheckOutcome(check=self.name, verdict="unknown", message=words, fix=error.fix)
        found = tuple(each for each in found if each.severity != "note")
        found = tuple(sorted(found, key=lambda each: each.severity != "error"))
        if not found:
            return CheckOutcome(check=self.name, verdict="pass", message=f"{edf} is valid.")
        more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
        return CheckOutcome(
            check=self.name,
            verdict="fail" if found[0].severity == "error" else "warn",
            message=f"{found[0].where}: {found[0].message}{more}",
            fix=found[0].fix,
        )


class ImageCheck:
    """Check that the image has Python and torch."""

    name = "image"

    def run(self, context: Context) -> CheckOutcome | None:
        """Check the answer of the container, or of this node."""
        contained = context.contained
        if context.probe is None:
            asked = "The container" if contained else "Python"
            return CheckOutcome(
                check=self.name,
                verdict="fail" if _is_python_missing(context.probe_problem) else "unknown",
                message=f"{asked} could not be asked: {context.probe_problem}",
                fix="Choose an EDF whose image has Python and torch, and see `gipfel edf check`."
                if contained
                else "Activate an environment whose Python starts.",
            )
        packages = context.probe.packages
        needed = launcher_of(context.plan.spec.launcher).needs
        absent = [name for name in needed if not packages.get(name)]
        whose = "The image's Python" if contained else "Python"
        if absent:
            return CheckOutcome(
                check=self.name,
                verdict="fail",
                message=f"{whose} {context.probe.python} ({context.probe.executable}) has no "
                f"{' and no '.join(absent)}, which the launcher {context.plan.spec.launcher} needs.",
                fix="Choose another EDF, or activate an environment in the EDF's set-up steps."
                if contained or context.plan.edf
                else "Activate an environment that has it, or choose an EDF with --edf.",
            )
        torch = packages.get("torch")
        words = f"Python {context.probe.python}" + (f", torch {torch}" if torch else ", no torch")
        place = "The image has" if contained else f"{context.probe.executable} is"
        return CheckOutcome(check=self.name, verdict="pass", message=f"{place} {words}.")


class ScriptCheck:
    """Check that the script, module or notebook exists inside the container."""

    name = "script"

    def run(self, context: Context) -> CheckOutcome | None:
        """Check the container's answer, else the file here."""
        plan = context.plan
        there = context.probe.target if context.probe else Path(plan.target).is_file()
        if context.probe is None and plan.spec.kind == "module":
            return None
        if context.probe is None and there and plan.edf:
            words = f"{plan.target} is there; whether the container sees it is not known."
            return CheckOutcome(check=self.name, verdict="unknown", message=words)
        if there:
            return CheckOutcome(check=self.name, verdict="pass", message=f"{plan.target} is there.")
        where, mounted = "", ""
        if context.contained:
            where = " inside the container"
            mounted = ", and put it into a mounted directory, such as the current one"
        return CheckOutcome(
            check=self.name,
            verdict="fail",
            message=f"{plan.target} is not there{where}.",
            fix=f"Check the name{mounted}.",
        )


class NotebookCheck:
    """Check that the kernel of the notebook or ``--kernel`` is installed and runs the ranks' Python."""

    name = "kernel"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look for it here where ranks run without a container; Python's own is in every one."""
        plan = context.plan
        if plan.spec.kind not in {"notebook", "cell"}:
            return None
        try:
            name = plan.spec.kernel or asked_kernel(Path(plan.target))
        except GipfelError:
            return None  # the file is in the image: the script's check reports whether it is there
        found = None if is_native(name) else self._looked_for(name, context)
        runs_native = found is None or found.verdict == "warn"
        return (self._not_a_kernel(context) if runs_native else None) or found

    def _looked_for(self, name: str, context: Context) -> CheckOutcome:
        """Return what is known of a kernel that is not Python's own; a warning if python3 replaces it."""
        asked = bool(context.plan.spec.kernel)
        if context.contained:
            otherwise = "" if asked else " Where it is missing, python3 runs the notebook."
            words = f"Whether the container has the kernel {name!r} is not known.{otherwise}"
            return CheckOutcome(check=self.name, verdict="unknown", message=words)
        try:
            argv = find_kernel(name)
        except GipfelError as error:
            if asked:
                return CheckOutcome(check=self.name, verdict="fail", message=error.problem, fix=error.fix)
            words = f"The notebook's kernel {name!r} is not installed: python3 runs it."
            return CheckOutcome(check=self.name, verdict="warn", message=words)
        if not asked and (differs := _differing(argv, context)):
            fix = "Give --kernel python3, the other ranks' Python, or activate the kernel's environment."
            words = f"The notebook's kernel {name!r} would run rank 0 in {differs}."
            return CheckOutcome(check=self.name, verdict="fail", message=words, fix=fix)
        return CheckOutcome(check=self.name, verdict="pass", message=f"The kernel {name} is installed.")

    def _not_a_kernel(self, context: Context) -> CheckOutcome | None:
        """Refuse where the Python of the ranks, in no container, can't be a kernel."""
        from ...kernels import INSTALL, rank_kernel  # noqa: PLC0415 - above this floor

        python, probe = context.plan.python, context.probe
        if context.plan.edf or context.environment.get("GIPFEL_EDF"):
            if context.contained or context.here.inside or probe is None or probe.packages.get("ipykernel"):
                return None
            # Set-up steps chose it, and the probe alone ran after them.
            python = probe.executable
        if not python:
            return None
        runtime = setting_of_host(context.environment).runtime
        prefix = Path(runtime.prefix if runtime.host_python else sys.prefix)
        _, problem = rank_kernel(python, prefix)
        if not problem:
            return None
        return CheckOutcome(check=self.name, verdict="fail", message=problem, fix=INSTALL)


class CheckpointCheck:
    """Check that the checkpoint directory, if named, has room."""

    name = "checkpoint"

    def run(self, context: Context) -> CheckOutcome | None:
        """Check the container's answer."""
        plan = context.plan
        if not plan.checkpoint or context.probe is None or context.probe.checkpoint is None:
            return None
        room = context.probe.checkpoint
        if room.problem:
            return CheckOutcome(
                check=self.name,
                verdict="fail",
                message=f"The checkpoint directory {plan.checkpoint} can't be written to: {room.problem}.",
                fix="Name one that is mounted into the container and yours.",
            )
        gib = room.free / (1 << 30)
        if gib < plan.spec.min_free_gib:
            return CheckOutcome(
                check=self.name,
                verdict="fail",
                message=f"{plan.checkpoint} has {gib:.1f} GiB free, {plan.spec.min_free_gib:g} are needed.",
                fix="Make room, or name a directory on another file system.",
            )
        return CheckOutcome(
            check=self.name,
            verdict="pass",
            message=f"{plan.checkpoint} can be written to; {gib:.0f} GiB are free.",
        )


class VettingCheck:
    """Check that the vetting protocol, if named, can be read."""

    name = "vetting"

    def run(self, context: Context) -> CheckOutcome | None:
        """Report the protocol that will be run."""
        wanted = context.plan.spec.vetting
        if not wanted:
            return None
        request = context.plan.request
        without = f", without {request.exclude}" if request and request.exclude else ""
        words = f"The nodes are vetted by {wanted} before ranks start{without}."
        return CheckOutcome(check=self.name, verdict="pass", message=words)


def _is_python_missing(problem: str) -> bool:
    words = ("No such file", "not found", "could not be started")
    return "python3" in problem and any(each in problem for each in words)


def _differing(argv: Sequence[str], context: Context) -> str:
    """Return which Pythons rank 0 and the others would run; empty if they are the same or unknown."""
    spec, probe = context.plan.spec, context.probe
    if spec.nodes * spec.gpus_per_node < 2 or probe is None or not probe.executable:
        return ""
    # Jupyter itself puts its own interpreter for a bare name.
    kernel = Path(sys.executable if argv[0] in {"python", "python3"} else argv[0])
    known = kernel.is_absolute() and kernel.name.startswith("python")
    if not known or kernel.parent == Path(probe.executable).parent:
        return ""
    return f"{kernel}, and the other ranks run in {probe.executable}"
