"""Bounds of rules as faint lines in the plots of the metrics that they judge."""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gipfel_cluster.definition_files import definition_directories, definition_paths

from ..diagnosis.rules import Rule
from ..telemetry.figures.lines import plain_text
from ..telemetry.figures.palette import MARK
from ..telemetry.metric_table import TABLE
from . import SHIPPED, VARIABLE, enabled_rules, known_rules

#: Statistics with the unit of the values that a plot shows.
_OF_VALUES = ("mean", "lowest", "highest")
#: Most lines in one plot.
_MOST = 3
#: The newest rules, by the state of their files.
_kept: dict[Hashable, tuple[Rule, ...]] = {}


def drawn_rules(environment: Mapping[str, str] = os.environ) -> tuple[Rule, ...]:
    """Return the enabled rules for all ranks whose bound is a value of the metric, read again after a change.

    Returns
    -------
    tuple
        Rules with the statistic ``mean``, ``lowest`` or ``highest``. A rule for some ranks (``where``) is not
        drawn, because plots show other ranks too.
    """
    stamp: Hashable = tuple(_stamps(environment))
    found = _kept.get(stamp)
    if found is None:
        known, _ = known_rules(environment)
        found = tuple(
            each for each in enabled_rules(known) if each.condition.statistic in _OF_VALUES and not each.where
        )
        _kept.clear()
        _kept[stamp] = found
    return found


def _stamps(environment: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    for _, directory in definition_directories("rules", VARIABLE, SHIPPED, environment):
        for path in definition_paths(directory):
            try:
                state = path.stat()
            except OSError:
                continue
            yield str(path), state.st_mtime_ns, state.st_size


def with_thresholds(figure: dict[str, Any], rules: Sequence[Rule], *, dark: bool = False) -> dict[str, Any]:
    """Return a figure with a line and a label in each plot for each rule that judges one of its metrics.

    Traces are assigned to metrics by their ``uid``: ``<device>/<metric>``, ``<metric>/<band>`` or
    ``metrics/<name>``.
    """
    drawn: dict[tuple[str, str], tuple[Rule, float]] = {}
    for trace in figure["data"]:
        axis = str(trace.get("yaxis", "y"))
        for rule in rules:
            bound = _bound(rule, str(trace.get("uid", "")))
            if bound is not None and any(value is not None for value in trace.get("y", ())):
                drawn.setdefault((axis, rule.name), (rule, bound))
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for (axis, _), (rule, bound) in drawn.items():
        if sum(each["yref"] == axis for each in shapes) == _MOST:
            continue
        line = {"color": MARK[dark], "width": 1, "dash": "dot"}
        shapes.append(
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "yref": axis,
                "y0": bound,
                "y1": bound,
                "line": line,
                "opacity": 0.6,
                "layer": "below",
                "name": "threshold",
            }
        )
        side = "above" if rule.condition.above else "below"
        shown = rule.condition.shown(rule.condition.bound, rule.metric).replace(".0%", "%")
        text = f"{rule.condition.statistic} {side} {shown}"
        notes.append(
            {
                # Short, since a narrow panel has the plot's title beside it.
                "text": plain_text(f"{side} {shown}"),
                "hovertext": plain_text(f"rule {rule.name}: {text} for {rule.window_s:g} s"),
                "xref": "paper",
                "x": 1.0,
                "xanchor": "right",
                "yref": axis,
                "y": bound,
                # Beyond the bound, where there are hardly any values; a plot often ends there.
                "yanchor": "bottom" if rule.condition.above else "top",
                "showarrow": False,
                "font": {"size": 11, "color": MARK[dark]},
                "opacity": 0.8,
                "name": "threshold",
            }
        )
    if not shapes:
        return figure
    layout = figure["layout"]
    more = {
        "shapes": [*layout.get("shapes", ()), *shapes],
        "annotations": [*layout.get("annotations", ()), *notes],
    }
    return {**figure, "layout": {**layout, **more}}


def _bound(rule: Rule, uid: str) -> float | None:
    """Return the bound of a rule in the unit of a trace; None if the rule is not about its metric."""
    first, _, rest = uid.partition("/")
    if first == "metrics":
        # The name may be followed by the launch and the rank.
        parts = rest.split("/")
        names = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        is_judged = not rule.device_kind and any(fnmatchcase(name, rule.metric) for name in names)
        return rule.condition.bound if is_judged else None
    if rule.metric not in TABLE or rule.metric not in (first, rest):
        return None
    style = TABLE[rule.metric].line_style
    of = rule.condition.of
    if style is None or style.percent_of != of:
        return None
    # Bands show a metric in its own unit rather than as a share of another metric.
    return None if of and rest != rule.metric else rule.condition.bound * (100.0 if of else style.factor)
