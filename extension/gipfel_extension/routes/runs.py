"""``gipfel/runs/…``: the table of runs, their notes, comparison, removal, and the report of one run.

They call the functions of ``gipfel runs``, ``gipfel compare`` and ``gipfel report``.
"""

import asyncio
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError
from tornado import web

from gipfel_cluster.model import Frozen, GipfelError, OneLine, one_line
from gipfel_cluster.runs import runs_root
from gipfel_cluster.workloads.run_folders import (
    RunNotes,
    Tag,
    change_notes,
    check_jobs,
    find_folder,
    find_run,
    remove_run,
)

from ..server.run_comparison import MAX_RUNS, compare_runs
from ..server.run_report import RunReports
from ..server.run_table import Condition, TableRow, run_table
from .base import GipfelRouteHandler, route

_RunName = Annotated[OneLine, Field(min_length=1, max_length=200)]
#: The page's own policy permits its inline scripts; without the server's origin they reach nothing of it.
_POLICY = "sandbox allow-scripts allow-downloads"
_reports = RunReports()


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


class RunTableRouteHandler(GipfelRouteHandler):
    """``GET``: table of the user's runs."""

    @route
    async def get(self) -> None:
        """Send the last rows of the table in its order."""
        given = {name: self.get_query_argument(name, None) for name in ("sort", "descending", "limit")}
        try:
            query = TableQuery.model_validate(
                {
                    **{name: value for name, value in given.items() if value is not None},
                    "conditions": tuple(self.get_query_arguments("filter")),
                }
            )
        except ValidationError as error:
            raise GipfelError(one_line(f"The query is not valid: {error.errors()[0]['msg']}.")) from error
        self.finish({"runs": await asyncio.to_thread(_rows, query)})


class RunNotesRouteHandler(GipfelRouteHandler):
    """``POST``: notes of a run."""

    @route
    async def post(self) -> None:
        """Change the notes and send all of them."""
        request = self.body_as(NotesRequest)
        changes = request.model_dump(exclude={"run"}, exclude_none=True)

        def change() -> RunNotes:
            return change_notes(find_folder(request.run, runs_root(dict(os.environ))), changes)

        self.finish((await asyncio.to_thread(change)).model_dump(mode="json"))


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


class RunReportRouteHandler(GipfelRouteHandler):
    """``GET``: report of a run as a page, which others can open who may access this server."""

    @property
    def content_security_policy(self) -> str:
        """Set the headers that give the page its own origin."""
        return _POLICY

    @route
    async def get(self, name: str) -> None:
        """Send the page of ``gipfel report``."""
        try:
            folder = await asyncio.to_thread(find_folder, name, runs_root(dict(os.environ)))
        except GipfelError as error:
            raise web.HTTPError(404, str(error)) from error
        page = await _reports.page(folder, self.base_url)
        # APIHandler's finish would set the type of JSON.
        self.set_header("Cache-Control", "private, no-cache")
        self.finish(page, set_content_type="text/html; charset=UTF-8")


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
