"""One EDF file as it is written: values with the place where they stand, types checked, nothing expanded."""

import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from .lines import Lines
from .model import Diagnostic

KEYS = (
    "base_environment",
    "image",
    "workdir",
    "entrypoint",
    "writable",
    "mounts",
    "env",
    "annotations",
    "devices",
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True)
class Entry:
    """A value as written, and where."""

    text: str
    key: str
    file: str
    line: int | None

    def diagnostic(
        self, code: str, message: str, fix: str = "", *, severity: Literal["error", "warning"] = "error"
    ) -> Diagnostic:
        """Say something about this value."""
        return Diagnostic(
            severity=severity,
            code=code,
            file=self.file,
            line=self.line,
            key=self.key,
            message=message,
            fix=fix,
        )


@dataclass
class Document:
    """The keys of one file, or of several merged."""

    base: tuple[Entry, ...] = ()
    #: ``image``, ``workdir``, ``entrypoint`` and ``writable``; the last two as ``true`` or ``false``.
    scalars: dict[str, Entry] = field(default_factory=dict)
    mounts: tuple[Entry, ...] = ()
    devices: tuple[Entry, ...] = ()
    env: dict[str, Entry] = field(default_factory=dict)
    annotations: dict[str, Entry] = field(default_factory=dict)

    def entries(self) -> Iterator[Entry]:
        """Every value, in no particular order."""
        yield from self.base
        yield from self.scalars.values()
        yield from self.mounts
        yield from self.devices
        yield from self.env.values()
        yield from self.annotations.values()


def parse(text: str, file: str) -> tuple[Document, list[Diagnostic]]:
    """Read the text of one file.

    Returns
    -------
    tuple
        What could be read, and what is wrong with the rest; ``file`` names the file in messages.
    """
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Document(), [_syntax_error(error, text, file)]
    reader = _Reader(text, file)
    reader.read(content)
    return reader.document, reader.diagnostics


def _syntax_error(error: Exception, text: str, file: str) -> Diagnostic:
    message = str(error)
    line = None
    if match := _TOML_PLACE.search(message):
        message = message[: match.start()]
        line = int(match[1]) if match[1] else max(1, len(text.splitlines()))
    return Diagnostic(
        severity="error",
        code="toml",
        file=file,
        line=line,
        key="",
        message=f"this is no TOML: {message}.",
        fix="Strings need quotes, and a table may be declared once.",
    )


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self._lines = Lines(text)
        self._file = file
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

    def _entry(self, text: str, *key: str) -> Entry:
        return Entry(text, ".".join(key), self._file, self._lines.of(*key))

    def _refuse(self, entry: Entry, expected: str, value: object, fix: str) -> None:
        self.diagnostics.append(
            entry.diagnostic("type", f"must be {expected}, but is {_toml_type(value)}.", fix)
        )

    def _string(self, key: str, value: object) -> None:
        entry = self._entry(str(value), key)
        if isinstance(value, str):
            self.document.scalars[key] = entry
        else:
            self._refuse(entry, "a string", value, f'Write {key} = "…".')

    def _flag(self, key: str, value: object) -> None:
        entry = self._entry("true" if value is True else "false", key)
        if isinstance(value, bool):
            self.document.scalars[key] = entry
        else:
            self._refuse(entry, "true or false", value, f"Write {key} = true or {key} = false.")

    def _array(self, key: str, value: object) -> tuple[Entry, ...]:
        if not isinstance(value, list):
            self._refuse(self._entry("", key), "an array of strings", value, f'Write {key} = ["…"].')
            return ()
        entries = []
        for position, item in enumerate(value):
            place = f"{key}[{position}]"
            if isinstance(item, str):
                entries.append(Entry(item, place, self._file, self._lines.of_item(key, item)))
            else:
                wrong = Entry("", place, self._file, self._lines.of(key))
                self._refuse(wrong, "a string", item, "Put it in quotes.")
        return tuple(entries)

    def _env(self, value: object) -> dict[str, Entry]:
        if not isinstance(value, dict):
            self._refuse(self._entry("", "env"), "a table", value, 'Write [env] and below it NAME = "value".')
            return {}
        entries = {}
        for name, item in value.items():
            entry = self._entry(str(item), "env", name)
            if not _VARIABLE.fullmatch(name):
                self.diagnostics.append(
                    entry.diagnostic(
                        "env-name",
                        f"{name!r} can't name a variable.",
                        "Use letters, digits and underscores, and no digit first.",
                    )
                )
            elif isinstance(item, str):
                entries[name] = entry
            else:
                self._refuse(entry, "a string", item, f"Write {name} = {_quoted(item)}.")
        return entries

    def _annotations(self, key: tuple[str, ...], value: object) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                self._annotations((*key, name), item)
        elif len(key) == 1:
            self._refuse(self._entry("", *key), "a table", value, "Write [annotations].")
        elif isinstance(value, str):
            self.document.annotations[".".join(key[1:])] = self._entry(value, *key)
        else:
            self._refuse(self._entry("", *key), "a string", value, f"Write {key[-1]} = {_quoted(value)}.")

    def _unknown(self, key: str) -> None:
        near = difflib.get_close_matches(key, KEYS, n=1)
        self.diagnostics.append(
            self._entry("", key).diagnostic(
                "unknown-key",
                "an EDF has no such key; it is ignored.",
                f"Did you mean {near[0]}?" if near else f"Its keys are {', '.join(KEYS)}.",
                severity="warning",
            )
        )


def _quoted(value: object) -> str:
    if isinstance(value, bool):
        return f'"{str(value).lower()}"'
    return f'"{value}"' if isinstance(value, int | float) else '"…"'


def _toml_type(value: object) -> str:
    names: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "a table",
    }
    return names.get(type(value), "a date or time")
