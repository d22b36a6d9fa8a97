"""``gipfel/runs``: the table of runs, notes, reports and removal; time ranges, scores and comparisons."""

import asyncio
import json
import os
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

from jupyter_server.base.handlers import JupyterHandler
from pydantic import Field
from tornado import web

from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.runs import runs_root
from gipfel_cluster.workloads.run_folders import (
    Tag,
    change_notes,
    check_jobs,
    find_folder,
    find_run,
    remove_run,
)

from ..saturation.report.document import compare_documents
from ..server.history import CONTENT_TYPES, TimeRange, Times, export_content
from ..server.run_comparison import MAX_RUNS, compare_runs
from ..server.run_table import Condition, TableRow, run_table
from ..server.run_tracking import RunTrackings
from ..server.runs import RunReports
from ..server.views import View
from ..telemetry.figures.run_figures import compare_figure
from .base import GipfelRouteHandler, route

_RunName = Annotated[OneLine, Field(min_length=1, max_length=200)]
#: Content security policy of reports, whose scripts run in a separate origin, so they can't use the server.
_POLICY = "sandbox allow-scripts allow-downloads"
_reports = RunReports()
_trackings = RunTrackings()
_PIECES = 256


class TableQuery(Frozen):
    """Order and conditions of the table; see ``gipfel runs list``."""

    sort: OneLine = Field("modified", max_length=100)
    descending: bool = False
    limit: int = Field(200, ge=1, le=1000)
    conditions: tuple[OneLine, ...] = Field((), max_length=20)


class NotesRequest(Frozen):
    """New notes of a run; a field that is None stays as it is."""

    run: _RunName
    display_name: OneLine | None = Field(None, max_length=100)
    note: str | None = Field(None, max_length=4000)
    tags: tuple[Tag, ...] | None = Field(None, max_length=20)
    pinned: bool | None = None


class RemoveRequest(Frozen):
    """Names of the runs to remove."""

    runs: tuple[_RunName, ...] = Field(min_length=1, max_length=100)


class TrackingQuery(Frozen):
    """Name of a run."""

    run: _RunName


class TrackingRequest(TrackingQuery):
    """Run to send to an MLflow server; without an address, to the configured one."""

    to: OneLine = Field("", max_length=2000)


class RunTableRouteHandler(GipfelRouteHandler):
    """``GET``: table of the user's runs."""

    @route
    async def get(self) -> None:
        """Send the last rows of the table in its order."""
        query = self.query_as(TableQuery, conditions="filter")
        self.finish({"runs": await asyncio.to_thread(_rows, query)})


class RunNotesRouteHandler(GipfelRouteHandler):
    """``POST``: notes of a run."""

    @route
    async def post(self) -> None:
        """Change the notes and send all of them."""
        request = self.body_as(NotesRequest)
        changes = request.model_dump(exclude={"run"}, exclude_none=True)
        notes = await asyncio.to_thread(change_notes, await _folder(request.run), changes)
        self.finish(notes.model_dump(mode="json"))


class RunComparisonRouteHandler(GipfelRouteHandler):
    """``GET``: comparison of runs with the first one."""

    @route
    async def get(self) -> None:
        """Send the document of ``gipfel compare --json``."""
        names = tuple(dict.fromkeys(self.get_query_arguments("run")))
        if not 2 <= len(names) <= MAX_RUNS:
            raise GipfelError(f"Choose 2 to {MAX_RUNS} different runs.")
        found = await asyncio.to_thread(compare_runs, names)
        self.finish(found.model_dump(mode="json"))


class RunRemovalRouteHandler(GipfelRouteHandler):
    """``POST``: removal of runs."""

    @route
    async def post(self) -> None:
        """Remove the runs that are neither in use nor pinned; send their names, and why others remain."""
        request = self.body_as(RemoveRequest)
        self.finish(await asyncio.to_thread(_remove, tuple(dict.fromkeys(request.runs))))


class RunTrackingRouteHandler(GipfelRouteHandler):
    """``GET``: where a run is on an MLflow server. ``POST``: send it there."""

    @route
    async def get(self) -> None:
        """Send whether the run is being sent, and its page on the server."""
        await self._answer(await _folder(self.query_as(TrackingQuery).run))

    @route
    async def post(self) -> None:
        """Start to send the run; a process does it, and ``GET`` says how far it is."""
        request = self.body_as(TrackingRequest)
        folder = await _folder(request.run)
        _trackings.start(folder, request.to)
        await self._answer(folder)

    async def _answer(self, folder: Path) -> None:
        self.finish((await asyncio.to_thread(_trackings.state, folder)).model_dump())


class RunReportRouteHandler(GipfelRouteHandler):
    """``GET``: report of a run as a page, which everybody who may access this server can open."""

    @property
    def content_security_policy(self) -> str:
        """Set the headers that give the page its own origin."""
        return _POLICY

    def get_login_url(self) -> str:
        """Return the login page: a colleague who opens the link may not have been on this server before."""
        return str(JupyterHandler.get_login_url(self))

    @route
    async def get(self, name: str) -> None:
        """Send the page of ``gipfel report``."""
        try:
            folder = await _folder(name)
        except GipfelError as error:
            raise web.HTTPError(404, str(error)) from error
        page = await _reports.page(folder, self.base_url)
        # APIHandler's finish would set the content type to JSON.
        self.set_header("Cache-Control", "private, no-cache")
        self.finish(page, set_content_type="text/html; charset=UTF-8")


async def _folder(name: str) -> Path:
    return await asyncio.to_thread(find_folder, name, runs_root(dict(os.environ)))


def _rows(query: TableQuery) -> list[dict[str, object]]:
    conditions = [Condition.parse(each) for each in query.conditions]
    found: list[TableRow] = run_table(
        os.environ,
        conditions=conditions,
        sort=query.sort,
        descending=query.descending,
        max_rows=query.limit,
    )
    return [row.model_dump(mode="json") for row in found]


def _remove(names: tuple[str, ...]) -> dict[str, object]:
    removed, kept = [], []
    for run in check_jobs([find_run(name, os.environ) for name in names], os.environ):
        reason = run.in_use_reason or ("it is pinned" if run.pinned else "")
        try:
            if not reason:
                remove_run(run, os.environ)
        except GipfelError as error:
            reason = str(error)
        if reason:
            kept.append({"run": run.name, "reason": reason})
        else:
            removed.append(Path(run.folder).name)
    return {"removed": removed, "kept": kept}


class TimeRangeQuery(Times):
    """Time range of a run, by the run's name; empty: this server's run."""

    run: OneLine = ""

    def open(self, folder: Path) -> TimeRange:
        """Return the recording of the time range; reads files."""
        return TimeRange(folder, *self.range_ns(folder / "telemetry"))


class CompareQuery(Frozen):
    """Names of two runs; an empty name means this server's run."""

    first: OneLine = ""
    second: OneLine = ""


class RunsRouteHandler(GipfelRouteHandler):
    """``GET``: runs of the user, the newest first."""

    @route
    async def get(self) -> None:
        """Send names, jobs and start times of the runs."""
        self.finish({"runs": await self.telemetry.runs()})


class RangeRouteHandler(GipfelRouteHandler):
    """``GET``: figures and events of a time range of a run."""

    @route
    async def get(self) -> None:
        """Send the same figures as the stream; long time ranges are drawn from summaries."""
        query = self.query_as(TimeRangeQuery)
        view = self.query_as(View, gpus="gpu", gauges="gauge")
        folder = await self.telemetry.run_named(query.run)

        def answer() -> str:
            found = {"run": folder.name, **query.open(folder).answer(view)}
            return json.dumps(found, allow_nan=False)

        text = await asyncio.to_thread(answer)
        self.finish(text)


class ScoreRouteHandler(GipfelRouteHandler):
    """``GET``: score of a time range of a run."""

    @route
    async def get(self) -> None:
        """Send the document of ``gipfel score --json``."""
        query = self.query_as(TimeRangeQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(lambda: query.open(folder).document()))


class CompareRouteHandler(GipfelRouteHandler):
    """``GET``: two runs side by side."""

    @route
    async def get(self) -> None:
        """Send the differences in score, losses and the user's metrics, and a figure of both runs."""
        query = self.query_as(CompareQuery)
        view = self.query_as(View, gpus="gpu", gauges="gauge")
        folders = [await self.telemetry.run_named(name) for name in (query.first, query.second)]

        def answer() -> str:
            both = [TimeRange(folder) for folder in folders]
            documents = [each.document() for each in both]
            rates = [each.metric_means() for each in both]
            own = {n: (rates[0].get(n), rates[1].get(n)) for n in dict.fromkeys((*rates[0], *rates[1]))}
            pairs = [(folder.name, each.overview) for folder, each in zip(folders, both, strict=True)]
            found = {
                "runs": [folder.name for folder in folders],
                "rows": [asdict(row) for row in compare_documents(documents[0], documents[1], own)],
                "figure": compare_figure(pairs, dark=view.dark),
            }
            return json.dumps(found, allow_nan=False)

        text = await asyncio.to_thread(answer)
        self.finish(text)


class DownloadRouteHandler(GipfelRouteHandler):
    """``GET``: samples or image of a time range, as a download."""

    @route
    async def get(self, kind: str) -> None:
        """Send the file in chunks."""
        query = self.query_as(TimeRangeQuery)
        folder = await self.telemetry.run_named(query.run)
        time_range = await asyncio.to_thread(query.open, folder)
        pieces = export_content(time_range, kind)
        await self.send_pieces(
            lambda: b"".join(islice(pieces, _PIECES)), CONTENT_TYPES[kind], f"{folder.name}.{kind}"
        )
