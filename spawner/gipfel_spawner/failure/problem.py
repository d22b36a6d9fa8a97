"""Failed start: `Failure` describes a failed job, `SpawnProblem` is the exception that JupyterHub shows."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from jupyterhub.spawner import SpawnException

from gipfel_cluster.model import Frozen, GipfelError

from .catalogue import explain
from .cause import Evidence

_MAX_SHOWN_LINES = 25


class Failure(Frozen):
    """Failure of one job: what happened, its cause, and the fix, one line each; ``log`` has several lines."""

    event: str
    cause: str = ""
    fix: str = ""
    log: str = ""

    @classmethod
    def from_evidence(cls, event: str, evidence: Evidence, *, default_cause: str = "") -> "Failure":
        """Return a failure with the cause from the catalogue, or ``default_cause`` if it has none."""
        explanation = explain(evidence)
        log = "\n".join(evidence.log.splitlines()[-_MAX_SHOWN_LINES:])
        if explanation is None:
            return cls(event=event, cause=default_cause, log=log)
        return cls(event=event, cause=explanation.reason, fix=explanation.fix, log=log)

    @property
    def error(self) -> GipfelError:
        """Failure as an error of one line, for the API's answer."""
        cause = self.cause if not self.cause or self.cause.endswith((".", "!", "?")) else f"{self.cause}."
        return GipfelError(f"{self.event} {cause}".strip(), self.fix)

    def page(self) -> str:
        """Return the failure as escaped HTML; the hub's pages add buttons."""
        parts = [
            '<div class="alert alert-danger" role="alert">',
            f'<p class="gipfel-event">{escape(self.event)}</p>',
        ]
        if self.cause:
            parts.append(f'<p class="gipfel-cause"><strong>{escape(self.cause)}</strong></p>')
        if self.fix:
            parts.append(f'<p class="gipfel-fix"><strong>What to do:</strong> {escape(self.fix)}</p>')
        parts.append("</div>")
        if self.log:
            parts.append("<details open><summary>Last lines of the job's log</summary>")
            parts.append(f"<pre>{escape(self.log)}</pre></details>")
        return f'<div class="gipfel-failure text-start">{"".join(parts)}</div>'


class SpawnProblem(SpawnException):  # type: ignore[misc]
    """Failed start, shown with its fix in the form, on the progress page and in the API's answer.

    Parameters
    ----------
    error
        The problem and its fix.
    reason
        Label for the hub's metrics.
    failure
        The failed job, shown on the page.
    status_code
        HTTP status of the answer.
    """

    def __init__(
        self,
        error: GipfelError,
        *,
        reason: str = "error",
        failure: Failure | None = None,
        status_code: int = 400,
    ) -> None:
        line = str(error)
        page = failure.page() if failure else escape(line)
        super().__init__(line, reason=reason, message_html=page, status_code=status_code)
        # The form and the progress page read these two names.
        self.jupyterhub_message = line
        self.jupyterhub_html_message = page if failure else None


@contextmanager
def options_problems() -> Iterator[None]:
    """Convert an error in user options into a `SpawnProblem`."""
    try:
        yield
    except GipfelError as error:
        raise SpawnProblem(error, reason="options") from None
