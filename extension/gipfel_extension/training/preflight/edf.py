"""What `gipfel edf check` says of the launch's environment; what can't be used has stopped the planning."""

from pathlib import Path

from gipfel_cluster.model import GipfelError

from .protocol import CheckOutcome, Context


class EdfCheck:
    """Warnings about the EDF, such as a hook that is ignored."""

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
