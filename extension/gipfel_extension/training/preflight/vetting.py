"""The vetting that the nodes shall pass; it is run on them before the ranks start."""

from .protocol import CheckOutcome, Context


class VettingCheck:
    """The protocol can be read."""

    name = "vetting"

    def run(self, context: Context) -> CheckOutcome | None:
        """Say what will be run."""
        wanted = context.plan.spec.vetting
        if not wanted:
            return None
        request = context.plan.request
        without = f", without {request.exclude}" if request and request.exclude else ""
        words = f"The nodes are vetted by {wanted} before ranks start{without}."
        return CheckOutcome(check=self.name, verdict="pass", message=words)
