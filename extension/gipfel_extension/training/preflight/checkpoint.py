"""The checkpoint folder can be written to from within the container, and has room."""

from .protocol import CheckOutcome, Context


class CheckpointCheck:
    """Room for checkpoints, where a folder for them was named."""

    name = "checkpoint"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look at what the container said."""
        plan = context.plan
        if not plan.checkpoint or context.probe is None or context.probe.checkpoint is None:
            return None
        room = context.probe.checkpoint
        if room.problem:
            return CheckOutcome(
                check=self.name,
                verdict="fail",
                message=f"The checkpoint folder {plan.checkpoint} can't be written to: {room.problem}.",
                fix="Name one that is mounted into the container and yours.",
            )
        gib = room.free / (1 << 30)
        if gib < plan.spec.checkpoint_gib:
            return CheckOutcome(
                check=self.name,
                verdict="fail",
                message=f"{plan.checkpoint} has {gib:.1f} GiB free, {plan.spec.checkpoint_gib:g} are needed.",
                fix="Make room, or name a folder on another file system.",
            )
        return CheckOutcome(
            check=self.name,
            verdict="pass",
            message=f"{plan.checkpoint} can be written to; {gib:.0f} GiB are free.",
        )
