"""Options of a start, from the form, from a link (which only fills in the form) or from the REST API."""

import asyncio
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import object_session

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.protocol import Choices, JobRequest, Partition

from ..cluster import ClusterSettings
from ..cluster.cache import Cached, Forecast
from ..failure import SpawnProblem, options_problems
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
from ..form.validation import (
    add_per_gpu_defaults,
    assign_group_partition,
    check_choices,
    check_limits,
    check_vetting,
    choose_partition,
    limit_time,
)
from .account import Account
from .placement import (
    ServerPlacement,
    check_interface,
    cluster_has_notebook,
    interface_environment,
    offered_engines,
)
from .request import server_request, server_spec
from .services import ServiceOffer, service_offers
from .traits import SpawnerTraits


class SpawnOptions:
    """Options of one server: renders the form, reads and checks its values, and makes the job request.

    Parameters
    ----------
    spawner
        Provides the configuration, the user and the options that JupyterHub stores.
    placement
        Provides the clusters to choose from, and the user's accounts on them.
    """

    def __init__(self, spawner: SpawnerTraits, placement: ServerPlacement) -> None:
        self._spawner = spawner
        self._placement = placement
        self._preselected: dict[str, Any] | None = None
        self._typed: dict[str, str] | None = None
        self._field_error: FieldError | None = None

    async def render(self, earlier: UserOptions | None = None, *, gpu_hours: tuple[str, ...] = ()) -> str:
        """Return the form as HTML, with a line for each query that failed.

        Parameters
        ----------
        earlier
            The options of an earlier session that the form shows instead of those of the last start.
        gpu_hours
            Lines on the user's GPU hours, which the form shows above Start.
        """
        return render_form((await self.content(earlier)).model_copy(update={"gpu_hours": gpu_hours}))

    async def content(self, earlier: UserOptions | None = None) -> FormContent:
        """Return the form's content: cached answers of the schedulers and a fresh list of the user's EDFs."""
        traits = self._spawner
        presets, problems = read_presets(traits.presets)
        (names, edf_problem), (services, service_problem), offers = await asyncio.gather(
            self._environments(),
            self._services(),
            asyncio.gather(*map(self._offer, self._placement.settings_by_name.values())),
        )
        defaults, default_problem = self.defaults()
        typed, self._typed = self._typed, None
        field_error, self._field_error = self._field_error, None
        chosen = _readable(self._pop_preselected(earlier))
        cluster = chosen.cluster if typed is None else typed.get("cluster", "")
        selected = next((each for each in offers if each.name == cluster), offers[0])
        offer_problems = (problem for offer in offers for problem in offer.problems)
        return FormContent(
            cluster=selected.name,
            clusters=tuple(offers) if traits.clusters else (),
            environments=names,
            services=services,
            partitions=selected.partitions,
            age=max(each.age for each in offers),
            choices=selected.choices,
            engines=selected.engines,
            has_notebook=all(each.has_notebook for each in offers),
            vetting=tuple(traits.vetting_protocols),
            presets=presets,
            last=self._last(),
            defaults=defaults,
            initial=chosen,
            typed=typed,
            field_error=field_error,
            cpus_per_gpu=traits.cpus_per_gpu,
            memory_per_gpu=traits.memory_per_gpu,
            problems=tuple(
                filter(None, (*problems, *offer_problems, edf_problem, service_problem, default_problem))
            ),
            hub=traits.hub.base_url,
            user=traits.user.name,
        )

    async def _offer(self, settings: ClusterSettings) -> ClusterOffer:
        """Return the offer of one cluster, with a line for each query that failed."""
        partitions, choices, (engines, engine_problem), has_notebook = await asyncio.gather(
            self._placement.shared(settings).cache.partitions(),
            self._choices(settings),
            offered_engines(settings.engine, settings.engines, jobs_run_locally=settings.is_local),
            cluster_has_notebook(self._placement, settings),
        )
        problems = (
            partitions.problem,
            # If the scheduler does not answer, both queries fail for the same reason: one line is enough.
            "" if partitions.problem else choices.problem,
            engine_problem,
        )
        several = bool(self._spawner.clusters)
        return ClusterOffer(
            name=settings.name,
            partitions=partitions.value or (),
            age=partitions.age if partitions.problem else 0.0,
            # Without an answer, no choices are shown, and the site's defaults apply.
            choices=choices.value or Choices(),
            engines=engines,
            has_notebook=has_notebook,
            problems=tuple(f"{settings.name}: {each}" if several else each for each in problems if each),
        )

    def defaults(self) -> tuple[UserOptions, str]:
        """Return the site's defaults, and a line if its configuration is not valid."""
        try:
            return self._spawner.site_defaults(), ""
        except GipfelError as error:
            return UserOptions(), f"The defaults in the hub's configuration are not valid: {error}"

    async def _choices(self, settings: ClusterSettings) -> Cached[Choices]:
        try:
            return await self._placement.shared(settings).cache.choices(self._placement.unix_name(settings))
        except GipfelError:
            # The user has no unix account; listing the environments reports that.
            return Cached()

    async def _environments(self) -> tuple[tuple[str, ...], str]:
        """Return the names of the user's EDFs, and a line if some or all can't be listed."""
        try:
            found = await self._placement.commands(self._placement.account()).environments()
        except GipfelError as error:
            return (), str(error)
        names = tuple(name for name in found if is_name(name))
        invalid = [name for name in found if not is_name(name)]
        if not invalid:
            return names, ""
        first = one_line(repr(invalid[0]))[:80]
        problem = f"The environment {first} is not listed: names have only letters, digits and _.+@-."
        return names, f"{problem} Rename it."

    async def _services(self) -> tuple[tuple[ServiceOffer, ...], str]:
        """Return the services to choose from, and a line if a blueprint can't be used."""
        if not self._spawner.user.allow_named_servers:
            return (), ""
        try:
            listed = await service_offers(self._placement.commands(self._placement.account()))
        except GipfelError as error:
            # Listing the environments fails for the same reason, and is reported.
            self._spawner.log.info("The services of %s can't be listed: %s", self._spawner.user.name, error)
            return (), ""
        return listed.services, listed.problems[0] if listed.problems else ""

    def from_form(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a submitted form as JupyterHub stores them.

        Raises
        ------
        SpawnProblem
            A field is not valid; the next form shows which one.
        """
        try:
            return read_form(form).model_dump(exclude_defaults=True)
        except GipfelError as error:
            self.note_error(error, typed=typed_values(form))
            raise SpawnProblem(error, reason="options") from None

    def note_error(self, error: GipfelError, *, typed: dict[str, str] | None = None) -> None:
        """Store an error of a field for the next form; `typed` is the submitted form, if it was one."""
        if not isinstance(error, OptionError):
            return
        # After an error JupyterHub always shows the form of the user's default server.
        field_error = FieldError(field=error.field, message=str(error))
        chosen = dict(self._spawner.user_options or {})
        default = getattr(self._spawner.user.spawner, "options", None)
        for options in {self, default}:
            if isinstance(options, SpawnOptions):
                options.store_error(field_error, typed, chosen)

    def store_error(self, error: FieldError, typed: dict[str, str] | None, chosen: dict[str, Any]) -> None:
        """Show the error in the next form, with the submitted values (``typed``) or stored options."""
        self._field_error, self._typed = error, typed
        if typed is None:
            self._preselected = chosen

    def from_query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Preselect the options of a link in the form, which JupyterHub shows after an error.

        Raises
        ------
        SpawnProblem
            Always, because following a link must not start a job.
        """
        with options_problems():
            self._preselected = read_query(query).model_dump(exclude_defaults=True)
        raise SpawnProblem(
            GipfelError("A link does not start a server.", "Check the options and press Start."),
            reason="options",
            status_code=200,
        )

    def _pop_preselected(self, earlier: UserOptions | None) -> dict[str, Any]:
        """Return the options to preselect: of a link (once), else ``earlier``, else of the last start."""
        preselected, self._preselected = self._preselected, None
        if preselected is not None:
            return preselected
        last = earlier or self._last()
        return last.model_dump(exclude_defaults=True) if last else {}

    def _last(self) -> UserOptions | None:
        """Return the options of this server's last start, else of the user's most recently used server."""
        if own := self._spawner.orm_spawner.user_options:
            return _readable(own)
        used = [
            each
            for each in self._spawner.user.orm_user.orm_spawners.values()
            if each.user_options and each.last_activity
        ]
        last = max(used, key=lambda each: each.last_activity, default=None)
        return _readable(last.user_options) if last else None

    def read_stored(self) -> UserOptions:
        """Return the options that JupyterHub stored for this start.

        Raises
        ------
        GipfelError
            They are not valid. They are also deleted, so that the next start does not use them again.
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

    def with_defaults(self) -> UserOptions:
        """Return the stored options with the site's defaults; only the defaults if they are not valid."""
        spawner = self._spawner
        options = _readable(spawner.user_options or {})
        chosen = {
            "edf": options.edf or spawner.default_edf,
            "partition": options.partition or spawner.req_partition,
            "gpus": spawner.default_gpus if options.gpus is None else options.gpus,
        }
        return options.model_copy(update=chosen)

    async def forecast(self, options: UserOptions) -> Forecast:
        """Return when a server with these options would start, and how long earlier jobs like it have waited.

        Raises
        ------
        GipfelError
            The cluster does not have what the options request, or the scheduler would refuse the job or does
            not answer.
        """
        settings = self._placement.settings_of(options.cluster)
        request = await self.request(options, "", self._placement.account(settings), environment={})
        cache = self._placement.shared(settings).cache
        return await cache.forecast(request, self._placement.unix_name(settings))

    async def inspect_environment(self, edf: str, cluster: str = "") -> dict[str, Any]:
        """Return the diagnostics of an EDF and the resolved EDF, determined as the user."""
        settings = self._placement.settings_of(cluster)
        account = self._placement.account(settings)
        edf = account.expand(edf) or self._spawner.default_edf
        return await self._placement.commands(account, settings).inspect(edf)

    async def judge_environment(self, edf: str, cluster: str = "") -> dict[str, Any]:
        """Return the verdict on an EDF's image, computed as the user; empty without an image or a verdict."""
        settings = self._placement.settings_of(cluster)
        account = self._placement.account(settings)
        resolved = (await self.inspect_environment(edf, cluster)).get("edf")
        image = resolved.get("image") if isinstance(resolved, dict) else None
        if not isinstance(image, str) or not image:
            return {}
        verdict = await self._placement.commands(account, settings).image_verdict(image)
        return verdict.to_json() if verdict else {}

    async def draft_environment(self, draft: Draft) -> dict[str, Any]:
        """Check or save a new EDF, as the user."""
        return await self._placement.commands(self._placement.account()).draft(draft)

    async def request(
        self,
        options: UserOptions,
        edf: str,
        account: Account,
        *,
        environment: dict[str, Any] | None = None,
        service: tuple[str, ...] = (),
    ) -> JobRequest:
        """Return the job request for these options, checked against the cluster.

        Parameters
        ----------
        environment
            The job's environment variables, by default JupyterHub's.
        service
            Directories of the service to run instead of a notebook server; see `server_spec`.

        Raises
        ------
        GipfelError
            The cluster does not have what the options request, or the scheduler does not answer.
        """
        traits, placement = self._spawner, self._placement
        defaults, settings = traits.site_defaults(), placement.settings_of(options.cluster)
        partitions = await placement.shared(settings).cache.current_partitions()
        default_partition = defaults.partition
        if traits.clusters and default_partition not in {each.name for each in partitions}:
            default_partition = ""
        requested = options.model_copy(
            update={
                "partition": options.partition or default_partition,
                "gpus": defaults.gpus if options.gpus is None else options.gpus,
            }
        )
        partition = choose_partition(requested, partitions)
        requested = assign_group_partition(requested, partition, settings.partitions)
        await self._check(requested, settings, partition)
        spec = server_spec(
            requested,
            cluster=settings.name,
            edf=edf,
            engine=requested.engine or settings.engine,
            runtime=settings.runtime,
            arguments=tuple(traits.get_args()),
            service=service,
        )
        complete = add_per_gpu_defaults(
            requested, cpus_per_gpu=traits.cpus_per_gpu, memory_per_gpu=traits.memory_per_gpu
        )
        return server_request(
            complete,
            traits.site_options(limit_time(defaults.time, partition), gpus=requested.gpus or 0),
            spec,
            account=account,
            log=placement.log_name(settings.name),
            python=placement.python(settings),
            environment=(traits.get_env() if environment is None else environment)
            | interface_environment(requested.interface),
        )

    async def _check(
        self, requested: UserOptions, settings: ClusterSettings, partition: Partition | None
    ) -> None:
        engines, _ = await offered_engines(
            settings.engine, settings.engines, jobs_run_locally=settings.is_local
        )
        choices = await self._choices(settings)
        check_choices(requested, choices.value, engines=engines)
        check_limits(requested, choices.value, partition)
        check_vetting(requested, self._spawner.vetting_protocols)
        await check_interface(requested.interface, self._placement, settings)


def _readable(content: Mapping[str, Any]) -> UserOptions:
    try:
        return read_options(content)
    except GipfelError:
        # The options were stored by an older version.
        return UserOptions()
