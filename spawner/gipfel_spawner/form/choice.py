"""How what a user chose reaches the spawner: the form and the REST API start, a link fills the form only."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.orm import object_session
from traitlets import default

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobRequest
from gipfel_cluster.scheduler.site import Choices

from ..account import Account
from ..cluster.kept import Seen
from ..failure.problem import SpawnProblem, options_problems
from ..place import PlacedSpawner
from ..start.request import server_request, server_spec
from .engines import offered_engines
from .fit import check_choices, choose_partition, time_within, with_shares
from .options import OptionError, UserOptions, read_form, read_options, read_query
from .page import FormContent, Misfit, render_form, typed_values
from .presets import read_presets


class ChoosingSpawner(PlacedSpawner):
    """JupyterHub's hooks for the options of a start, and what its form shows."""

    # JupyterHub's own, which has no annotations.
    user_options: dict[str, Any]

    _preselected: dict[str, Any] | None = None
    _typed: dict[str, str] | None = None
    _misfit: Misfit | None = None

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[..., Any]:
        return self._read_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[..., Any]:
        # They are read when the server starts: of an error in this hook, JupyterHub logs the stack.
        return lambda _spawner, _options: None

    @default("options_form")
    def _default_options_form(self) -> Callable[..., Any]:
        return type(self).render_options_form

    async def render_options_form(self) -> str:
        """The form, with a line for whatever could not be asked."""
        return render_form(await self.form_content())

    async def form_content(self) -> FormContent:
        """What the form shows; the scheduler is not asked for a page, the user's EDFs are listed."""
        board = self._cluster.board
        presets, problems = read_presets(self.presets)
        partitions, choices, (names, edf_problem) = await asyncio.gather(
            board.partitions(), self._choices(), self._environments()
        )
        defaults, default_problem = self._defaults()
        typed, self._typed = self._typed, None
        misfit, self._misfit = self._misfit, None
        engines, engine_problem = await offered_engines(
            self.engine, self.engines, here=self.scheduler == "local"
        )
        return FormContent(
            cluster=self.cluster,
            environments=names,
            partitions=partitions.value or (),
            age=partitions.age if partitions.problem else 0.0,
            # A choice that can't be asked for is none: the site's defaults then go.
            choices=choices.value or Choices(),
            engines=engines,
            presets=presets,
            last=self._last_options(),
            defaults=defaults,
            chosen=_readable(self.take_preselected()),
            typed=typed,
            misfit=misfit,
            cpus_per_gpu=self.cpus_per_gpu,
            memory_per_gpu=self.memory_per_gpu,
            problems=tuple(
                each
                for each in (
                    *problems,
                    partitions.problem,
                    # Of a scheduler that is silent, one line is enough.
                    "" if partitions.problem else choices.problem,
                    edf_problem,
                    engine_problem,
                    default_problem,
                )
                if each
            ),
            hub=self.hub.base_url,
            user=self.user.name,
        )

    def _defaults(self) -> tuple[UserOptions, str]:
        try:
            return self.site_defaults(), ""
        except GipfelError as error:
            return UserOptions(), f"The hub's defaults: {error}"

    async def _choices(self) -> Seen[Choices]:
        try:
            return await self._cluster.board.choices(self._unix_name())
        except GipfelError:
            # No unix account: the list of environments says so.
            return Seen()

    async def _environments(self) -> tuple[tuple[str, ...], str]:
        try:
            return await self._errands(self._find_account()).environments(), ""
        except GipfelError as error:
            return (), str(error)

    def _read_form(self, form: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return read_form(form).model_dump(exclude_defaults=True)
        except GipfelError as error:
            self.note_misfit(error, typed=typed_values(form))
            raise SpawnProblem(error, reason="options") from None

    def note_misfit(self, error: GipfelError, *, typed: dict[str, str] | None = None) -> None:
        """Remember for the next form what was wrong with which field."""
        if not isinstance(error, OptionError):
            return
        # After an error JupyterHub shows the form of the user's default server, whichever was asked for.
        misfit = Misfit(field=error.field, message=str(error))
        chosen = dict(self.user_options or {})
        for spawner in {self, self.user.spawner}:
            if isinstance(spawner, ChoosingSpawner):
                spawner.keep_misfit(misfit, typed, chosen)

    def keep_misfit(self, misfit: Misfit, typed: dict[str, str] | None, chosen: dict[str, Any]) -> None:
        """Let the next form show what was wrong, beside what was typed or chosen."""
        self._misfit, self._typed = misfit, typed
        if typed is None:
            self._preselected = chosen

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
        if preselected is not None:
            return preselected
        last = self._last_options()
        return last.model_dump(exclude_defaults=True) if last else {}

    def _last_options(self) -> UserOptions | None:
        """What this server was started with last, else the user's server that was used last."""
        if self.orm_spawner.user_options:
            return _readable(self.orm_spawner.user_options)
        used = [
            each
            for each in self.user.orm_user.orm_spawners.values()
            if each.user_options and each.last_activity
        ]
        if used:
            return _readable(max(used, key=lambda each: each.last_activity).user_options)
        return None

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

    async def expected_start(self, options: UserOptions) -> str:
        """When a server with these options would start, as an ISO time; empty for at once.

        Raises
        ------
        GipfelError
            The options don't fit, or the scheduler would refuse the job, or does not say.
        """
        request = await self._request(options, "", self._find_account(), environment={})
        return await self._cluster.board.expected_start(request)

    async def inspect_environment(self, edf: str) -> dict[str, Any]:
        """What is wrong with an EDF, and what it resolves to; asked as the user."""
        account = self._find_account()
        edf = account.home + edf[1:] if edf.startswith("~/") else edf or self.default_edf
        return await self._errands(account).inspect(edf)

    async def draft_environment(self, draft: Draft) -> dict[str, Any]:
        """Check or save a new EDF, as the user."""
        return await self._errands(self._find_account()).draft(draft)

    async def _request(
        self, options: UserOptions, edf: str, account: Account, *, environment: dict[str, Any] | None = None
    ) -> JobRequest:
        defaults = self.site_defaults()
        wanted = options.model_copy(
            update={
                "partition": options.partition or defaults.partition,
                "gpus": defaults.gpus if options.gpus is None else options.gpus,
            }
        )
        partition = choose_partition(wanted, await self._cluster.board.current_partitions())
        engines, _ = await offered_engines(self.engine, self.engines, here=self.scheduler == "local")
        choices = await self._choices()
        check_choices(wanted, choices.value, engines=engines)
        site = self.site_options(time_within(defaults.time, partition), gpus=wanted.gpus or 0)
        spec = server_spec(
            wanted,
            cluster=self.cluster,
            edf=edf,
            engine=wanted.engine or self.engine,
            runtime=self.runtime,
            arguments=tuple(self.get_args()),
        )
        shared = with_shares(wanted, cpus_per_gpu=self.cpus_per_gpu, memory_per_gpu=self.memory_per_gpu)
        return server_request(
            shared,
            site,
            spec,
            account=account,
            python=self._python(),
            environment=self.get_env() if environment is None else environment,
        )


def _readable(content: Mapping[str, Any]) -> UserOptions:
    try:
        return read_options(content)
    except GipfelError:
        # Options that an older version wrote.
        return UserOptions()
