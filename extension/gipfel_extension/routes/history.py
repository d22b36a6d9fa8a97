"""``gipfel/runs``, and time ranges of runs: figures, scores, comparisons and downloads."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine, one_line

from ..saturation.report.document import compare_documents
from ..server.history import CONTENT_TYPES, TimeRange, Times, export_content
from ..server.views import View
from ..telemetry.figures.run_figures import compare_figure
from .base import GipfelRouteHandler, route

_PIECES = 256


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


class _TimeRangeHandler(GipfelRouteHandler):
    def query_as(self, model: type[Any], *names: str) -> Any:
        """Return the query as a frozen model.

        Raises
        ------
        GipfelError
            The query is not valid for the model.
        """
        values: dict[str, Any] = {name: self.get_query_argument(name, None) for name in names}
        values = {name: value for name, value in values.items() if value is not None}
        if "gpus" in model.model_fields:
            values["gpus"] = tuple(self.get_query_arguments("gpu"))
            values["gauges"] = tuple(self.get_query_arguments("gauge"))
        try:
            return model.model_validate(values)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            raise GipfelError(one_line(f"The query is not valid: {why}.")) from error


class RunsRouteHandler(GipfelRouteHandler):
    """``GET``: runs of the user, the newest first."""

    @route
    async def get(self) -> None:
        """Send names, jobs and start times of the runs."""
        self.finish({"runs": await self.telemetry.runs()})


class RangeRouteHandler(_TimeRangeHandler):
    """``GET``: figures and events of a time range of a run."""

    @route
    async def get(self) -> None:
        """Send the same figures as the stream; long time ranges are drawn from summaries."""
        query = self.query_as(TimeRangeQuery, "run", "since", "until", "last")
        view = self.query_as(View, "dark", "metric")
        folder = await self.telemetry.run_named(query.run)

        def answer() -> str:
            found = {"run": folder.name, **query.open(folder).answer(view)}
            return json.dumps(found, allow_nan=False)

        text = await asyncio.to_thread(answer)
        self.set_header("Content-Type", "application/json")
        self.finish(text)


class ScoreRouteHandler(_TimeRangeHandler):
    """``GET``: score of a time range of a run."""

    @route
    async def get(self) -> None:
        """Send the document of ``gipfel score --json``."""
        query = self.query_as(TimeRangeQuery, "run", "since", "until", "last")
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(lambda: query.open(folder).document()))


class CompareRouteHandler(_TimeRangeHandler):
    """``GET``: two runs side by side."""

    @route
    async def get(self) -> None:
        """Send the differences in score, losses and the user's metrics, and a figure of both runs."""
        query = self.query_as(CompareQuery, "first", "second")
        view = self.query_as(View, "dark")
        folders = [await self.telemetry.run_named(name) for name in (query.first, query.second)]

        def answer() -> str:
            both = [TimeRange(folder) for folder in folders]
            documents = [each.document() for each in both]
            rates = [each.rates() for each in both]
            own = {n: (rates[0].get(n), rates[1].get(n)) for n in dict.fromkeys((*rates[0], *rates[1]))}
            pairs = [(folder.name, each.overview) for folder, each in zip(folders, both, strict=True)]
            found = {
                "runs": [folder.name for folder in folders],
                "rows": [row.to_json() for row in compare_documents(documents[0], documents[1], own)],
                "figure": compare_figure(pairs, dark=view.dark),
            }
            return json.dumps(found, allow_nan=False)

        text = await asyncio.to_thread(answer)
        self.set_header("Content-Type", "application/json")
        self.finish(text)


class DownloadRouteHandler(_TimeRangeHandler):
    """``GET``: samples or image of a time range, as a download."""

    @route
    async def get(self, kind: str) -> None:
        """Send the file in chunks."""
        query = self.query_as(TimeRangeQuery, "run", "since", "until", "last")
        folder = await self.telemetry.run_named(query.run)
        time_range = await asyncio.to_thread(query.open, folder)
        self.set_header("Content-Type", CONTENT_TYPES[kind])
        self.set_header("Content-Disposition", f'attachment; filename="{folder.name}.{kind}"')
        pieces = export_content(time_range, kind)
        while piece := await asyncio.to_thread(_joined, pieces):
            self.write(piece)
            await self.flush()
        self.finish()


def _joined(pieces: Iterator[bytes]) -> bytes:
    return b"".join(piece for _, piece in zip(range(_PIECES), pieces, strict=False))
