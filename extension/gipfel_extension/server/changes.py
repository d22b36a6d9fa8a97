"""Push changes of the lists that pages show, and of the newest events of the user's jobs."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gipfel_cluster.model import GipfelError
from gipfel_cluster.notify import Event, message_of
from gipfel_cluster.notify.journal import read_events
from gipfel_cluster.runs import runs_root

#: Share of a core that the observations of one topic may take.
_SHARE = 0.05
_SINCE_NS = 24 * 3600 * 10**9
_MAX_EVENTS = 20
#: Kinds of events that are not shown for this server's own job: JupyterLab shows its end anyway.
_NOT_OF_OWN_JOB = frozenset(("started", "time"))


@dataclass(frozen=True)
class Topic:
    """Observed topic and its interval.

    Parameters
    ----------
    observe
        Returns what a page shows of the topic, as JSON-serializable values without the current time.
    interval_s, busy_interval_s
        Seconds between observations; the latter while `is_busy` holds for the last observation.
    sends_value
        True to send the value itself; otherwise only its change is sent, and pages request what they need.
    """

    observe: Callable[[], Awaitable[Any]]
    interval_s: float
    busy_interval_s: float = 0.0
    is_busy: Callable[[Any], bool] = lambda _: False
    sends_value: bool = False


class _Listener:
    """Topics whose changes have not been sent to one page yet; bounded, however slow the page is."""

    def __init__(self, topics: Mapping[str, Any], known: Mapping[str, Any]) -> None:
        #: Topics to report after the next observation even without a change: the page may have requested them
        #: before that.
        self.unheard = set(topics)
        self.changed = dict(known)
        self.ready = asyncio.Event()
        if self.changed:
            self.ready.set()

    def report(self, name: str, value: Any) -> None:
        """Report the value of a topic to the page."""
        self.unheard.discard(name)
        self.changed[name] = value
        self.ready.set()


class ServerChanges:
    """Observes topics while at least one page listens, and reports each change to all of them."""

    def __init__(self, topics: Mapping[str, Topic], log: logging.Logger) -> None:
        self._topics = topics
        self._log = log
        self._listeners: set[_Listener] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._values: dict[str, Any] = {}

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield a message for each changed topic, as `responses.ChangeMessage` declares it.

        Soon after the start there is a message for each topic, even without a change.
        """
        known = {name: value for name, value in self._values.items() if self._topics[name].sends_value}
        listener = _Listener(self._topics, known)
        self._listeners.add(listener)
        if not self._tasks:
            self._tasks = [asyncio.ensure_future(self._watch(name)) for name in self._topics]
        try:
            while True:
                await listener.ready.wait()
                listener.ready.clear()
                changed, listener.changed = listener.changed, {}
                for name, value in changed.items():
                    yield {"topic": name, **({name: value} if self._topics[name].sends_value else {})}
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self.close()

    def close(self) -> None:
        """Stop observing."""
        for task in self._tasks:
            task.cancel()
        self._tasks, self._values = [], {}

    async def _watch(self, name: str) -> None:
        topic = self._topics[name]
        failing = False
        while True:
            waiting = [each for each in self._listeners if name in each.unheard]
            began = time.monotonic()
            try:
                value = await topic.observe()
                failing = False
            except (GipfelError, OSError, ValueError) as error:
                if not failing:
                    self._log.warning("Changes of %s can't be observed: %s", name, error)
                failing, value = True, None
            spent = time.monotonic() - began
            changed = _text(value) != _text(self._values.get(name))
            self._values[name] = value
            for listener in tuple(self._listeners) if changed else waiting:
                listener.report(name, value)
            busy = topic.busy_interval_s > 0 and value is not None and topic.is_busy(value)
            await asyncio.sleep(max(topic.busy_interval_s if busy else topic.interval_s, spent / _SHARE))


def _text(value: Any) -> str:
    with contextlib.suppress(TypeError):
        return json.dumps(value, sort_keys=True, default=str)
    return repr(value)


def job_events(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the newest events of the last day, the newest last, as `responses.JobEvent` declares them."""
    own = Path(environment.get("GIPFEL_RUN", "")).name
    found = [
        each
        for each in read_events(environment, since_ns=time.time_ns() - _SINCE_NS)
        if each.run != own or each.kind not in _NOT_OF_OWN_JOB
    ]
    root = runs_root(dict(environment))
    return [_describe(each, root) for each in found[-_MAX_EVENTS:]]


def _describe(event: Event, root: Path) -> dict[str, Any]:
    name = event.run
    # A server in a container may not see other runs; the journal may hold any name.
    is_name = Path(name).name == name and not name.startswith(".")
    has_report = bool(name) and is_name and (root / name).is_dir()
    return {
        "time_ms": event.time_ns // 1_000_000,
        "kind": event.kind,
        "title": message_of(event).title,
        "reason": event.reason,
        "workload": event.workload,
        "report": f"gipfel/runs/{quote(name, safe='')}/report" if has_report else "",
    }
