"""What shall run is there, as the container sees it."""

from pathlib import Path

from .protocol import CheckOutcome, Context


class ScriptCheck:
    """The script, module or notebook exists inside the container."""

    name = "script"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look at what the container said, else at the file here."""
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
            mounted = ", and put it into a folder that is mounted, such as the one that you are in"
        return CheckOutcome(
            check=self.name,
            verdict="fail",
            message=f"{plan.target} is not there{where}.",
            fix=f"Check the name{mounted}.",
        )
