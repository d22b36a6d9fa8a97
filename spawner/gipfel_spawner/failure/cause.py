"""Model of one cause of a failed start: its name, how it is recognised, and the fix."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from gipfel_cluster.model import Frozen, OneLine, one_line

_MAX_CHARACTERS = 300


class Evidence(Frozen):
    """Facts about a job that failed.

    ``state`` is Slurm's job state, or ``SILENT`` (the server reported no port), ``BLOCKED`` (the hub can't
    connect to the server) or ``REFUSED`` (Slurm rejected the job); ``reason`` is the scheduler's message.
    """

    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    log: str = ""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Lines of the log without control characters, followed by the scheduler's reason."""
        lines = (*self.log.splitlines(), self.reason)
        return tuple(one_line(line)[:2000] for line in lines if line.strip())


class Explanation(Frozen):
    """Reason and fix to show to the user; ``cause`` is the cause's name in the catalogue."""

    cause: str
    reason: str
    fix: str


class Cause(Frozen):
    """Entry of the catalogue.

    It applies if the job is in one of ``states`` (empty: any state) and a line of the evidence matches one of
    ``patterns`` (empty: no match needed). ``{name}`` in ``reason`` and ``fix`` is replaced by the text of the
    pattern's group of that name; ``{detail}`` is by default the scheduler's reason.
    """

    name: OneLine
    reason: OneLine
    fix: OneLine
    patterns: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()

    @cached_property
    def _expressions(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, re.IGNORECASE) for pattern in self.patterns)

    def explain(self, evidence: Evidence) -> Explanation | None:
        """Return the explanation of this evidence; None if this cause does not apply."""
        if self.states and evidence.state not in self.states:
            return None
        if not self.patterns:
            return self._explanation({"detail": evidence.reason})
        # The last match counts, because the program may have recovered from earlier errors.
        groups = next(self._matches(evidence), None)
        return None if groups is None else self._explanation({"detail": evidence.reason} | groups)

    def _matches(self, evidence: Evidence) -> Iterator[dict[str, str]]:
        for line in reversed(evidence.lines):
            for expression in self._expressions:
                if match := expression.search(line):
                    yield {name: text or "" for name, text in match.groupdict().items()}

    def _explanation(self, groups: dict[str, str]) -> Explanation:
        # The patterns of a cause may have different groups; a missing one is empty.
        values = defaultdict(str, {name: text.strip()[:_MAX_CHARACTERS] for name, text in groups.items()})
        reason, fix = (text.format_map(values).rstrip(": ") for text in (self.reason, self.fix))
        return Explanation(cause=self.name, reason=reason, fix=fix)
