"""Where each value of a TOML file stands, for messages; the parser of the standard library does not tell.

The text is known to be TOML, so this only walks over it. Where it loses its way, what was found so far stays.
"""

import bisect
import re
import tomllib

from .limits import PARTS

_BLANKS = r"(?:[ \t\r\n]++|#[^\n]*+)*+"
_BLANK = re.compile(_BLANKS)
#: One part of a key.
KEY = r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
#: The same with the blanks around it, and the dot behind it where there is one.
_PART = re.compile(f"{_BLANKS}({KEY}){_BLANKS}(\\.?)")
_SCALAR = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^,\]}#\n]+''', re.DOTALL
)

#: Keys of tables and positions in arrays, from the top of the file.
Path = tuple[str | int, ...]


class Lines:
    """Line numbers of the values of one file, counted from 1."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._found: dict[Path, int] = {}
        try:
            self._read()
        except (_LostError, IndexError, RecursionError, ValueError):
            # A ValueError is a key that is none, of a text that is no TOML.
            return

    def of(self, *path: str | int) -> int | None:
        """Give the line of a value, else that of what is around it."""
        for end in range(len(path), 0, -1):
            if (line := self._found.get(path[:end])) is not None:
                return line
        return None

    def last(self) -> Path:
        """Give the value that was begun last; no path where none was."""
        return next(reversed(self._found), ())

    def _read(self) -> None:
        position, header = self._skip(0), Path()
        while position < len(self._text):
            if self._text[position] == "[":
                start = position
                position += 2 if self._text.startswith("[[", position) else 1
                header, position = self._key(position)
                self._note(header, start)
                while position < len(self._text) and self._text[position] == "]":
                    position += 1
            else:
                position = self._pair(header, position)
            position = self._skip(position)

    def _note(self, path: Path, position: int) -> None:
        if len(path) > PARTS:
            # Nothing is said about what is deeper, and a long path for each of many values takes gigabytes.
            return
        self._found.setdefault(path, bisect.bisect_left(self._breaks, position) + 1)

    def _skip(self, position: int) -> int:
        match = _BLANK.match(self._text, position)
        return match.end() if match else position

    def _key(self, position: int) -> tuple[Path, int]:
        """Read a dotted key, and the position behind it and its blanks."""
        parts: list[str] = []
        while match := _PART.match(self._text, position):
            parts.append(_unquoted(match[1]))
            position = match.end()
            if not match[2]:
                return tuple(parts), position
        raise _LostError

    def _pair(self, table: Path, position: int) -> int:
        key, after = self._key(position)
        path = (*table, *key)
        for end in range(len(table) + 1, len(path) + 1):
            self._note(path[:end], position)
        if self._text[after] != "=":
            raise _LostError
        return self._value(path, self._skip(after + 1))

    def _value(self, path: Path, position: int) -> int:
        opened = self._text[position]
        if opened not in "[{":
            match = _SCALAR.match(self._text, position)
            if match is None:
                raise _LostError
            return match.end()
        closed, index = "]" if opened == "[" else "}", 0
        position = self._skip(position + 1)
        while self._text[position] != closed:
            if opened == "[":
                item = (*path, index)
                self._note(item, position)
                position = self._skip(self._value(item, position))
                index += 1
            else:
                position = self._skip(self._pair(path, position))
            if self._text[position] == ",":
                position = self._skip(position + 1)
            elif self._text[position] != closed:
                raise _LostError
        return position + 1


class _LostError(Exception):
    """The text isn't what it seemed to be."""


def _unquoted(key: str) -> str:
    if "\\" in key:
        return str(tomllib.loads(f"key = {key}")["key"])
    return key.strip("\"'") if key[0] in "\"'" else key
