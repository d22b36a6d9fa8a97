"""The HTML of a report. Everything in it that comes from a file is escaped: names may be anybody's.

What a report says, before it is a page.
"""

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from ...telemetry.figures.saved import CLOCK_SCRIPT
from ..settings import LOSSES
from .lines import told_range


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


#: Nothing is loaded from anywhere, whatever a name in a figure says.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

#: A time as content says it: UTC, whether it is named or not; of another zone it stays as it is.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?"
    r"(?:(\+00:00|Z| UTC)|(?![\d:+-]|\.\d))"
)


def report_page(
    content: ReportContent, *, plotly: bytes | None = None, images: Sequence[bytes] | None = None
) -> str:
    """The page.

    Parameters
    ----------
    plotly
        plotly.js, with which the figures answer to the mouse.
    images
        A PNG for each figure, shown where there is no plotly.js, or no script may run.

    Returns
    -------
    str
        HTML in one piece, about 2 MB with plotly.js.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(content.subject or content.heading)}</title>",
        f"<style>{_part('report.css')}</style></head><body>",
        f"<h1>{_text(content.heading)}</h1>",
        f"<p>{_text(content.subject)}</p>",
        *_score(content.document),
        *_advice(content, plotly, images),
        *_figures(content.figures, plotly, images),
        *_gpus(content.document),
        *([f'<section id="vetting"><h2>Vetting</h2>{content.vetting}</section>'] if content.vetting else []),
        *_events(content.events),
        *_record(content.record),
        f"<footer>{_timed(content.made)}</footer>",
        *_scripts(content.figures, plotly),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _score(document: Mapping[str, Any]) -> Iterator[str]:
    yield '<section id="score"><h2>Score</h2>'
    points = document["whole_points"]
    if points is None:
        yield "<p>There is no score.</p>"
    else:
        largest_first = sorted((name for name in LOSSES if points[name]), key=lambda name: -points[name])
        lost = [f"{name} {points[name]}" for name in largest_first]
        mark = ", simulated" if document.get("simulated") else ""
        yield (
            f'<p class="score"><strong>{points["score"]}</strong> of 100{mark}, {_text(_bound(document))}</p>'
        )
        yield f"<p>lost: {_text(' · '.join(lost) or 'nothing')}</p>"
        if (told := told_range(document["range"], document["interval_s"])) is not None:
            yield f"<p>{_text(told)}</p>"
        utilization = document.get("utilization")
        if utilization is not None:
            yield f"<p>Plain utilization, for comparison: {100 * utilization:.0f} %.</p>"
    yield "<ul>"
    for note in document.get("notes", ()):
        yield f"<li>{_text(note)}</li>"
    yield "</ul></section>"


def _bound(document: Mapping[str, Any]) -> str:
    bottleneck = document.get("bottleneck")
    if bottleneck is None:
        return f"bottleneck unclear at {document['interval_s']:g} s samples"
    share = document.get("binding", {}).get(bottleneck)
    return f"bottleneck: {bottleneck}" + (f", {100 * share:.0f} % of the time" if share is not None else "")


def _advice(content: ReportContent, plotly: bytes | None, images: Sequence[bytes] | None) -> Iterator[str]:
    advice = content.document.get("advice", ())
    since = (content.document.get("since") or {}).get("lines", ())
    if not advice and not since:
        return
    yield '<section id="advice"><h2>Advice</h2>'
    for line in since:
        yield f'<p class="since">{_text(line)}</p>'
    yield "<ol>"
    for number, each in enumerate(advice):
        knob = each["knob"]
        yield f"<li><p>{_text(each['sentence'])} <strong>{_text(each['action'])}</strong>"
        yield f" ({_text(each['expect'])}: {_link(knob['name'], knob['link'])})</p>"
        for place, figure in enumerate(content.figures):
            if figure.advice == number:
                yield from _figure(place, figure, plotly, images)
        yield "</li>"
    yield "</ol></section>"


def _figures(
    figures: Sequence[ReportFigure], plotly: bytes | None, images: Sequence[bytes] | None
) -> Iterator[str]:
    for place, figure in enumerate(figures):
        if figure.advice is None:
            yield f"<section><h2>{_text(figure.title)}</h2>"
            yield from _figure(place, figure, plotly, images)
            yield "</section>"


def _figure(
    place: int, figure: ReportFigure, plotly: bytes | None, images: Sequence[bytes] | None
) -> Iterator[str]:
    image = ""
    if images:
        data = base64.b64encode(images[place]).decode()
        image = f'<img alt="{_text(figure.title)}" src="data:image/png;base64,{data}">'
    if plotly is None:
        shown = image or "<p>This figure needs plotly or matplotlib where the report is made.</p>"
    else:
        height = int(figure.figure.get("layout", {}).get("height", 400))
        shown = f'<div class="plot" id="figure-{place}" style="min-height:{height}px"></div>'
        shown += f"<noscript>{image or 'This figure needs JavaScript.'}</noscript>"
    yield f"<figure>{shown}<figcaption>{_timed(figure.caption)}</figcaption></figure>"


def _gpus(document: Mapping[str, Any]) -> Iterator[str]:
    ranks = {uuid: rank["rank"] for rank in document.get("ranks", ()) for uuid in rank["gpus"]}
    if not document.get("gpus"):
        return
    yield '<section id="gpus"><h2>GPUs</h2><div class="wide"><table><thead><tr>'
    for title in ("node", "GPU", "model", "rank", "score", "bottleneck", "utilization", "confidence"):
        yield f"<th>{title}</th>"
    yield "</tr></thead><tbody>"
    for gpu in document["gpus"]:
        number = gpu["uuid"] if gpu["index"] is None else gpu["index"]
        cells = [gpu["node"], number, gpu["name"], ranks.get(gpu["uuid"], "")]
        cells += [_number(gpu["score"], ".0f"), gpu["bottleneck"] or ""]
        used = None if gpu["utilization"] is None else 100 * gpu["utilization"]
        cells += [_number(used, ".0f", " %"), _number(gpu["confidence"], ".2f")]
        yield "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div></section>"


def _events(events: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    if not events:
        return
    yield '<section id="events"><h2>Events</h2><div class="wide"><table><thead><tr>'
    yield '<th>time, <span class="zone">UTC</span></th><th>node</th><th>kind</th><th>what</th>'
    yield "</tr></thead><tbody>"
    for time, *said in events:
        yield f"<tr><td>{_timed(time)}</td>" + "".join(f"<td>{_text(part)}</td>" for part in said) + "</tr>"
    yield "</tbody></table></div></section>"


def _record(record: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not record:
        return
    yield '<section id="record"><h2>Record</h2><table><tbody>'
    for name, value in record:
        shown = _timed(value) if name == "time" else _text(value)
        yield f"<tr><th>{_text(name)}</th><td>{shown}</td></tr>"
    yield "</tbody></table></section>"


def _scripts(figures: Sequence[ReportFigure], plotly: bytes | None) -> Iterator[str]:
    if plotly is None:
        return
    packed = base64.b64encode(gzip.compress(plotly, 9, mtime=0)).decode()
    content = json.dumps([_drawable(figure.figure) for figure in figures], allow_nan=False)
    # What ends a script's element, begins a comment in it, or ends a line for JavaScript alone.
    for sign in "<>&\u2028\u2029":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    yield f'<script type="application/json" id="figures">{content}</script>'
    yield f'<script type="text/plain" id="plotly">{packed}</script>'
    # What follows in one module can use what the clock exports.
    yield f'<script type="module">{CLOCK_SCRIPT.read_text()}{_part("report.js")}</script>'


def _drawable(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Without the traces' names for live views, which plotly takes for parts of a selector."""
    traces = [{key: value for key, value in trace.items() if key != "uid"} for trace in figure["data"]]
    return {"data": traces, "layout": figure["layout"]}


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text()


def _link(name: str, address: str) -> str:
    if not address.startswith("https://"):
        return _text(name)
    return f'<a href="{_text(address)}" rel="noreferrer">{_text(name)}</a>'


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _timed(text: str) -> str:
    """Escaped, with each time as an element that the page's script shows on the reader's clock."""

    def element(found: re.Match[str]) -> str:
        zone = " UTC" if found[3] else ""
        return f'<time datetime="{found[1]}T{found[2]}Z">{found[1]} {found[2]}{zone}</time>'

    return _TIME.sub(element, _text(text))


def _text(value: object) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in str(value)))
