"""How what a user chose reaches the spawner: the form and the REST API start, a link fills the form only."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.orm import object_session
from traitlets import default

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.protocol import JobRequest
from gipfel_cluster.scheduler.site import Choices

from ..account import Account
from ..cluster.kept import Seen
from ..cluster.settings import ClusterSettings
from ..failure.problem import SpawnProblem, options_problems
from ..place import PlacedSpawner
from ..start.request import server_request, server_spec
from .engines import offered_engines
from .fit import check_choices, check_vetting, choose_partition, time_within, with_shares, within_group
from .options import OptionError, UserOptions, is_name, read_form, read_options, read_query
from .page import ClusterOffer, FormContent, Misfit, render_form, typed_values
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
        """What the form shows; the schedulers are not asked for a page, the user's EDFs are listed."""
        presets, problems = read_presets(self.presets)
        (names, edf_problem), offers = await asyncio.gather(
            self._environments(), asyncio.gather(*map(self._offer, self.sites.values()))
        )
        defaults, default_problem = self._defaults()
        typed, self._typed = self._typed, None
        misfit, self._misfit = self._misfit, None
        chosen = _readable(self.take_preselected())
        cluster = chosen.cluster if typed is None else typed.get("cluster", "")
        shown = next((each for each in offers if each.name == cluster), offers[0])
        return FormContent(
            cluster=shown.name,
            clusters=tuple(offers) if self.clusters else (),
            environments=names,
            partitions=shown.partitions,
            age=max(each.age for each in offers),
            choices=shown.choices,
            engines=shown.engines,
            vetting=tuple(self.vetting_protocols),
            presets=presets,
            last=self._last_options(),
            defaults=defaults,
            chosen=chosen,
            typed=typed,
            misfit=misfit,
            cpus_per_gpu=self.cpus_per_gpu,
            memory_per_gpu=self.memory_per_gpu,
            problems=tuple(
                each
                for each in (
                    *problems,
                    *(problem for offer in offers for problem in offer.problems),
                    edf_problem,
                    default_problem,
                )
                if each
            ),
            hub=self.hub.base_url,
            user=self.user.name,
        )

    async def _offer(self, site: ClusterSettings) -> ClusterOffer:
        """What one cluster has, with a line for whatever could not be asked."""
        partitions, choices, (engines, engine_problem) = await asyncio.gather(
            self._shared(site).board.partitions(),
            self._choices(site),
            offered_engines(site.engine, site.engines, here=site.is_local),
        )
        problems = (
            partitions.problem,
            # Of a scheduler that is silent, one line is enough.
            "" if partitions.problem else choices.problem,
            engine_problem,
        )
        return ClusterOffer(
            name=site.name,
            partitions=partitions.value or (),
            age=partitions.age if partitions.problem else 0.0,
            # A choice that can't be asked for is none: the site's defaults then go.
            choices=choices.value or Choices(),
            engines=engines,
            problems=tuple(f"{site.name}: {each}" if self.clusters else each for each in problems if each),
        )

    def _defaults(self) -> tuple[UserOptions, str]:
        try:
            return self.site_defaults(), ""
        except GipfelError as error:
            return UserOptions(), f"The hub's defaults: {error}"

    async def _choices(self, site: ClusterSettings) -> Seen[Choices]:
        try:
            return await self._shared(site).board.choices(self._unix_name(site))
        except GipfelError:
            # No unix account: the list of environments says so.
            return Seen()

    async def _environments(self) -> tuple[tuple[str, ...], str]:
        try:
            found = await self._errands(self._find_account()).environments()
        except GipfelError as error:
            return (), str(error)
        names = tuple(name for name in found if is_name(name))
        odd = [name for name in found if not is_name(name)]
        if not odd:
            return names, ""
        first = one_line(repr(odd[0]))[:80]
        return (
            names,
            f"An environment's name has letters, digits and _.+@-: rename {first} to choose it here.",
        )

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
        site = self.site_of(options.cluster)
        request = await self._request(options, "", self._find_account(site), environment={})
        return await self._shared(site).board.expected_start(request)

    async def inspect_environment(self, edf: str, cluster: str = "") -> dict[str, Any]:
        """What is wrong with an EDF, and what it resolves to; asked as the user."""
        site = self.site_of(cluster)
        account = self._find_account(site)
        edf = account.home + edf[1:] if edf.startswith("~/") else edf or self.default_edf
        return await self._errands(account, site).inspect(edf)

    async def draft_environment(self, draft: Draft) -> dict[str, Any]:
        """Check or save a new EDF, as the user."""
        return await self._errands(self._find_account()).draft(draft)

    async def _request(
        self, options: UserOptions, edf: str, account: Account, *, environment: dict[str, Any] | None = None
    ) -> JobRequest:
        defaults, site = self.site_defaults(), self.site_of(options.cluster)
        partitions = await self._shared(site).board.current_partitions()
        usual = defaults.partition
        if self.clusters and usual not in {each.name for each in partitions}:
            usual = ""
        wanted = options.model_copy(
            update={
                "partition": options.partition or usual,
                "gpus": defaults.gpus if options.gpus is None else options.gpus,
            }
        )
        partition = choose_partition(wanted, partitions)
        wanted = within_group(wanted, partition, site.partitions)
        engines, _ = await offered_engines(site.engine, site.engines, here=site.is_local)
        choices = await self._choices(site)
        check_choices(wanted, choices.value, engines=engines)
        check_vetting(wanted, self.vetting_protocols)
        spec = server_spec(
            wanted,
            cluster=site.name,
            edf=edf,
            engine=wanted.engine or site.engine,
            runtime=site.runtime,
            arguments=tuple(self.get_args()),
        )
        shared = with_shares(wanted, cpus_per_gpu=self.cpus_per_gpu, memory_per_gpu=self.memory_per_gpu)
        return server_request(
            shared,
            self.site_options(time_within(defaults.time, partition), gpus=wanted.gpus or 0),
            spec,
            account=account,
            log=self._log_name_of(site.name),
            python=self._python(site),
            environment=self.get_env() if environment is None else environment,
        )

    def _log_name_of(self, cluster: str, job_id: str = "%j") -> str:
        """The file name of a job's log; clusters number their jobs each from one on."""
        return f"server-{cluster}-{job_id}.log" if self.clusters else f"server-{job_id}.log"


def _readable(content: Mapping[str, Any]) -> UserOptions:
    try:
        return read_options(content)
    except GipfelError:
        # Options that an older version wrote.
        return UserOptions()
