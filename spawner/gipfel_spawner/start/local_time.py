"""Times on the hub's pages.

`time_element` makes a ``<time>`` element, which ``static/localtime.js`` shows in the browser's time zone.
Where that script does not run, and in texts of the API, a time is in the hub's time zone (`clock_text`).
Both name the zone.
"""

from datetime import datetime
from html import escape
from typing import Literal


def clock_text(time: str, now: datetime | None = None) -> str:
    """Return an ISO time such as ``14:32 CET``, with the date if it is not that of ``now``.

    The time zone is that of ``now``, by default the hub's. A text that is not a time is returned unchanged.
    """
    now = now or datetime.now().astimezone()
    try:
        moment = datetime.fromisoformat(time).astimezone(now.tzinfo)
    except (ValueError, OverflowError):
        # A year before 1 or after 9999 in the other time zone overflows.
        return time
    return moment.strftime("%H:%M %Z" if moment.date() == now.date() else "%Y-%m-%d %H:%M %Z")


def time_element(time: str, text: str, show: Literal["clock", "near"], *, css: str = "") -> str:
    """Return a ``<time>`` element with ``text``, which the page's script replaces.

    Parameters
    ----------
    time
        ISO time with its zone, or without one in the hub's time zone.
    show
        ``clock`` is hours, minutes and seconds; ``near`` hours and minutes, with the date if it is not today.
    css
        Another class of the element.

    Raises
    ------
    ValueError
        The text is not an ISO time.
    """
    try:
        moment = datetime.fromisoformat(time).astimezone().isoformat()
    except OverflowError:
        raise ValueError(f"{time!r} is not a time of the years 1 to 9999.") from None
    classes = f"gipfel-local {css}".strip()
    return f'<time class="{classes}" datetime="{moment}" data-show="{show}">{escape(text)}</time>'
