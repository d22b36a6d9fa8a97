"""One EDF file as it is written: values with the place where they stand, types checked, nothing expanded."""

import re
import tomllib
from typing import Any

from .dialects import Dialect
from .entry import Document, Entry, Source
from .limits import LONGEST, PARTS, VALUES
from .lines import Path
from .model import Diagnostic, shortened
from .toml_errors import syntax_error
from .unknown_keys import ignored_key
from .written import KEYS

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Engines carry it, and programs can read it; shells can't.
_UNUSUAL_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RUN = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){8,}+""")
#: Of the squares of the parts of all long keys: the parser takes a time that grows with it.
_MOST_STEPS = 1_000_000
_TYPES: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "a table",
}


def parse(text: str, file: str, dialect: Dialect = "ce") -> tuple[Document, list[Diagnostic]]:
    """Read the text of one file.

    Returns
    -------
    tuple
        What could be read, and what is wrong with the rest; ``file`` names the file in messages.
    """
    source = Source(file, text.replace("\r\n", "\n"))
    if text.count(".") >= PARTS and _is_deep(text):
        return Document(source=source), [syntax_error(RecursionError(), text, file)]
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # an integer of 5000 digits is a plain ValueError
        return Document(source=source), [syntax_error(error, text, file)]
    reader = _Reader(source, dialect)
    reader.read(content)
    return reader.document, reader.diagnostics


class _Reader:
    def __init__(self, source: Source, dialect: Dialect) -> None:
        self._source = source
        self._stringifies = dialect == "sarus"
        self._values = 0
        self.document = Document(source=source)
        self.diagnostics: list[Diagnostic] = []

    def read(self, content: dict[str, Any]) -> None:
        for key, value in content.items():
            match key:
                case "image" | "workdir":
                    self._string(key, value)
                case "entrypoint" | "writable":
                    self._flag(key, value)
                case "base_environment":
                    self.document.base = self._base(value)
                case "mounts":
                    self.document.mounts = self._array(key, value)
                case "devices":
                    self.document.devices = self._array(key, value)
                case "env":
                    self._env(value)
                case "annotations":
                    self._annotations((key,), value)
                case _ if self._has_room((key,)):
                    self.diagnostics.append(ignored_key(Entry("", (key,), self._source), type(value)))

    def _has_room(self, path: Path, count: int = 1) -> bool:
        """Count values; those beyond the limit are refused once and not read."""
        before, self._values = self._values, self._values + count
        if before <= VALUES < self._values:
            self._say(path, "values", f"the file has more than {VALUES} values.", "Take some out.")
        return self._values <= VALUES

    def _say(self, path: Path, code: str, message: str, fix: str) -> None:
        self.diagnostics.append(Entry("", path, self._source).diagnostic(code, message, fix))

    def _refuse(self, path: Path, expected: str, value: object, fix: str) -> None:
        kind = _TYPES.get(type(value), "a date or time")
        if len(path) > 1 and path[0] in {"env", "annotations"} and path[-1] in KEYS:
            fix = f"{path[-1]} is a key of the EDF itself: move it above the first line in brackets."
        self._say(path, "type", f"must be {expected}, but is {kind}.", fix)

    def _entry(self, value: str, path: Path) -> Entry | None:
        if len(value) > LONGEST:
            self._say(path, "too-long", f"is longer than {LONGEST} characters.", "Shorten it.")
            return None
        return Entry(value, path, self._source)

    def _string(self, key: str, value: object) -> None:
        if not isinstance(value, str):
            self._refuse((key,), "a string", value, f'Write {key} = "…".')
        elif entry := self._entry(value, (key,)):
            self.document.scalars[key] = entry

    def _flag(self, key: str, value: object) -> None:
        if isinstance(value, bool):
            self.document.scalars[key] = Entry("true" if value else "false", (key,), self._source)
        else:
            self._refuse((key,), "true or false", value, f"Write {key} = true or {key} = false.")

    def _base(self, value: object) -> tuple[Entry, ...]:
        key = "base_environment"
        if not isinstance(value, str):
            return self._array(key, value)
        entry = self._entry(value, (key,))
        # The empty string is the documented default: no base.
        return (entry,) if entry and value else ()

    def _array(self, key: str, value: object) -> tuple[Entry, ...]:
        if not isinstance(value, list):
            self._refuse((key,), "an array of strings", value, f'Write {key} = ["…"].')
            return ()
        if not self._has_room((key,), len(value)):
            return ()
        entries = []
        for position, item in enumerate(value):
            path: Path = (key, position)
            if isinstance(item, str):
                if entry := self._entry(item, path):
                    entries.append(entry)
            elif isinstance(item, dict | list):
                wanted = '["SOURCE:DESTINATION"]' if key == "mounts" else '["…"]'
                self._refuse(path, "a string", item, f"Write {key} = {wanted}.")
            else:
                self._refuse(path, "a string", item, "Put it in quotes.")
        return tuple(entries)

    def _env(self, value: object) -> None:
        if not isinstance(value, dict):
            self._refuse(("env",), "a table", value, 'Write [env] and below it NAME = "value".')
            return
        if not self._has_room(("env",), len(value)):
            return
        for name, item in value.items():
            path: Path = ("env", name)
            if not _VARIABLE.fullmatch(name) and not self._can_be_named(path, name, item):
                continue
            if not isinstance(item, str):
                self._refuse(path, "a string", item, f"Write {name} = {_quoted(item)}.")
            elif entry := self._entry(item, path):
                self.document.env[name] = entry

    def _can_be_named(self, path: Path, name: str, value: object) -> bool:
        """Return whether a variable may have an unusual name, about which something is said in any case."""
        unusual = _UNUSUAL_VARIABLE.fullmatch(name) and isinstance(value, str)
        self.diagnostics.append(
            Entry("", path, self._source).diagnostic(
                "env-name",
                f"{shortened(name)!r} can't be used in a shell, which may drop it."
                if unusual
                else f"{shortened(name)!r} can't name a variable.",
                "Use letters, digits and underscores, and no digit first.",
                severity="warning" if unusual else "error",
            )
        )
        return bool(unusual)

    def _annotations(self, path: Path, value: object) -> None:
        if isinstance(value, dict):
            if len(path) > PARTS:
                self._say(path, "type", "is nested too deeply.", "No annotation has as many parts.")
                return
            for name, item in value.items():
                self._annotations((*path, name), item)
        elif len(path) == 1:
            self._refuse(path, "a table", value, "Write [annotations].")
        elif self._has_room(path):
            self._annotation(path, value)

    def _annotation(self, path: Path, value: object) -> None:
        if self._stringifies and isinstance(value, bool | int):
            value = str(value).lower() if abs(value) < 10**18 else ""
        if not isinstance(value, str):
            fix = f"Hooks read no other type: {path[-1]} = {_quoted(value)}."
            self._refuse(path, "a string", value, fix)
            return
        name = ".".join(map(str, path[1:]))
        if (first := self.document.annotations.get(name)) is not None:
            self.diagnostics.append(
                Entry("", path, self._source).diagnostic(
                    "annotation-twice",
                    f"it stands in line {first.line or '?'} too, in another form: the later one wins.",
                    "Take one of them out.",
                    severity="warning",
                )
            )
        if entry := self._entry(value, path):
            self.document.annotations[name] = entry


def _is_deep(text: str) -> bool:
    """Return whether keys have so many parts that the parser would take minutes."""
    steps = 0
    for run in _RUN.finditer(text):
        steps += run[0].count(".") ** 2
        if steps > _MOST_STEPS:
            return True
    return False


def _quoted(value: object) -> str:
    """The value as a TOML string, where it is short enough to be shown."""
    if isinstance(value, bool):
        return f'"{str(value).lower()}"'
    short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**9)
    return f'"{value}"' if short else '"…"'
