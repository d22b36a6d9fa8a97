"""A scored job in lines of text, as the panel shows it: for a terminal of 80 columns."""

import textwrap
from collections.abc import Iterator, Sequence

from ..advice.model import Advice
from ..result import JobScore, Total
from ..settings import LOSSES

WIDTH = 80
_BAR = 32
#: Points between the bounds of a score from which they are said.
_WIDE = 5.0


def heading(job: JobScore, *, environment: str = "", width: int = WIDTH) -> str:
    """Return where it ran, on what, and whether that is simulated: the first line."""
    nodes = sorted({score.device.node for score in job.gpus if score.device.node})
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else ""
    names = {score.device.name.removeprefix("NVIDIA ") or "GPU" for score in job.gpus}
    gpus = f"{len(job.gpus)} \u00d7 {names.pop() if len(names) == 1 else 'GPU'}" if job.gpus else "no GPU"
    mark = "simulated" if job.simulated and "simulated" not in gpus else ""
    return _cut("GIPFEL   " + " · ".join(part for part in (where, gpus, mark, environment) if part), width)


def subject(job: JobScore, label: str, *, width: int = WIDTH) -> tuple[str, ...]:
    """Return which recording, how long, how sure: the second line; two where a name is long."""
    seconds = (job.last_ns - job.first_ns) / 1e9 + job.interval if job.first_ns and job.last_ns else 0.0
    tail = f"{_span(seconds)}, a sample every {job.finest:g} s, confidence {job.confidence:.2f}"
    whole = f"Saturation   {label}   {tail}"
    return (whole,) if len(whole) <= width else (_cut(f"Saturation   {label}", width), f"  {tail}")


def score_lines(job: JobScore) -> tuple[str, str]:
    """The score's bar and what was lost: the third line and the fourth."""
    total = job.total
    if total is None:
        return f"  --  ┃{'·' * _BAR}┃ no score", "lost: unknown"
    parts = total.whole_points
    score = parts.pop("score")
    full = score * _BAR // 100
    bar = f"{score:>4}  ┃{'█' * full}{'·' * (_BAR - full)}┃ {_bound(total, job.finest)}"
    lost = sorted((name for name in LOSSES if parts[name]), key=lambda name: -parts[name])
    told = " · ".join(f"{name} {parts[name]}" for name in lost) or "nothing"
    tail = f"({score} + {100 - score} = 100)"
    # Short losses go first where there are too many for a line.
    while len(f"lost: {told}  {tail}") > WIDTH and " · " in told:
        told = told.removesuffix(" · …").rpartition(" · ")[0] + " · …"
    return bar, f"lost: {told}  {tail}"


def text_of(
    job: JobScore,
    advice: Sequence[Advice],
    *,
    label: str,
    environment: str = "",
    notes: Sequence[str] = (),
    since: Sequence[str] = (),
) -> Iterator[str]:
    """The panel's first four lines, plain utilization, advice and notes; none is longer than 80 columns.

    Names come from files that anyone may have written: nothing in them drives a terminal.

    Parameters
    ----------
    since
        What became of the advice of the run before, a sentence each.
    """
    yield from map(_plain, _head_of(job, _plain(label), _plain(environment)))
    yield from map(_plain, _rest_of(job, advice, notes, since))


def _head_of(job: JobScore, label: str, environment: str) -> Iterator[str]:
    yield heading(job, environment=environment)
    yield from subject(job, label)
    yield from score_lines(job)
    if job.utilization is not None and job.total is not None:
        used = round(100 * job.utilization)
        yield f"utilization {used} %: how often a kernel ran, not how much it loaded a GPU"


def _rest_of(
    job: JobScore, advice: Sequence[Advice], notes: Sequence[str], since: Sequence[str]
) -> Iterator[str]:
    told = ""
    for each in advice:
        # Two knobs for one finding: it is told once.
        text = each.action if each.sentence == told else f"{each.sentence} {each.action}"
        yield from textwrap.wrap(f"⚑ {text} ({each.expect})", WIDTH, subsequent_indent="  ")
        told = each.sentence
    for sentence in since:
        yield from textwrap.wrap(f"↺ {sentence}", WIDTH, subsequent_indent="  ")
    bounds = None if job.total is None else (job.total.least, job.total.most)
    told_bounds = told_range(bounds, job.finest)
    for note in (*([told_bounds] if told_bounds else []), *notes, *job.notes):
        yield from textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="  ")


def told_range(bounds: Sequence[float] | None, interval: float) -> str | None:
    """Return the sentence on the bounds of a score at this interval in seconds; None where they are close."""
    if bounds is None or bounds[1] - bounds[0] < _WIDE:
        return None
    return (
        f"The score is between {bounds[0]:.0f} and {bounds[1]:.0f}: what alternates within {interval:g} s "
        "looks like its mean. Shorter intervals narrow it (gipfel record --interval)."
    )


def _bound(total: Total, interval: float) -> str:
    name = total.bottleneck
    if name is None:
        return f"bottleneck unclear at {interval:g} s samples"
    if name in total.binding:
        return f"{name}-bound {100 * total.binding[name]:.0f} % of the time"
    return f"bottleneck: {name}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"
