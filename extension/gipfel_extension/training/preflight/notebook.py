"""The kernel of a launch's notebook, whose cells rank 0 runs in it."""

from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..papermill.kernels import asked_kernel, is_native, see_kernel
from .protocol import CheckOutcome, Context


class NotebookCheck:
    """The kernel that the notebook or ``--kernel`` names is installed."""

    name = "kernel"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look for it here where ranks run without a container; Python's own is in every one."""
        plan = context.plan
        if plan.spec.kind != "notebook":
            return None
        try:
            name = plan.spec.kernel or asked_kernel(Path(plan.target))
        except GipfelError:
            return None  # the file is in the image: the script's check says whether it is there
        return None if is_native(name) else self._looked_for(name, context)

    def _looked_for(self, name: str, context: Context) -> CheckOutcome:
        asked = bool(context.plan.spec.kernel)
        if context.contained:
            otherwise = "" if asked else " Where it is missing, python3 runs the notebook."
            words = f"Whether the container has the kernel {name!r} is not known.{otherwise}"
            return CheckOutcome(check=self.name, verdict="unknown", message=words)
        try:
            see_kernel(name)
        except GipfelError as error:
            if asked:
                return CheckOutcome(check=self.name, verdict="fail", message=error.problem, fix=error.fix)
            words = f"The notebook's kernel {name!r} is not installed: python3 runs it."
            return CheckOutcome(check=self.name, verdict="warn", message=words)
        return CheckOutcome(check=self.name, verdict="pass", message=f"The kernel {name} is installed.")
