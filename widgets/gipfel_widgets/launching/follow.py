"""Reads a launch again and again: its document and its log's end, at a pace that costs a kernel little."""

import contextlib
import os
import time
from collections import deque
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launches.earlier import launch_since
from gipfel_extension.training.launches.glance import flight_lines, glance
from gipfel_extension.training.launches.log_tail import ErrorLines, LogRow, tail_cursor
from gipfel_extension.training.launches.scored import launch_score

MOST_LINES = 2000
_SHORTEST_S = 0.4
_SHARE = 0.05
_SCORE_S = 15.0


class FollowedLaunch:
    """A launch as it goes on.

    Parameters
    ----------
    launch
        It may be anywhere between its pre-flight and its end.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.document: dict[str, Any] = {}
        self.lines: deque[LogRow] = deque(maxlen=MOST_LINES)
        self._cursor = tail_cursor(launch.folder)
        self._errors = ErrorLines()
        self._score: dict[str, Any] | None = None
        self._score_after = 0.0
        self._told: str | None = None
        self.pause_s = _SHORTEST_S

    def poll(self) -> tuple[bool, list[LogRow]]:
        """Look once: whether the document has changed, and the lines that are new."""
        began = time.thread_time()
        document = self._document()
        page = self.launch.logs(self._cursor)
        self._cursor = page.cursor
        fresh = self._errors.marked(page.lines)[-MOST_LINES:]
        self.lines.extend(fresh)
        self.pause_s = max(_SHORTEST_S, (time.thread_time() - began) / _SHARE)
        document |= self._scored(ended=document.get("phase") == "ended", says=document.get("says", ""))
        changed, self.document = document != self.document, document
        return changed, fresh

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.document.get("phase") == "ended"

    def lines_of(self, rank: int | None) -> list[LogRow]:
        """The end of the log: what is held, or more of one rank."""
        if rank is None:
            return list(self.lines)
        cursor = tail_cursor(self.launch.folder, ranks=(rank,))
        page = self.launch.logs(cursor, ranks=(rank,))
        return ErrorLines().marked(page.lines)[-MOST_LINES:]

    def _document(self) -> dict[str, Any]:
        try:
            document = glance(self.launch)
        except GipfelError as error:
            return {**self.document, "says": str(error), "word": "silent"}
        # What changes every few seconds and nobody reads would be a message each time.
        for name in ("updated_ns", "run"):
            document.pop(name, None)
        if document["phase"] == "ended":
            document["flight"] = flight_lines(self.launch.folder)
        return document

    def _scored(self, *, ended: bool, says: str) -> dict[str, Any]:
        """The score, which takes long where there are many GPUs: it has a pace of its own."""
        if ended or time.monotonic() >= self._score_after:
            began = time.thread_time()
            with contextlib.suppress(GipfelError):
                self._score = launch_score(self.launch.state, self.launch.folder)
            pause = max(_SCORE_S, (time.thread_time() - began) / _SHARE)
            self._score_after = time.monotonic() + pause
        score = self._score or {}
        found = {"score": score.get("score"), "bottleneck": score.get("bottleneck")}
        # Where there is nothing else to say of the end.
        return {**found, "says": self._since()} if ended and not says else found

    def _since(self) -> str:
        """Return what became of the advice of the launch before; empty where there was none."""
        if self._told is None:
            self._told = ""
            with contextlib.suppress(GipfelError):
                since = launch_since(self.launch.folder, os.environ)
                self._told = " ".join(since.lines) if since is not None else ""
        return self._told
