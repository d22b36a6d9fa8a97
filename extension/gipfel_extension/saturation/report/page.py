"""HTML page of a report, and the lines of its record. Everything in it that comes from a file is escaped."""

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
from ...telemetry.redaction import redact_command_line, redact_record
from ..settings import LOSSES
from .document import range_sentence

_MAX_VALUE = 400
_MAX_RECORD_LINES = 10
#: A table of more GPUs is folded: their scores are in its heading.
_MAX_OPEN_GPUS = 16


@dataclass(frozen=True)
class ReportFigure:
    """Figure of ``telemetry`` with a caption of one sentence.

    ``advice`` is the index of the advice whose evidence it shows; None for a figure of the whole run.
    """

    title: str
    caption: str
    figure: Mapping[str, Any]
    advice: int | None = None


@dataclass(frozen=True)
class ReportContent:
    """Content of a report on a scored run.

    Parameters
    ----------
    heading, subject
        The first two lines of ``gipfel score``.
    document
        Of ``score.json``.
    record
        Names and values of the run's record, ten at most.
    events
        Time in UTC, node, kind and message of each event.
    created
        Time and program version of the report.
    vetting
        Vetting of the run's nodes, as HTML that is already escaped; empty where they were not vetted.
    job_page
        Address of the run's job page; empty where no notebook server is known.
    name, user
        Name that its user gave the run, else that of its folder; and the user, empty where unknown.
    """

    heading: str
    subject: str
    document: Mapping[str, Any]
    figures: Sequence[ReportFigure]
    record: Sequence[tuple[str, str]] = ()
    events: Sequence[tuple[str, str, str, str]] = ()
    created: str = ""
    vetting: str = ""
    job_page: str = ""
    name: str = ""
    user: str = ""


#: The page loads nothing, even if a name in a figure contains an address.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

#: A time in UTC, with or without the zone's name; times of other zones don't match.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(?:\.\d+)?"
    r"(?:(\+00:00|Z| UTC)|(?![\d:+-]|\.\d))"
)


def report_page(
    content: ReportContent, *, plotly: bytes | None = None, images: Sequence[bytes] | None = None
) -> str:
    """Return the page.

    Parameters
    ----------
    plotly
        plotly.js, for interactive figures.
    images
        A PNG for each figure, shown without plotly.js or where scripts are disabled.

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
        f"<title>{_escaped(content.subject or content.heading)}</title>",
        f"<style>{_package_file('report.css')}</style></head><body>",
        f"<h1>{_escaped(content.heading)}</h1>",
        *_about(content),
        f"<p>{_escaped(content.subject)}</p>",
        *([f'<p><a href="{_escaped(content.job_page)}">All ranks</a></p>'] if content.job_page else []),
        *_score(content.document),
        *_advice(content, plotly, images),
        *_figures(content.figures, plotly, images),
        *_gpus(content.document),
        *([f'<section id="vetting"><h2>Vetting</h2>{content.vetting}</section>'] if content.vetting else []),
        *_events(content.events),
        *_record(content.record),
        f"<footer>{_escaped_with_times(content.created)}</footer>",
        *_scripts(content.figures, plotly),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _about(content: ReportContent) -> Iterator[str]:
    """Yield the first lines: which run this is, and a warning where nothing was measured."""
    record = dict(content.record)
    by = f"by {content.user}" if content.user else ""
    parts = [_escaped(content.name), _escaped(by), _escaped_with_times(record.get("time", ""))]
    if command := record.get("command", ""):
        parts.append(f"<code>{_escaped(command)}</code>")
    yield f'<p class="about">{" · ".join(part for part in parts if part)}</p>'
    if content.document.get("simulated"):
        yield '<p class="simulated">◇ <strong>Simulated</strong> or replayed samples, '
        yield "not a measurement of your GPUs.</p>"


def _score(document: Mapping[str, Any]) -> Iterator[str]:
    yield '<section id="score"><h2>Score</h2>'
    points = document["integer_points"]
    if points is None:
        yield "<p>There is no score.</p>"
    else:
        largest_first = sorted((name for name in LOSSES if points[name]), key=lambda name: -points[name])
        lost = [f"{name} {points[name]}" for name in largest_first]
        mark = ", simulated" if document.get("simulated") else ""
        yield (
            f'<p class="score"><strong>{points["score"]}</strong> of 100{mark}, '
            f"{_escaped(_bottleneck_text(document))}</p>"
        )
        yield f"<p>points lost: {_escaped(' · '.join(lost) or 'none')}</p>"
        if (range_note := range_sentence(document["range"], document["interval_s"])) is not None:
            yield f"<p>{_escaped(range_note)}</p>"
        utilization = document.get("utilization")
        if utilization is not None:
            yield f"<p>Plain utilization, for comparison: {100 * utilization:.0f} %.</p>"
    if energy := document.get("energy", {}).get("sentence"):
        yield f"<p>Energy: {_escaped(energy)}.</p>"
    yield "<ul>"
    for note in document.get("notes", ()):
        yield f"<li>{_escaped(note)}</li>"
    yield "</ul></section>"


def _bottleneck_text(document: Mapping[str, Any]) -> str:
    bottleneck = document.get("bottleneck")
    if bottleneck is None:
        return f"bottleneck unclear at {document['interval_s']:g} s samples"
    share = document.get("binding", {}).get(bottleneck)
    return f"bottleneck: {bottleneck}" + (f", {100 * share:.0f} % of the time" if share is not None else "")


def _advice(content: ReportContent, plotly: bytes | None, images: Sequence[bytes] | None) -> Iterator[str]:
    advice = content.document.get("advice", ())
    since = (content.document.get("advice_effect") or {}).get("lines", ())
    if not advice and not since:
        return
    yield '<section id="advice"><h2>Advice</h2>'
    for line in since:
        yield f'<p class="since">{_escaped(line)}</p>'
    yield "<ol>"
    for number, each in enumerate(advice):
        knob = each["knob"]
        yield f"<li><p>{_escaped(each['sentence'])} <strong>{_escaped(each['action'])}</strong>"
        yield f" ({_escaped(each['gain_text'])}: {_link(knob['name'], knob['link'])})</p>"
        for index, figure in enumerate(content.figures):
            if figure.advice == number:
                yield from _figure(index, figure, plotly, images)
        yield "</li>"
    yield "</ol></section>"


def _figures(
    figures: Sequence[ReportFigure], plotly: bytes | None, images: Sequence[bytes] | None
) -> Iterator[str]:
    for index, figure in enumerate(figures):
        if figure.advice is None:
            yield f"<section><h2>{_escaped(figure.title)}</h2>"
            yield from _figure(index, figure, plotly, images)
            yield "</section>"


def _figure(
    index: int, figure: ReportFigure, plotly: bytes | None, images: Sequence[bytes] | None
) -> Iterator[str]:
    image = ""
    if images:
        data = base64.b64encode(images[index]).decode()
        image = f'<img alt="{_escaped(figure.title)}" src="data:image/png;base64,{data}">'
    if plotly is None:
        shown = image or "<p>This figure needs plotly or matplotlib where the report is made.</p>"
    else:
        height = int(figure.figure.get("layout", {}).get("height", 400))
        shown = f'<div class="plot" id="figure-{index}" style="min-height:{height}px"></div>'
        shown += f"<noscript>{image or 'This figure needs JavaScript.'}</noscript>"
    yield f"<figure>{shown}<figcaption>{_escaped_with_times(figure.caption)}</figcaption></figure>"


def _gpus(document: Mapping[str, Any]) -> Iterator[str]:
    ranks = {uuid: rank["rank"] for rank in document.get("ranks", ()) for uuid in rank["gpus"]}
    if not document.get("gpus"):
        return
    yield '<section id="gpus"><h2>GPUs</h2>'
    folded = len(document["gpus"]) > _MAX_OPEN_GPUS
    if folded:
        scores = [gpu["score"] for gpu in document["gpus"] if gpu["score"] is not None]
        scored = f", scores from {min(scores):.0f} to {max(scores):.0f}" if scores else ""
        yield f"<details><summary>{len(document['gpus'])} GPUs{scored}</summary>"
    yield '<div class="wide"><table><thead><tr>'
    for title in ("node", "GPU", "model", "rank", "score", "bottleneck", "utilization", "confidence"):
        yield f"<th>{title}</th>"
    yield "</tr></thead><tbody>"
    for gpu in document["gpus"]:
        number = gpu["uuid"] if gpu["index"] is None else gpu["index"]
        cells = [gpu["node"], number, gpu["name"], ranks.get(gpu["uuid"], "")]
        cells += [_number(gpu["score"], ".0f"), gpu["bottleneck"] or ""]
        used = None if gpu["utilization"] is None else 100 * gpu["utilization"]
        cells += [_number(used, ".0f", " %"), _number(gpu["confidence"], ".2f")]
        yield "<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in cells) + "</tr>"
    yield f"</tbody></table></div>{'</details>' if folded else ''}</section>"


def _events(events: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    if not events:
        return
    yield '<section id="events"><h2>Events</h2><div class="wide"><table><thead><tr>'
    yield '<th>time, <span class="zone">UTC</span></th><th>node</th><th>kind</th><th>message</th>'
    yield "</tr></thead><tbody>"
    for time, *fields in events:
        cells = "".join(f"<td>{_escaped(part)}</td>" for part in fields)
        yield f"<tr><td>{_escaped_with_times(time)}</td>{cells}</tr>"
    yield "</tbody></table></div></section>"


def _record(record: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not record:
        return
    yield '<section id="record"><h2>Record</h2><table><tbody>'
    for name, value in record:
        shown = _escaped_with_times(value) if name == "time" else _escaped(value)
        yield f"<tr><th>{_escaped(name)}</th><td>{shown}</td></tr>"
    yield "</tbody></table></section>"


def _scripts(figures: Sequence[ReportFigure], plotly: bytes | None) -> Iterator[str]:
    if plotly is None:
        return
    packed = base64.b64encode(gzip.compress(plotly, 9, mtime=0)).decode()
    content = json.dumps([_without_uids(figure.figure) for figure in figures], allow_nan=False)
    # These characters end a script element, begin a comment in it, or end a line in JavaScript only.
    for character in "<>&\u2028\u2029":
        content = content.replace(character, f"\\u{ord(character):04x}")
    yield f'<script type="application/json" id="figures">{content}</script>'
    yield f'<script type="text/plain" id="plotly">{packed}</script>'
    # One module, so that the report's script can use the exports of the clock's.
    yield f'<script type="module">{CLOCK_SCRIPT.read_text()}{_package_file("report.js")}</script>'


def _without_uids(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure without the traces' ``uid`` of live views, which plotly uses as parts of a selector."""
    traces = [{key: value for key, value in trace.items() if key != "uid"} for trace in figure["data"]]
    return {"data": traces, "layout": figure["layout"]}


def _package_file(name: str) -> str:
    return files(__package__).joinpath(name).read_text()


def _link(name: str, address: str) -> str:
    if not address.startswith("https://"):
        return _escaped(name)
    return f'<a href="{_escaped(address)}" rel="noreferrer">{_escaped(name)}</a>'


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _escaped_with_times(text: str) -> str:
    """Return escaped text with each time as an element, which the page's script converts to local time."""

    def element(match: re.Match[str]) -> str:
        zone = " UTC" if match[3] else ""
        return f'<time datetime="{match[1]}T{match[2]}Z">{match[1]} {match[2]}{zone}</time>'

    return _TIME.sub(element, _escaped(text))


def _escaped(value: object) -> str:
    return escape("".join(letter if letter.isprintable() else " " for letter in str(value)))


def record_lines(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return names and values from ``record.json``, ten at most, without missing ones."""
    return tuple((name, _shortened(value)) for name, value in _record_lines(redact_record(record)) if value)[
        :_MAX_RECORD_LINES
    ]


def _record_lines(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    job = " ".join(_as_str(record.get(key)) for key in ("cluster", "job_id")).strip()
    yield "job", " · ".join(part for part in (_as_str(record.get("kind")), job) if part)
    ended = _as_str(record.get("ended")) or "not ended"
    yield "time", f"{_as_str(record.get('started'))} to {ended}" if record.get("started") else ""
    yield "exit status", _as_str(record.get("exit_status"))
    nodes = record.get("nodes")
    names = [_as_str(node) for node in nodes] if isinstance(nodes, list) else []
    yield "nodes", f"{len(names)}: {', '.join(names)}" if names else _as_str(record.get("node"))
    edf = record.get("edf")
    name = _as_str(edf.get("name")) if isinstance(edf, dict) else ""
    yield "environment", " · ".join(part for part in (name, _as_str(record.get("edf_digest"))[:19]) if part)
    image = record.get("image")
    yield "image", _as_str(image.get("path")) if isinstance(image, dict) else ""
    command = record.get("command")
    words = [_as_str(word) for word in command] if isinstance(command, list) else []
    yield "command", redact_command_line(words)
    options = record.get("options")
    yield "options", _joined_pairs(options)
    interval = record.get("interval")
    yield "sampling", f"every {interval} s" if isinstance(interval, int | float) else ""
    yield "versions", _joined_pairs(record.get("versions"))


def _joined_pairs(mapping: Any) -> str:
    if not isinstance(mapping, dict):
        return ""
    return ", ".join(f"{_as_str(name)} {_as_str(value)}" for name, value in mapping.items() if _as_str(value))


def _as_str(value: Any) -> str:
    return "" if value is None else str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
