"""Options of a start: the form and the REST API start a server, a link only fills the form."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy.orm import object_session

from gipfel_cluster.edf import Edf
from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.engines import engine_for
from gipfel_cluster.engines.choice import available_engine_names
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.protocol import Choices, JobRequest

from ..cluster.board import Cached
from ..cluster.clusters import ClusterSettings
from ..failure.problem import SpawnProblem, options_problems
from ..form.fit import check_choices, check_vetting, choose_partition, time_within, with_shares, within_group
from ..form.options import (
    OptionError,
    UserOptions,
    is_name,
    read_form,
    read_options,
    read_presets,
    read_query,
)
from ..form.page import ClusterOffer, FieldError, FormContent, render_form, typed_values
from .account import Account
from .placement import ServerPlacement
from .request import server_request, server_spec
from .traits import SpawnerTraits

# It runs no image, and each EDF without one anyway.
_HOST = "host"


class SpawnOptions:
    """Options of one server: shown in the form, read from it, checked, and made a job request.

    Parameters
    ----------
    spawner
        Its configuration, its user and the options that JupyterHub stores.
    placement
        The clusters to choose from, and the user's accounts on them.
    """

    def __init__(self, spawner: SpawnerTraits, placement: ServerPlacement) -> None:
        self._spawner = spawner
        self._placement = placement
        self._preselected: dict[str, Any] | None = None
        self._typed: dict[str, str] | None = None
        self._field_error: FieldError | None = None

    async def render(self) -> str:
        """Return the form as HTML, with a line for whatever could not be asked."""
        return render_form(await self.content())

    async def content(self) -> FormContent:
        """Return what the form shows; the schedulers are not asked for a page, the user's EDFs are listed."""
        traits = self._spawner
        presets, problems = read_presets(traits.presets)
        (names, edf_problem), offers = await asyncio.gather(
            self._environments(), asyncio.gather(*map(self._offer, self._placement.sites.values()))
        )
        defaults, default_problem = self.defaults()
        typed, self._typed = self._typed, None
        field_error, self._field_error = self._field_error, None
        chosen = _readable(self._pop_preselected())
        cluster = chosen.cluster if typed is None else typed.get("cluster", "")
        shown = next((each for each in offers if each.name == cluster), offers[0])
        offer_problems = (problem for offer in offers for problem in offer.problems)
        return FormContent(
            cluster=shown.name,
            clusters=tuple(offers) if traits.clusters else (),
            environments=names,
            partitions=shown.partitions,
            age=max(each.age for each in offers),
            choices=shown.choices,
            engines=shown.engines,
            vetting=tuple(traits.vetting_protocols),
            presets=presets,
            last=self._last(),
            defaults=defaults,
            chosen=chosen,
            typed=typed,
            field_error=field_error,
            cpus_per_gpu=traits.cpus_per_gpu,
            memory_per_gpu=traits.memory_per_gpu,
            problems=tuple(filter(None, (*problems, *offer_problems, edf_problem, default_problem))),
            hub=traits.hub.base_url,
            user=traits.user.name,
        )

    async def _offer(self, site: ClusterSettings) -> ClusterOffer:
        """Return what one cluster has, with a line for whatever could not be asked."""
        partitions, choices, (engines, engine_problem) = await asyncio.gather(
            self._placement.shared(site).board.partitions(),
            self._choices(site),
            offered_engines(site.engine, site.engines, here=site.is_local),
        )
        problems = (
            partitions.problem,
            # Of a scheduler that does not answer, one line is enough.
            "" if partitions.problem else choices.problem,
            engine_problem,
        )
        several = bool(self._spawner.clusters)
        return ClusterOffer(
            name=site.name,
            partitions=partitions.value or (),
            age=partitions.age if partitions.problem else 0.0,
            # Choices that can't be asked for are not shown: the site's defaults apply.
            choices=choices.value or Choices(),
            engines=engines,
            problems=tuple(f"{site.name}: {each}" if several else each for each in problems if each),
        )

    def defaults(self) -> tuple[UserOptions, str]:
        """Return the site's defaults, and a line where its configuration can't be used."""
        try:
            return self._spawner.site_defaults(), ""
        except GipfelError as error:
            return UserOptions(), f"The hub's defaults: {error}"

    async def _choices(self, site: ClusterSettings) -> Cached[Choices]:
        try:
            return await self._placement.shared(site).board.choices(self._placement.unix_name(site))
        except GipfelError:
            # No unix account: the list of environments has that message.
            return Cached()

    async def _environments(self) -> tuple[tuple[str, ...], str]:
        try:
            found = await self._placement.commands(self._placement.account()).environments()
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

    def from_form(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a submitted form as JupyterHub stores them.

        Raises
        ------
        SpawnProblem
            A field can't be used; the next form shows which one.
        """
        try:
            return read_form(form).model_dump(exclude_defaults=True)
        except GipfelError as error:
            self.note_error(error, typed=typed_values(form))
            raise SpawnProblem(error, reason="options") from None

    def note_error(self, error: GipfelError, *, typed: dict[str, str] | None = None) -> None:
        """Remember for the next form what was wrong with which field."""
        if not isinstance(error, OptionError):
            return
        # After an error JupyterHub shows the form of the user's default server, whichever was asked for.
        field_error = FieldError(field=error.field, message=str(error))
        chosen = dict(self._spawner.user_options or {})
        default = getattr(self._spawner.user.spawner, "options", None)
        for options in {self, default}:
            if isinstance(options, SpawnOptions):
                options.keep_error(field_error, typed, chosen)

    def keep_error(self, error: FieldError, typed: dict[str, str] | None, chosen: dict[str, Any]) -> None:
        """Let the next form show what was wrong, beside what was typed or chosen."""
        self._field_error, self._typed = error, typed
        if typed is None:
            self._preselected = chosen

    def from_query(self, query: Mapping[str, Any]) -> dict[str, Any]:
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

    def _pop_preselected(self) -> dict[str, Any]:
        """Return what the form shows as chosen: a link's options once, else those of the last start."""
        preselected, self._preselected = self._preselected, None
        if preselected is not None:
            return preselected
        last = self._last()
        return last.model_dump(exclude_defaults=True) if last else {}

    def _last(self) -> UserOptions | None:
        """Return what this server was started with last, else the user's server that was used last."""
        own = self._spawner.orm_spawner.user_options
        if own:
            return _readable(own)
        used = [
            each
            for each in self._spawner.user.orm_user.orm_spawners.values()
            if each.user_options and each.last_activity
        ]
        if used:
            return _readable(max(used, key=lambda each: each.last_activity).user_options)
        return None

    def chosen(self) -> UserOptions:
        """Return the options of this start.

        Raises
        ------
        GipfelError
            They can't be used; they are forgotten then, or the next start would find them again.
        """
        spawner = self._spawner
        try:
            return read_options(spawner.user_options)
        except GipfelError:
            spawner.user_options = spawner.orm_spawner.user_options = {}
            session = object_session(spawner.orm_spawner)
            if session is not None:
                session.commit()
            raise

    def shown(self) -> UserOptions:
        """Return what the job was asked for, defaults included, as far as it can be read."""
        spawner = self._spawner
        options = _readable(spawner.user_options or {})
        chosen = {
            "edf": options.edf or spawner.default_edf,
            "partition": options.partition or spawner.req_partition,
            "gpus": spawner.default_gpus if options.gpus is None else options.gpus,
        }
        return options.model_copy(update=chosen)

    async def expected_start(self, options: UserOptions) -> str:
        """Return when a server with these options would start, as an ISO time; empty for at once.

        Raises
        ------
        GipfelError
            The options don't fit, or the scheduler would refuse the job, or does not answer.
        """
        site = self._placement.site_of(options.cluster)
        request = await self.request(options, "", self._placement.account(site), environment={})
        return await self._placement.shared(site).board.expected_start(request)

    async def inspect_environment(self, edf: str, cluster: str = "") -> dict[str, Any]:
        """Return what is wrong with an EDF, and what it resolves to; asked as the user."""
        site = self._placement.site_of(cluster)
        account = self._placement.account(site)
        edf = account.home + edf[1:] if edf.startswith("~/") else edf or self._spawner.default_edf
        return await self._placement.commands(account, site).inspect(edf)

    async def draft_environment(self, draft: Draft) -> dict[str, Any]:
        """Check or save a new EDF, as the user."""
        return await self._placement.commands(self._placement.account()).draft(draft)

    async def request(
        self, options: UserOptions, edf: str, account: Account, *, environment: dict[str, Any] | None = None
    ) -> JobRequest:
        """Return the job for these options, checked against what its cluster has.

        Parameters
        ----------
        environment
            Of the job; by default JupyterHub's variables.

        Raises
        ------
        GipfelError
            The options don't fit, or the scheduler does not answer.
        """
        traits, placement = self._spawner, self._placement
        defaults, site = traits.site_defaults(), placement.site_of(options.cluster)
        partitions = await placement.shared(site).board.current_partitions()
        usual = defaults.partition
        if traits.clusters and usual not in {each.name for each in partitions}:
            usual = ""
        wanted = options.model_copy(
            update={
                "partition": options.partition or usual,
                "gpus": defaults.gpus if options.gpus is None else options.gpus,
            }
        )
        partition = choose_partition(wanted, partitions)
        wanted = within_group(wanted, partition, site.partitions)
        await self._check(wanted, site)
        spec = server_spec(
            wanted,
            cluster=site.name,
            edf=edf,
            engine=wanted.engine or site.engine,
            runtime=site.runtime,
            arguments=tuple(traits.get_args()),
        )
        shared = with_shares(wanted, cpus_per_gpu=traits.cpus_per_gpu, memory_per_gpu=traits.memory_per_gpu)
        return server_request(
            shared,
            traits.site_options(time_within(defaults.time, partition), gpus=wanted.gpus or 0),
            spec,
            account=account,
            log=placement.log_name(site.name),
            python=placement.python(site),
            environment=traits.get_env() if environment is None else environment,
        )

    async def _check(self, wanted: UserOptions, site: ClusterSettings) -> None:
        engines, _ = await offered_engines(site.engine, site.engines, here=site.is_local)
        choices = await self._choices(site)
        check_choices(wanted, choices.value, engines=engines)
        check_vetting(wanted, self._spawner.vetting_protocols)


def _readable(content: Mapping[str, Any]) -> UserOptions:
    try:
        return read_options(content)
    except GipfelError:
        # Options that an older version wrote.
        return UserOptions()


async def offered_engines(site: str, more: Sequence[str], *, here: bool) -> tuple[tuple[str, ...], str]:
    """Return the container engines to choose from, and a line where the site's own can't run here.

    Parameters
    ----------
    site, more
        The site's engine, which comes first, and those that it adds.
    here
        Whether jobs run on this machine, which then can be looked at; compute nodes can't.
    """
    if not here:
        return tuple(dict.fromkeys((site, *more))), ""
    usable, absent = await asyncio.to_thread(_engines_here, site)
    names = (site, *(name for name in usable if name != _HOST and (not more or name in more)))
    problem = f"Environments with an image can't start here: {absent}" if absent and site != _HOST else ""
    return tuple(dict.fromkeys(names)), problem


@cache
def _engines_here(site: str) -> tuple[tuple[str, ...], str]:
    """Return what this machine can run, and why not the site's engine; asked once."""
    try:
        absent = engine_for(Edf(name="any", path=None, image="/any.sqsh"), site).missing() or ""
    except GipfelError as error:
        absent = str(error)
    return available_engine_names(), absent
