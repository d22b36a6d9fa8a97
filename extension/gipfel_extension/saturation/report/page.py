"""HTML page of a report, and the lines of its record. Everything in it that comes from a file is escaped."""

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

from ...telemetry.figures.saved import CLOCK_SCRIPT
from ...telemetry.figures.static_html import Html, details, escaped, figure, items, page, table, tag
from ...telemetry.files import edf_name
from ...telemetry.redaction import redact_command_line, redact_record
from ..settings import LOSSES
from .document import range_sentence, shortened

_MAX_VALUE = 400
_MAX_RECORD_LINES = 10
#: A table of more GPUs is collapsed; its heading summarizes their scores.
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
        Content of ``score.json``.
    record
        Names and values of the run's record, ten at most.
    events
        Time in UTC, node, kind and message of each event.
    created
        Time and program version of the report.
    vetting
        Vetting of the run's nodes; empty where they were not vetted.
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
    vetting: Html = Html()  # noqa: RUF009 - immutable
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
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    return page(
        content.subject or content.heading,
        tag("h1", content.heading),
        *_about(content),
        tag("p", content.subject),
        *([tag("p", tag("a", "All ranks", href=content.job_page))] if content.job_page else []),
        _section("Score", *_score(content.document), id="score"),
        *_advice(content, plotly, images),
        *(
            _section(drawn.title, _figure(index, drawn, plotly, images))
            for index, drawn in enumerate(content.figures)
            if drawn.advice is None
        ),
        *_gpus(content.document),
        *([_section("Vetting", content.vetting, id="vetting")] if content.vetting else []),
        *_events(content.events),
        *_record(content.record),
        tag("footer", _with_times(content.created)),
        *_scripts(content.figures, plotly),
        head=policy,
    )


def _section(title: str, *content: object, id: str = "") -> Html:  # noqa: A002 - the attribute's name
    return tag("section", tag("h2", title), *content, id=id)


def _about(content: ReportContent) -> Iterator[Html]:
    """Yield the first lines: the run, and a warning if its values are simulated."""
    record = dict(content.record)
    by = f"by {content.user}" if content.user else ""
    parts = [escaped(content.name), escaped(by), _with_times(record.get("time", ""))]
    if command := record.get("command", ""):
        parts.append(tag("code", command))
    yield tag("p", Html(" · ".join(part for part in parts if part)), class_="about")
    if content.document.get("simulated"):
        warning = " or replayed samples, not a measurement of your GPUs."
        yield tag("p", "◇ ", tag("strong", "Simulated"), warning, class_="simulated")


def _score(document: Mapping[str, Any]) -> Iterator[Html]:
    points = document["integer_points"]
    if points is None:
        yield tag("p", "There is no score.")
    else:
        largest_first = sorted((name for name in LOSSES if points[name]), key=lambda name: -points[name])
        lost = [f"{name} {points[name]}" for name in largest_first]
        mark = ", simulated" if document.get("simulated") else ""
        score = tag("strong", points["score"])
        yield tag("p", score, f" of 100{mark}, {_bottleneck_text(document)}", class_="score")
        yield tag("p", f"points lost: {' · '.join(lost) or 'none'}")
        if (range_note := range_sentence(document["range"], document["interval_s"])) is not None:
            yield tag("p", range_note)
        utilization = document.get("utilization")
        if utilization is not None:
            yield tag("p", f"Plain utilization, for comparison: {100 * utilization:.0f} %.")
    if energy := document.get("energy", {}).get("sentence"):
        yield tag("p", f"Energy: {energy}.")
    yield items(document.get("notes", ()))


def _bottleneck_text(document: Mapping[str, Any]) -> str:
    bottleneck = document.get("bottleneck")
    if bottleneck is None:
        return f"bottleneck unclear at {document['interval_s']:g} s samples"
    share = document.get("binding", {}).get(bottleneck)
    return f"bottleneck: {bottleneck}" + (f", {100 * share:.0f} % of the time" if share is not None else "")


def _advice(content: ReportContent, plotly: bytes | None, images: Sequence[bytes] | None) -> Iterator[Html]:
    advice = content.document.get("advice", ())
    since = (content.document.get("advice_effect") or {}).get("lines", ())
    if not advice and not since:
        return
    found: list[Html] = []
    for number, each in enumerate(advice):
        link = _link(each["knob"]["name"], each["knob"]["link"])
        action = tag("strong", each["action"])
        is_alternative = bool(found) and each.get("alternative", False)
        beginning = "Or:" if is_alternative else each["sentence"]
        text = tag("p", beginning, " ", action, f" ({each['gain_text']}: ", link, ")")
        figures = (
            _figure(index, drawn, plotly, images)
            for index, drawn in enumerate(content.figures)
            if drawn.advice == number
        )
        item = Html.of(text, *figures)
        if is_alternative:
            found[-1] = Html.of(found[-1], item)
        else:
            found.append(item)
    lines = (tag("p", line, class_="since") for line in since)
    yield _section("Advice", *lines, items(found, ordered=True), id="advice")


def _figure(index: int, drawn: ReportFigure, plotly: bytes | None, images: Sequence[bytes] | None) -> Html:
    image = Html()
    if images:
        data = base64.b64encode(images[index]).decode()
        image = Html(f'<img alt="{escaped(drawn.title)}" src="data:image/png;base64,{data}">')
    if plotly is None:
        shown = image or tag("p", "This figure needs plotly or matplotlib where the report is made.")
    else:
        height = int(drawn.figure.get("layout", {}).get("height", 400))
        place = tag("div", class_="plot", id=f"figure-{index}", style=f"min-height:{height}px")
        shown = Html.of(place, tag("noscript", image or "This figure needs JavaScript."))
    return figure(shown, _with_times(drawn.caption))


def _gpus(document: Mapping[str, Any]) -> Iterator[Html]:
    gpus = document.get("gpus")
    if not gpus:
        return
    ranks = {uuid: rank["rank"] for rank in document.get("ranks", ()) for uuid in rank["gpus"]}
    rows = []
    for gpu in gpus:
        number = gpu["uuid"] if gpu["index"] is None else gpu["index"]
        cells = [gpu["node"], number, gpu["name"], ranks.get(gpu["uuid"], "")]
        cells += [_number(gpu["score"], ".0f"), gpu["bottleneck"] or ""]
        used = None if gpu["utilization"] is None else 100 * gpu["utilization"]
        rows.append([*cells, _number(used, ".0f", " %"), _number(gpu["confidence"], ".2f")])
    heads = ("node", "GPU", "model", "rank", "score", "bottleneck", "utilization", "confidence")
    shown = table(heads, rows, numbers=(3, 4, 6, 7))
    if len(gpus) > _MAX_OPEN_GPUS:
        scores = [gpu["score"] for gpu in gpus if gpu["score"] is not None]
        scored = f", scores from {min(scores):.0f} to {max(scores):.0f}" if scores else ""
        shown = details(f"{len(gpus)} GPUs{scored}", shown)
    yield _section("GPUs", shown, id="gpus")


def _events(events: Sequence[tuple[str, str, str, str]]) -> Iterator[Html]:
    if events:
        zone = Html.of("time, ", tag("span", "UTC", class_="zone"))
        rows = ((_with_times(time), *fields) for time, *fields in events)
        yield _section("Events", table((zone, "node", "kind", "message"), rows), id="events")


def _record(record: Sequence[tuple[str, str]]) -> Iterator[Html]:
    if record:
        rows = [(name, _with_times(value) if name == "time" else value) for name, value in record]
        yield _section("Record", table((), rows, row_heads=True), id="record")


def _scripts(figures: Sequence[ReportFigure], plotly: bytes | None) -> Iterator[Html]:
    if plotly is None:
        return
    packed = base64.b64encode(gzip.compress(plotly, 9, mtime=0)).decode()
    content = json.dumps([_without_uids(figure.figure) for figure in figures], allow_nan=False)
    # These characters end a script element, begin a comment in it, or end a line in JavaScript only.
    for character in "<>&\u2028\u2029":
        content = content.replace(character, f"\\u{ord(character):04x}")
    yield Html(f'<script type="application/json" id="figures">{content}</script>')
    yield Html(f'<script type="text/plain" id="plotly">{packed}</script>')
    # One module, so that the report's script can use the exports of the clock's.
    script = CLOCK_SCRIPT.read_text() + files(__package__).joinpath("report.js").read_text()
    yield Html(f'<script type="module">{script}</script>')


def _without_uids(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure without the traces' ``uid`` of live views, which plotly uses as parts of a selector."""
    traces = [{key: value for key, value in trace.items() if key != "uid"} for trace in figure["data"]]
    return {"data": traces, "layout": figure["layout"]}


def _link(name: str, address: str) -> Html:
    if not address.startswith("https://"):
        return escaped(name)
    return tag("a", name, href=address, rel="noreferrer")


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _with_times(text: str) -> Html:
    """Return escaped text with each time as an element, which the page's script converts to local time."""

    def element(match: re.Match[str]) -> str:
        zone = " UTC" if match[3] else ""
        return f'<time datetime="{match[1]}T{match[2]}Z">{match[1]} {match[2]}{zone}</time>'

    return Html(_TIME.sub(element, escaped(text)))


def record_lines(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return names and values from ``record.json``, ten at most, without missing ones."""
    lines = (
        (name, shortened(value, _MAX_VALUE)) for name, value in _record_lines(redact_record(record)) if value
    )
    return tuple(islice(lines, _MAX_RECORD_LINES))


def _record_lines(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    job = " ".join(_as_str(record.get(key)) for key in ("cluster", "job_id")).strip()
    yield "job", " · ".join(part for part in (_as_str(record.get("kind")), job) if part)
    ended = _as_str(record.get("ended")) or "not ended"
    yield "time", f"{_as_str(record.get('started'))} to {ended}" if record.get("started") else ""
    yield "exit status", _as_str(record.get("exit_status"))
    nodes = record.get("nodes")
    names = [_as_str(node) for node in nodes] if isinstance(nodes, list) else []
    yield "nodes", f"{len(names)}: {', '.join(names)}" if names else _as_str(record.get("node"))
    digest = _as_str(record.get("edf_digest"))[:19]
    yield "environment", " · ".join(part for part in (edf_name(record), digest) if part)
    image = record.get("image")
    yield "image", _as_str(image.get("path")) if isinstance(image, dict) else ""
    command = record.get("command")
    words = [_as_str(word) for word in command] if isinstance(command, list) else []
    yield "command", redact_command_line(words)
    yield "options", _joined_pairs(record.get("options"))
    interval = record.get("interval")
    yield "sampling", f"every {interval} s" if isinstance(interval, int | float) else ""
    yield "versions", _joined_pairs(record.get("versions"))


def _joined_pairs(mapping: Any) -> str:
    if not isinstance(mapping, dict):
        return ""
    return ", ".join(f"{_as_str(name)} {_as_str(value)}" for name, value in mapping.items() if _as_str(value))


def _as_str(value: Any) -> str:
    return "" if value is None else str(value)
