"""What a failed start says: what happened, why, what to do, and the end of the job's log."""

from html import escape

from gipfel_cluster.model import Frozen, GipfelError

from .causes import Evidence, explain

_SHOWN_LINES = 25


class Failure(Frozen):
    """Of one job; every field is one line but ``log``."""

    what: str
    why: str = ""
    fix: str = ""
    log: str = ""

    @classmethod
    def of(cls, what: str, evidence: Evidence, *, last: str = "") -> "Failure":
        """A failure with the catalogue's cause; where that knows none, ``last`` says why."""
        found = explain(evidence)
        log = "\n".join(evidence.log.splitlines()[-_SHOWN_LINES:])
        if found is None:
            return cls(what=what, why=last, log=log)
        return cls(what=what, why=found.reason, fix=found.fix, log=log)

    @property
    def error(self) -> GipfelError:
        """The same as one line for the API's answer."""
        why = self.why if not self.why or self.why.endswith((".", "!", "?")) else f"{self.why}."
        return GipfelError(f"{self.what} {why}".strip(), self.fix)

    def page(self) -> str:
        """The same as HTML, every text escaped; the hub's pages add their buttons."""
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
