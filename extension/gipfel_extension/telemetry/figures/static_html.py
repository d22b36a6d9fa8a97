"""Static HTML of saved notebooks and reports: escaped text, tables, cards and figures in one style.

The markup contains no scripts. Functions return `Html`, in which all text is escaped: they escape each
argument that is not `Html` itself. `fragment` makes the output of a notebook cell, `page` a whole document.
Both are readable on light and dark backgrounds, in print, and from a width of 320 pixels on.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Self

from .palette import PAGE, STATES, grid_color, text_color


class Html(str):
    """Safe markup, which is inserted into other markup without escaping."""

    __slots__ = ()

    @classmethod
    def of(cls, *parts: str) -> Self:
        """Join strings that already are safe markup."""
        return cls("".join(parts))


class Cell(Html):
    """Cell of a table, with HTML attributes."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Return a text for an element or attribute, without control characters; `Html` as it is."""
    if isinstance(value, Html):
        return value
    text = str(value)
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    return Html(escape(text))


def tag(name: str, *content: object, **attributes: str) -> Html:
    """Return an element; the argument ``class_`` is the attribute ``class``; empty attributes are omitted."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value
    )
    return Html(f"<{name}{pairs}>{''.join(map(escaped, content))}</{name}>")


def table(
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    caption: str = "",
    numbers: Collection[int] = (),
    row_heads: bool = False,
    class_: str = "",
) -> Html:
    """Return a table, which scrolls sideways where it is too wide.

    Parameters
    ----------
    heads
        Heads of the columns; empty for a table of names and values.
    numbers
        Indices of columns with numbers, which are aligned to the right.
    row_heads
        Whether the first cell of a row is its head; consecutive rows with the same head share one cell.
    """
    kinds = dict.fromkeys(numbers, "number")

    def cells(row: Sequence[object], first: int) -> Iterator[Html]:
        for column, each in enumerate(row[first:], first):
            yield each if isinstance(each, Cell) else tag("td", each, class_=kinds.get(column, ""))

    body = []
    if row_heads:
        for head, group in groupby(rows, key=lambda row: row[0]):
            spanned = list(group)
            span = str(len(spanned)) if len(spanned) > 1 else ""
            for number, row in enumerate(spanned):
                label = tag("th", head, scope="rowgroup" if span else "row", rowspan=span)
                body.append(tag("tr", "" if number else label, *cells(row, 1)))
    else:
        body = [tag("tr", *cells(row, 0)) for row in rows]
    head_cells = (
        tag("th", each, scope="col", class_=kinds.get(column, "")) for column, each in enumerate(heads)
    )
    head = tag("thead", tag("tr", *head_cells)) if heads else ""
    title = tag("caption", caption) if caption else ""
    whole = tag("table", title, head, tag("tbody", *body), class_=class_)
    # tabindex makes the scrollable table reachable by keyboard.
    return tag("div", whole, class_="wide", role="group", aria_label=caption or "Table", tabindex="0")


def cell(content: object, **attributes: str) -> Cell:
    """Return a cell with attributes, such as a ``title``."""
    return Cell(tag("td", content, **attributes))


def details(title: str, *body: object, expanded: bool = False) -> Html:
    """Return a section that a click expands; on paper it is expanded."""
    start = "<details open>" if expanded else "<details>"
    return Html.of(start, tag("summary", title), *map(escaped, body), "</details>")


def items(texts: Iterable[object], *, ordered: bool = False) -> Html:
    """Return a list."""
    return tag("ol" if ordered else "ul", *(tag("li", each) for each in texts))


def preformatted(lines: Iterable[object]) -> Html:
    """Return lines in a fixed-width font."""
    shown = (each if isinstance(each, Html) else escaped(str(each).expandtabs()) for each in lines)
    return Html.of("<pre>", "\n".join(shown), "</pre>")


def card(*content: object) -> Html:
    """Return content in a frame."""
    return tag("div", *content, class_="card")


def figure(shown: object, caption: object) -> Html:
    """Return an image or plot with its caption; figures are drawn for a white background."""
    return tag("figure", shown, tag("figcaption", caption))


def fragment(*content: object) -> Html:
    """Return the output of a notebook cell: one element with its own stylesheet, for light and dark pages."""
    return tag("div", Html(f"<style>{STYLE}</style>"), *content, class_="gipfel-static")


def page(title: str, *content: object, head: str = "") -> Html:
    """Return a whole document; ``head`` is markup for its head."""
    start = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        head,
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        tag("title", title),
        f"<style>{STYLE}{_PAGE_STYLE}</style></head>",
        '<body class="gipfel-static">',
    )
    return Html("\n".join([*start, *map(escaped, content), "</body></html>\n"]))


def _states(*, dark: bool) -> str:
    """Return CSS with the colors of verdicts; in JupyterLab those of its theme."""
    return "".join(
        f".gipfel-static .{state}{{color:var(--gipfel-{state},{pair[dark]})}}"
        for state, pair in STATES.items()
    )


#: Borders are visible on any background.
STYLE = f"""
.gipfel-static{{color-scheme:light dark;font:13px/1.4 system-ui,sans-serif;max-width:100%;
overflow-wrap:anywhere}}
.gipfel-static .wide{{overflow-x:auto}}
.gipfel-static table{{border-collapse:collapse;font:inherit;margin:4px 0}}
.gipfel-static :is(th,td){{background:none;border:0;border-bottom:1px solid #8884;overflow-wrap:break-word;
padding:2px 14px 2px 0;text-align:left;vertical-align:top}}
.gipfel-static td:last-child:not(.number){{min-width:100px;overflow-wrap:anywhere}}
.gipfel-static th{{font-weight:600;white-space:nowrap}}
.gipfel-static .number{{font-variant-numeric:tabular-nums;text-align:right}}
.gipfel-static caption{{caption-side:top;padding:2px 0;text-align:left}}
.gipfel-static .grid :is(th,td){{border:1px solid #8886;padding:1px 6px;text-align:center}}
.gipfel-static .grid th{{font-weight:normal}}
.gipfel-static .grid th[scope=row]{{text-align:left}}
.gipfel-static .card{{border:1px solid #8888;border-radius:2px;padding:8px 12px}}
.gipfel-static summary{{cursor:pointer}}
.gipfel-static pre{{background:none;font:12px/1.4 ui-monospace,monospace;margin:4px 0;white-space:pre-wrap}}
.gipfel-static :is(ul,ol){{margin:4px 0;padding-left:20px}}
.gipfel-static :is(.bad,.warn){{font-weight:bold}}
.gipfel-static figure{{margin:8px 0 24px}}
.gipfel-static figure img{{max-width:100%}}
.gipfel-static :is(figcaption,footer,small){{font-size:12px;opacity:.85}}
{_states(dark=False)}
@media (prefers-color-scheme:dark){{{_states(dark=True)}}}
@media print{{
.gipfel-static .wide{{overflow:visible}}
.gipfel-static :is(figure,tr,li>p){{break-inside:avoid}}
.gipfel-static h2{{break-after:avoid}}
.gipfel-static details::details-content{{content-visibility:visible;height:auto}}
}}
"""
_PAGE_STYLE = f"""
body.gipfel-static{{background:{PAGE[False]};color:{text_color(dark=False)};font-size:15px;margin:24px auto;
max-width:1000px;padding:0 16px}}
h1{{font-size:19px}}
h2{{border-bottom:1px solid {grid_color(dark=False)};font-size:16px}}
.simulated{{border-left:3px solid {STATES["warn"][0]};padding:6px 12px}}
.score strong{{font-size:32px}}
@media (prefers-color-scheme:dark){{
body.gipfel-static{{background:{PAGE[True]};color:{text_color(dark=True)}}}
h2{{border-color:{grid_color(dark=True)}}}
a{{color:#8ab4f8}}
.plot,figure img{{background:{PAGE[False]};border-radius:4px}}
}}
@media (max-width:480px){{
.gipfel-static ol{{padding-left:18px}}
.gipfel-static li figure{{margin-left:-18px}}
.plot{{margin-inline:-12px}}
}}
@media print{{body.gipfel-static{{background:none;color:#000;margin:0;max-width:none}}}}
"""
