r"""Scalars of a program's log, by a regular expression with named groups.

``step (?P<step>\d+) .*loss (?P<loss>\S+)``: the group ``step`` is the step, ``time`` seconds since the
epoch, ``rank`` the rank, and every other group a metric; ``__`` in its name stands for a slash. The first
match of a line counts. Expressions are RE2's, which Arrow brings: matching takes linear time for any
expression and text, so look-ahead and back references are not known.
"""

import pyarrow as pa

from .growing_file import GrowingFile
from .scalar import Scalar, nanoseconds, step_number
from .text_lines import LineReader

_LONGEST = 1000
_MOST_GROUPS = 64
_RESERVED = ("step", "time", "rank")


class PatternError(ValueError):
    """An expression that can't be used: the problem and its fix."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


class LogPattern:
    """A regular expression for lines of a log.

    Raises
    ------
    PatternError
        It is not valid, or has no named group for a metric.
    """

    def __init__(self, expression: str) -> None:
        if len(expression) > _LONGEST:
            raise PatternError(f"The expression is longer than {_LONGEST} characters.", "Shorten it.")
        self.expression = expression
        try:
            found = _extract([""], expression)
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0].rstrip(".")[:200]
            raise PatternError(
                f"The expression is not valid: {reason}.",
                "Write such as 'step (?P<step>\\d+) .*loss (?P<loss>\\S+)', without look-ahead.",
            ) from error
        self.groups = tuple(field.name for field in found.type)
        if not set(self.groups) - set(_RESERVED) or len(self.groups) > _MOST_GROUPS:
            raise PatternError(
                "The expression has no named group for a metric.", "Write such as 'loss (?P<loss>\\S+)'."
            )

    def match(self, lines: list[bytes]) -> dict[str, list[float | None]]:
        """Return the numbers of each group, for the lines that match."""
        matches = _extract([line.decode("utf-8", "replace") for line in lines], self.expression).drop_null()
        return {
            name: [_number(text) for text in matches.field(index).to_pylist()]
            for index, name in enumerate(self.groups)
        }


class LogPatternReader(LineReader):
    """Reader of a log; carriage returns of progress bars end a line, too. Other lines are not damage."""

    def __init__(self, file: GrowingFile, pattern: LogPattern, rank: int | None = None) -> None:
        super().__init__(file, rank)
        self._pattern = pattern

    def read(self, *, last: bool = False) -> list[Scalar] | None:
        """Return the scalars of the next lines; None where there are no more."""
        lines = self._lines.read(last=last)
        if lines is None:
            return None
        texts = [part for line in lines for part in line.split(b"\r") if part]
        columns = self._pattern.match(texts) if texts else {}
        count = len(next(iter(columns.values()), ()))
        nothing: list[float | None] = [None] * count
        steps, times, ranks = (columns.get(name, nothing) for name in _RESERVED)
        found: list[Scalar] = []
        for group in columns:
            if group not in _RESERVED:
                name = self._names.get(group.replace("__", "/"))
                for step, when, rank, value in zip(steps, times, ranks, columns[group], strict=True):
                    if value is None or name is None:
                        self._bad += 1
                    else:
                        time_ns = None if when is None else nanoseconds(when)
                        own = self._rank if rank is None or not 0 <= rank < 2**31 else int(rank)
                        found.append(Scalar(name, step_number(step), time_ns, value, own))
        if len(self._pattern.groups) > 1:
            found.sort(key=lambda each: (each.time_ns or 0, each.step or 0))
        return found


def _extract(texts: list[str], expression: str) -> pa.StructArray:
    import pyarrow.compute as pc  # noqa: PLC0415 - few programs have such logs

    return pc.extract_regex(pa.array(texts, pa.string()), pattern=expression)


def _number(text: str | None) -> float | None:
    """Return a number as programs print it: ``1,234.5``, ``12%``, ``3e-4,``; None for other text."""
    if text is None or len(text) > 60:
        return None
    word = text.strip().rstrip(",;%)]}").replace(",", "").replace("_", "")
    try:
        return float(word)
    except ValueError:
        return None
