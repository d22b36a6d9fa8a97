"""A failed spawn as JupyterHub shows it: one line, and where it helps the end of the job's log."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from jupyterhub.spawner import SpawnException

from gipfel_cluster.model import GipfelError


class SpawnProblem(SpawnException):  # type: ignore[misc]
    """What went wrong and what to do, in the form, on the progress page and in the API's answer.

    Parameters
    ----------
    error
        What happened, and what to do.
    reason
        One word for the hub's metrics.
    log
        The last lines of the job's log.
    status_code
        Of the HTTP answer.
    """

    def __init__(
        self, error: GipfelError, *, reason: str = "error", log: str = "", status_code: int = 400
    ) -> None:
        line = str(error)
        page = escape(line)
        if log:
            page += "<details open><summary>Last lines of the job's log</summary>"
            page += f"<pre>{escape(log)}</pre></details>"
        super().__init__(line, reason=reason, message_html=page, status_code=status_code)
        # The form and the progress page read these two names.
        self.jupyterhub_message = line
        self.jupyterhub_html_message = page if log else None


@contextmanager
def options_problems() -> Iterator[None]:
    """Turn an error in what a user chose into a `SpawnProblem`."""
    try:
        yield
    except GipfelError as error:
        raise SpawnProblem(error, reason="options") from None
