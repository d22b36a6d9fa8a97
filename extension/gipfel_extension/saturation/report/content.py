"""What a report says, before it is a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReportFigure:
    """A figure of ``telemetry`` and what it shows, a sentence.

    ``advice`` is the number of the advice whose evidence it is, None for the run's own figures.
    """

    title: str
    caption: str
    figure: Mapping[str, Any]
    advice: int | None = None


@dataclass(frozen=True)
class ReportContent:
    """A scored run.

    Parameters
    ----------
    heading, subject
        The first two lines of ``gipfel score``.
    document
        Of ``score.json``.
    record
        Name and value of what the run was, ten at most.
    events
        Time in UTC, node, kind and message of what happened.
    made
        When and by what the report was made.
    vetting
        How the run's nodes were vetted, as HTML that is escaped already; empty where they were not.
    """

    heading: str
    subject: str
    document: Mapping[str, Any]
    figures: Sequence[ReportFigure]
    record: Sequence[tuple[str, str]] = ()
    events: Sequence[tuple[str, str, str, str]] = ()
    made: str = ""
    vetting: str = ""
