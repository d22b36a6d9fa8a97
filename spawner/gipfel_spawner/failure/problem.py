"""A failed start: `Failure` of a job with its page, `SpawnProblem` as JupyterHub shows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from jupyterhub.spawner import SpawnException

from gipfel_cluster.model import Frozen, GipfelError

from .catalogue import explain
from .cause import Evidence

_SHOWN_LINES = 25


class Failure(Frozen):
    """Failure of one job; every field is one line but ``log``."""

    what: str
    why: str = ""
    fix: str = ""
    log: str = ""

    @classmethod
    def of(cls, what: str, evidence: Evidence, *, last: str = "") -> "Failure":
        """Return a failure with the catalogue's cause; where that has none, ``last`` is the reason."""
        found = explain(evidence)
        log = "\n".join(evidence.log.splitlines()[-_SHOWN_LINES:])
        if found is None:
            return cls(what=what, why=last, log=log)
        return cls(what=what, why=found.reason, fix=found.fix, log=log)

    @property
    def error(self) -> GipfelError:
        """Failure as one line, for the API's answer."""
        why = self.why if not self.why or self.why.endswith((".", "!", "?")) else f"{self.why}."
        return GipfelError(f"{self.what} {why}".strip(), self.fix)

    def page(self) -> str:
        """Return the failure as HTML, every text escaped; the hub's pages add their buttons."""
        parts = [
            '<div class="alert alert-danger" role="alert">',
            f'<p class="gipfel-what">{escape(self.what)}</p>',
        ]
        if self.why:
            parts.append(f'<p class="gipfel-why"><strong>{escape(self.why)}</strong></p>')
        if self.fix:
            parts.append(f'<p class="gipfel-fix"><strong>What to do:</strong> {escape(self.fix)}</p>')
        parts.append("</div>")
        if self.log:
            parts.append("<details open><summary>Last lines of the job's log</summary>")
            parts.append(f"<pre>{escape(self.log)}</pre></details>")
        return f'<div class="gipfel-failure text-start">{"".join(parts)}</div>'


class SpawnProblem(SpawnException):  # type: ignore[misc]
    """A failed start with what to do, in the form, on the progress page and in the API's answer.

    Parameters
    ----------
    error
        What happened, and what to do.
    reason
        One word for the hub's metrics.
    failure
        What the page shows of a job.
    status_code
        Of the HTTP answer.
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
    """Turn an error in what a user chose into a `SpawnProblem`."""
    try:
        yield
    except GipfelError as error:
        raise SpawnProblem(error, reason="options") from None
