"""What is asked of a Prometheus: the samples of DCGM's fields on some nodes, as they were scraped."""

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..imports.dcgm_names import FIELDS
from ..sample import SourceError
from .web import get_json

_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Labels under which sites keep the node: the exporter's, and Prometheus' own address of it.
_PLACES = (("Hostname", ""), ("hostname", ""), ("node", ""), ("instance", "(:[0-9]+)?"))
_SECONDS = 60.0
_MOST_NODES_AT_ONCE = 200


@dataclass(frozen=True)
class Series:
    """One field of one GPU: times in nanoseconds, UTC, and values as text, in order."""

    field: str
    labels: Mapping[str, str]
    points: tuple[tuple[int, str], ...]


def selectors(nodes: Sequence[str]) -> list[str]:
    """PromQL that selects DCGM's fields of these nodes, one selector per way in which a site labels them.

    Raises
    ------
    SourceError
        No node is named, or one has no name of a host.
    """
    odd = next((node for node in nodes if not _NODE.fullmatch(node)), None)
    if odd is not None or not nodes:
        raise SourceError(
            f"{odd!r} is no name of a node." if nodes else "No node is named.", "Name the job's nodes."
        )
    names = "|".join(sorted(FIELDS))
    fields = f'__name__=~"DCGM_FI_(DEV|PROF)_({names})"'
    found = []
    for first in range(0, len(nodes), _MOST_NODES_AT_ONCE):
        some = "|".join(re.escape(node) for node in nodes[first : first + _MOST_NODES_AT_ONCE])
        for label, ending in _PLACES:
            # As in Go, the whole value must match; what is ours in the text is JSON's quoting.
            value = json.dumps(f"({some})([.][A-Za-z0-9.-]*)?{ending}")
            found.append(f"{{{fields},{label}=~{value}}}")
    return found


def query_samples(
    url: str, nodes: Sequence[str], *, end_ns: int, seconds: float, environment: Mapping[str, str]
) -> Iterator[Series]:
    """Every sample of the last seconds before a time, at the times at which they were scraped.

    A range selector gives what was stored: a range query would repeat old values where none came.

    Raises
    ------
    SourceError
        No answer, or a refusal.
    """
    seen = set()
    for selector in selectors(nodes):
        words = {"query": f"{selector}[{max(1, round(seconds))}s]", "time": f"{end_ns / 1e9:.3f}"}
        address = f"{url}/api/v1/query?{urllib.parse.urlencode(words)}"
        answer = get_json(address, seconds=_SECONDS, environment=environment)
        for series in _series(answer, url):
            key = (series.field, *sorted(series.labels.items()))
            if key not in seen:
                seen.add(key)
                yield series


def _series(answer: Any, url: str) -> Iterator[Series]:
    try:
        if answer["status"] != "success" or answer["data"]["resultType"] != "matrix":
            raise SourceError(
                f"{url} refuses: {str(answer.get('error', answer['status']))[:300]}.", "Ask the site."
            )
        for each in answer["data"]["result"]:
            labels = {str(name): str(value) for name, value in each["metric"].items()}
            points = tuple((_nanoseconds(time), str(value)) for time, value in each["values"])
            yield Series(labels.pop("__name__", ""), labels, points)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(f"{url} answers with what is no answer of Prometheus.", "Is it one?") from error


def _nanoseconds(time: Any) -> int:
    """A time of Prometheus, which has milliseconds."""
    time_ns = round(float(time) * 1000) * 10**6
    if not 0 <= time_ns < 2**63:
        raise ValueError("no time")
    return time_ns
