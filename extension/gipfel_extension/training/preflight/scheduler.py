"""Pre-flight line on the scheduler, where it is not the one that the commands on PATH suggest."""

from .protocol import CheckOutcome, Context


class SchedulerCheck:
    """Slurm's commands are installed, but no cluster is configured behind them."""

    name = "scheduler"

    def run(self, context: Context) -> CheckOutcome | None:
        """Ask the place that it is launched from; a launch inside a job needs no scheduler."""
        if context.plan.request is None:
            return None
        note = context.here.scheduler_note(context.plan.spec.scheduler)
        return CheckOutcome(check=self.name, verdict="warn", message=note) if note else None
