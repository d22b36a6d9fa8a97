"""Model of one cause of a failed start: how it is recognised, its name, and what helps."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from gipfel_cluster.model import Frozen, Line, one_line

_LONGEST = 300


class Evidence(Frozen):
    """Facts about a job that failed.

    ``state`` is Slurm's word, or ``SILENT`` (its server gave no port), ``BLOCKED`` (the hub can't reach it)
    or ``REFUSED`` (Slurm did not take it); ``reason`` is the scheduler's, in words.
    """

    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    log: str = ""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Each line of the log without control characters, and the scheduler's reason as the last one."""
        said = (*self.log.splitlines(), self.reason)
        return tuple(one_line(line)[:2000] for line in said if line.strip())


class Explanation(Frozen):
    """A cause in words for a person; ``cause`` is its name in the catalogue."""

    cause: str
    reason: str
    fix: str


class Cause(Frozen):
    """An entry of the catalogue.

    It applies where the job is in one of ``states`` (empty: any) and a line matches one of ``patterns``
    (empty: none has to). ``{name}`` in ``reason`` and ``fix`` is what a pattern's group of that name found.
    """

    name: Line
    reason: Line
    fix: Line
    patterns: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()

    @cached_property
    def _expressions(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, re.IGNORECASE) for pattern in self.patterns)

    def explain(self, evidence: Evidence) -> Explanation | None:
        """Return the explanation of this evidence; None where this was not the cause."""
        if self.states and evidence.state not in self.states:
            return None
        if not self.patterns:
            return self._explanation({"said": evidence.reason})
        # The last line that fits: what came before may have been tried and overcome.
        found = next(self._found(evidence), None)
        return None if found is None else self._explanation({"said": evidence.reason} | found)

    def _found(self, evidence: Evidence) -> Iterator[dict[str, str]]:
        for line in reversed(evidence.lines):
            for expression in self._expressions:
                if match := expression.search(line):
                    yield {name: text or "" for name, text in match.groupdict().items()}

    def _explanation(self, found: dict[str, str]) -> Explanation:
        # A pattern may find less than another one of the same cause.
        given = defaultdict(str, {name: text.strip()[:_LONGEST] for name, text in found.items()})
        reason, fix = (text.format_map(given).rstrip(": ") for text in (self.reason, self.fix))
        return Explanation(cause=self.name, reason=reason, fix=fix)
