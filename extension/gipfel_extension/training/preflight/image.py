"""The image has a Python, and what the launcher needs in it."""

from ..launchers import launcher_of
from .protocol import CheckOutcome, Context


class ImageCheck:
    """Python and torch are there, with their versions."""

    name = "image"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look at what the container, or this node, said."""
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


def _is_python_missing(problem: str) -> bool:
    words = ("No such file", "not found", "could not be started")
    return "python3" in problem and any(each in problem for each in words)
