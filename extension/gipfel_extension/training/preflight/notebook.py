"""The kernel of a launch's notebook, whose cells rank 0 runs in it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.steps.setting import setting_of_host

from ..papermill.kernels import asked_kernel, is_native, see_kernel
from .protocol import CheckOutcome, Context


class NotebookCheck:
    """The kernel that the notebook or ``--kernel`` names is installed, and runs the ranks' own Python."""

    name = "kernel"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look for it here where ranks run without a container; Python's own is in every one."""
        plan = context.plan
        if plan.spec.kind not in {"notebook", "cell"}:
            return None
        try:
            name = plan.spec.kernel or asked_kernel(Path(plan.target))
        except GipfelError:
            return None  # the file is in the image: the script's check says whether it is there
        found = None if is_native(name) else self._looked_for(name, context)
        runs_native = found is None or found.verdict == "warn"
        return (self._not_a_kernel(context) if runs_native else None) or found

    def _looked_for(self, name: str, context: Context) -> CheckOutcome:
        """Return what is known of a kernel that is not Python's own; a warning where python3 stands in."""
        asked = bool(context.plan.spec.kernel)
        if context.contained:
            otherwise = "" if asked else " Where it is missing, python3 runs the notebook."
            words = f"Whether the container has the kernel {name!r} is not known.{otherwise}"
            return CheckOutcome(check=self.name, verdict="unknown", message=words)
        try:
            argv = see_kernel(name)
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


def _differing(argv: Sequence[str], context: Context) -> str:
    """Say which Pythons rank 0 and the others would run; nothing where they are the same or not known."""
    spec, probe = context.plan.spec, context.probe
    if spec.nodes * spec.gpus_per_node < 2 or probe is None or not probe.executable:
        return ""
    # Jupyter itself puts its own interpreter for a bare name.
    kernel = Path(sys.executable if argv[0] in {"python", "python3"} else argv[0])
    known = kernel.is_absolute() and kernel.name.startswith("python")
    if not known or kernel.parent == Path(probe.executable).parent:
        return ""
    return f"{kernel}, and the other ranks run in {probe.executable}"
