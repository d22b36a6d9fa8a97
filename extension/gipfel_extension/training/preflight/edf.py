"""What `gipfel edf check` says of the launch's environment; errors have stopped the planning already."""

from pathlib import Path

from gipfel_cluster.edf import check_here, load_edf
from gipfel_cluster.edf.check import check_edf
from gipfel_cluster.model import GipfelError

from .protocol import CheckOutcome, Context


class EdfCheck:
    """Warnings about the EDF, such as a hook that is ignored."""

    name = "edf"

    def run(self, context: Context) -> CheckOutcome | None:
        """Lint it where it can be read from here."""
        edf = context.plan.edf
        if not edf or context.here.inside:
            return None
        directory = Path(context.plan.directory)
        try:
            resolution = check_edf(edf, environment=context.environment, directory=directory)
            check_here(load_edf(edf, environment=context.environment, directory=directory))
        except GipfelError as error:
            return CheckOutcome(check=self.name, verdict="fail", message=error.problem, fix=error.fix)
        found = [each for each in resolution.diagnostics if each.severity == "warning"]
        if found:
            more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
            return CheckOutcome(
                check=self.name, verdict="warn", message=f"{edf}: {found[0].message}{more}", fix=found[0].fix
            )
        return CheckOutcome(check=self.name, verdict="pass", message=f"{edf} is valid.")
