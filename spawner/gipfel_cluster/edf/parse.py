"""One EDF file as it is written: values with the place where they stand, types checked, nothing expanded."""

import difflib
import functools
import re
import tomllib
from typing import Any

from .entry import Document, Entry, Source
from .lines import Path
from .model import Diagnostic
from .toml_errors import syntax_error
from .written import KEYS

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARTS = 200
_GUESSES = 50
_DEEP = re.compile(rf"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')\s*\.\s*){{{_PARTS}}}""")
_TYPES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "a table",
}


def parse(text: str, file: str) -> tuple[Document, list[Diagnostic]]:
    """Read the text of one file.

    Returns
    -------
    tuple
        What could be read, and what is wrong with the rest; ``file`` names the file in messages.
    """
    if text.count(".") >= _PARTS and _is_deep(text):
        return Document(), [syntax_error(RecursionError(), text, file)]
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of 5000 digits is a plain ValueError
        return Document(), [syntax_error(error, text, file)]
    reader = _Reader(Source(file, text.replace("\r\n", "\n")))
    reader.read(content)
    return reader.document, reader.diagnostics


class _Reader:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.document = Document()
        self.diagnostics: list[Diagnostic] = []

    def read(self, content: dict[str, Any]) -> None:
        for key, value in content.items():
            match key:
                case "image" | "workdir":
                    self._string(key, value)
                case "entrypoint" | "writable":
                    self._flag(key, value)
                case "base_environment":
                    self.document.base = self._array(key, [value] if isinstance(value, str) else value)
                case "mounts":
                    self.document.mounts = self._array(key, value)
                case "devices":
                    self.document.devices = self._array(key, value)
                case "env":
                    self.document.env = self._env(value)
                case "annotations":
                    self._annotations((key,), value)
                case _:
                    self._unknown(key)

    def _refuse(self, path: Path, expected: str, value: object, fix: str) -> None:
        kind = _TYPES.get(type(value), "a date or time")
        entry = Entry("", path, self._source)
        self.diagnostics.append(entry.diagnostic("type", f"must be {expected}, but is {kind}.", fix))

    def _string(self, key: str, value: object) -> None:
        if isinstance(value, str):
            self.document.scalars[key] = Entry(value, (key,), self._source)
        else:
            self._refuse((key,), "a string", value, f'Write {key} = "…".')

    def _flag(self, key: str, value: object) -> None:
        if isinstance(value, bool):
            self.document.scalars[key] = Entry("true" if value else "false", (key,), self._source)
        else:
            self._refuse((key,), "true or false", value, f"Write {key} = true or {key} = false.")

    def _array(self, key: str, value: object) -> tuple[Entry, ...]:
        if not isinstance(value, list):
            self._refuse((key,), "an array of strings", value, f'Write {key} = ["…"].')
            return ()
        entries = []
        for position, item in enumerate(value):
            if isinstance(item, str):
                entries.append(Entry(item, (key, position), self._source))
            else:
                self._refuse((key, position), "a string", item, "Put it in quotes.")
        return tuple(entries)

    def _env(self, value: object) -> dict[str, Entry]:
        if not isinstance(value, dict):
            self._refuse(("env",), "a table", value, 'Write [env] and below it NAME = "value".')
            return {}
        entries = {}
        for name, item in value.items():
            path: Path = ("env", name)
            if not _VARIABLE.fullmatch(name):
                self.diagnostics.append(
                    Entry("", path, self._source).diagnostic(
                        "env-name",
                        f"{name!r} can't name a variable.",
                        "Use letters, digits and underscores, and no digit first.",
                    )
                )
            elif isinstance(item, str):
                entries[name] = Entry(item, path, self._source)
            else:
                self._refuse(path, "a string", item, f"Write {name} = {_quoted(item)}.")
        return entries

    def _annotations(self, path: Path, value: object) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                self._annotations((*path, name), item)
        elif len(path) == 1:
            self._refuse(path, "a table", value, "Write [annotations].")
        elif isinstance(value, str):
            name = ".".join(str(part) for part in path[1:])
            self.document.annotations[name] = Entry(value, path, self._source)
        else:
            self._refuse(path, "a string", value, f"Hooks read no other type: {path[-1]} = {_quoted(value)}.")

    def _unknown(self, key: str) -> None:
        near = _near(key) if len(self.diagnostics) < _GUESSES else []
        fix = f"Did you mean {near[0]}?" if near else f"Its keys are {', '.join(KEYS)}."
        self.diagnostics.append(
            Entry("", (key,), self._source).diagnostic(
                "unknown-key",
                "an EDF has no such key, so it is ignored.",
                fix,
                severity="warning",
            )
        )


def _is_deep(text: str) -> bool:
    """Whether a key has hundreds of parts, which the parser takes a time for that grows with their square."""
    return any(line.count(".") >= _PARTS and _DEEP.search(line) for line in text.split("\n"))


@functools.lru_cache(maxsize=256)
def _near(key: str) -> list[str]:
    return difflib.get_close_matches(key.lower(), KEYS, n=1)


def _quoted(value: object) -> str:
    """The value as a TOML string, where it is short enough to be shown."""
    if isinstance(value, bool):
        return f'"{str(value).lower()}"'
    short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**9)
    return f'"{value}"' if short else '"…"'
