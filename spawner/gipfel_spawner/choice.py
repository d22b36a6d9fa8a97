"""How what a user chose reaches the spawner: the form and the REST API start, a link fills the form only."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.orm import object_session
from traitlets import default

from gipfel_cluster.model import GipfelError

from .options import UserOptions, read_form, read_options, read_query
from .problem import SpawnProblem, options_problems
from .traits import SpawnerTraits


class ChoosingSpawner(SpawnerTraits):
    """JupyterHub's hooks for the options of a start."""

    # JupyterHub's own, which has no annotations.
    user_options: dict[str, Any]

    _preselected: dict[str, Any] | None = None

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[..., Any]:
        return self._read_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[..., Any]:
        # They are read when the server starts: of an error in this hook, JupyterHub logs the stack.
        return lambda _spawner, _options: None

    def _read_form(self, form: Mapping[str, Any]) -> dict[str, Any]:
        with options_problems():
            return read_form(form).model_dump(exclude_defaults=True)

    def options_from_query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the options of a link for the form, which JupyterHub shows after an error.

        Raises
        ------
        SpawnProblem
            Always: who follows a link has not asked for a job.
        """
        with options_problems():
            self._preselected = read_query(query).model_dump(exclude_defaults=True)
        raise SpawnProblem(
            GipfelError("Choose and press Start:", "a link does not start jobs."),
            reason="options",
            status_code=200,
        )

    def take_preselected(self) -> dict[str, Any]:
        """What the form shows as chosen: a link's options once, else those of the last start."""
        preselected, self._preselected = self._preselected, None
        return preselected if preselected is not None else self.orm_spawner.user_options or {}

    def chosen_options(self) -> UserOptions:
        """The options of this start.

        Raises
        ------
        GipfelError
            They can't be; they are forgotten then, or the next start would find them again.
        """
        try:
            return read_options(self.user_options)
        except GipfelError:
            self.user_options = self.orm_spawner.user_options = {}
            session = object_session(self.orm_spawner)
            if session is not None:
                session.commit()
            raise
