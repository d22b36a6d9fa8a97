"""Where a key stands in a TOML file, for messages; the parser of the standard library does not tell."""

import re

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]\s*(?:#.*)?")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))


class Lines:
    """Line numbers of the keys of one file, counted from 1; a good guess where the file is unusual."""

    def __init__(self, text: str) -> None:
        self._text = text.splitlines()
        self._keys: dict[tuple[str, ...], int] = {}
        header: tuple[str, ...] = ()
        inside = ""  # the quotes that would end the multi-line string we are in
        for number, line in enumerate(self._text, start=1):
            if not inside:
                if match := _HEADER.fullmatch(line):
                    header = _parts(match[1])
                    self._keys.setdefault(header, number)
                elif match := _KEY.match(line):
                    self._keys.setdefault((*header, *_parts(match[1])), number)
            for quotes in re.findall(r'"""|\'\'\'', line):
                inside = "" if quotes == inside else inside or quotes

    def of(self, *key: str) -> int | None:
        """Give the line of a key, else that of the table around it."""
        for end in range(len(key), 0, -1):
            if (line := self._keys.get(key[:end])) is not None:
                return line
        return None

    def of_item(self, key: str, item: str) -> int | None:
        """Give the line of one string of an array, else that of the array."""
        start = self.of(key)
        if start is None:
            return None
        for number in range(start, len(self._text) + 1):
            line = self._text[number - 1]
            if f'"{item}"' in line or f"'{item}'" in line:
                return number
        return start
