"""A failed spawn as JupyterHub shows it: one line, and where it helps a page of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from jupyterhub.spawner import SpawnException

from gipfel_cluster.model import GipfelError

from .page import Failure


class SpawnProblem(SpawnException):  # type: ignore[misc]
    """What went wrong and what to do, in the form, on the progress page and in the API's answer.

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
