"""Expand the values of one merged document.

`Variables` looks up a variable in the image, if its variables can be read, else in the caller's environment.
"""

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from ..model import printable
from .document import Document, Entry
from .expand import EXPANDERS, ExpansionError, Lookup, expand, split_fields
from .image import image_environment
from .model import (
    ENTRYPOINT,
    MAX_PATH_BYTES,
    MAX_TOTAL_CHARACTERS,
    Diagnostic,
    Dialect,
    Edf,
    Mount,
    json_length,
)
from .mounts import make_mount, not_absolute

_FORBIDDEN = re.compile("[\n\r\0]")
_JOB_PREFIX = "SLURM_"


class Variables:
    """A lookup of variables, which records the variables that only the image defines.

    Parameters
    ----------
    host
        The caller's environment.
    image
        The EDF's image; it is opened on the first lookup.
    """

    def __init__(self, host: Mapping[str, str], image: str) -> None:
        self._host = host
        self._image = image
        #: Names that were looked up and that only the image defines.
        self.image_only: list[str] = []

    def __call__(self, name: str) -> str | None:
        """Return the value, the image's before the host's, or None."""
        value = self._image_variables.get(name)
        if value is None:
            return self._host.get(name)
        if name not in self._host:
            self.image_only.append(name)
        return value

    @property
    def image_is_readable(self) -> bool:
        """Return whether the image's variables can be read; they can't for an image in a registry."""
        return self._image.startswith("/")

    @cached_property
    def _image_variables(self) -> Mapping[str, str]:
        return image_environment(Path(self._image)) if self.image_is_readable else {}


class Resolver:
    """Expands all values, and collects diagnostics and the entry of each value.

    Parameters
    ----------
    job_variables
        Outside of a job, keep Slurm's variables unexpanded, since only the job defines them.
    """

    def __init__(
        self,
        document: Document,
        environment: Mapping[str, str],
        directory: Path,
        dialect: Dialect,
        *,
        job_variables: bool = False,
    ) -> None:
        self._document = document
        self._host = environment
        self._directory = directory
        self._dialect: Dialect = dialect
        self._defers = job_variables and f"{_JOB_PREFIX}JOB_ID" not in environment
        self._deferred: list[str] = []
        self._expanded = EXPANDERS[dialect]
        self._room = MAX_TOTAL_CHARACTERS
        self._errors = 0
        #: Keys whose values have an error.
        self.failed_keys: set[str] = set()
        self.diagnostics: list[Diagnostic] = []
        #: The entry of each resolved value; ``mounts[0]`` is the first resolved mount.
        self.entries_by_key = dict(document.scalars)
        #: Every mount with its entry, in order; duplicates are kept.
        self.mounts: list[tuple[Entry, Mount]] = []

    def resolve(self, path: Path, sources: tuple[str, ...]) -> Edf:
        """Return the resolved EDF, which must not be used if the diagnostics contain an error."""
        document = self._document
        image = self._image()
        lookup = Variables(self._host, image)
        return Edf(
            name=path.stem,
            path=str(path),
            image=image,
            workdir=self._workdir(lookup),
            entrypoint=self._flag("entrypoint", default=ENTRYPOINT[self._dialect]),
            writable=self._flag("writable", default=True),
            mounts=self._unique_mounts(lookup),
            env=self._table("env", document.env, lookup),
            annotations=self._table("annotations", document.annotations, lookup),
            devices=self._devices(lookup),
            sources=sources,
            setup=tuple(each.path for each in document.setup),
            setup_digests=tuple(each.digest for each in document.setup),
        )

    def _refuse(self, entry: Entry, code: str, message: str, fix: str) -> None:
        self._errors += 1
        self.failed_keys.add(entry.key)
        self.diagnostics.append(entry.diagnostic(code, message, fix))

    def _expand(self, entry: Entry, lookup: Lookup, text: str | None = None) -> str:
        text = entry.text if text is None else text
        if self._expanded is expand and "${" not in text:
            return self._clean(entry, text)
        try:
            value = self._expanded(text, lookup, self._defer)
        except ExpansionError as error:
            message = error.message
            if error.code == "unknown-variable":
                message += _searched_environments(lookup)
            self._refuse(entry, error.code, message, error.fix)
            return ""
        if self._deferred:
            self._note_deferred(entry)
        if isinstance(lookup, Variables) and lookup.image_only:
            self._warn_image_only(entry, lookup)
        return self._clean(entry, value)

    def _defer(self, name: str) -> str | None:
        """Return a Slurm variable unexpanded if only the job can define it, else None."""
        if not self._defers or not name.startswith(_JOB_PREFIX):
            return None
        self._deferred.append(name)
        return f"${{{name}}}"

    def _note_deferred(self, entry: Entry) -> None:
        names = ", ".join(dict.fromkeys(self._deferred))
        self._deferred.clear()
        self.diagnostics.append(
            entry.diagnostic(
                "job-variable",
                f"only a job has {names}, so this value is known when the job runs.",
                "Check it again in a job, or give a default: ${NAME:-default}.",
                severity="note",
            )
        )

    def _has_room(self, entry: Entry, text: str) -> bool:
        """Count a value's characters and return whether the total is within the limit; report it if not."""
        before, self._room = self._room, self._room - json_length(text)
        if before >= 0 > self._room:
            message = f"with this value the EDF holds more than {MAX_TOTAL_CHARACTERS >> 10} KiB."
            self._refuse(entry, "too-large", message, "Shorten its values, or remove some.")
        return self._room >= 0

    def _clean(self, entry: Entry, value: str) -> str:
        if value.isascii() and value.isprintable() and len(value) <= self._room:
            # Fast path, which nearly every value takes.
            self._room -= len(value)
            return value
        if not self._has_room(entry, value):
            return ""
        if _FORBIDDEN.search(value):
            self._refuse(entry, "line-break", "the value holds a line break or NUL.", "Write it on one line.")
            return ""
        if value != printable(value):
            self._refuse(
                entry, "no-text", "the value is not UTF-8 text.", "Check its variables and directories."
            )
            return ""
        return value

    def _warn_image_only(self, entry: Entry, lookup: Variables) -> None:
        for name in dict.fromkeys(lookup.image_only):
            self.diagnostics.append(
                entry.diagnostic(
                    "image-variable",
                    f"only the image defines {name}, so it is expanded when the container starts, "
                    "and an engine that expands on the host alone refuses it.",
                    f"Write ${{{name}:-default}}, or set {name} where the job is submitted.",
                    severity="warning",
                )
            )
        lookup.image_only.clear()

    def _path(self, entry: Entry, path: str) -> str:
        """Return a path that begins with a dot as an absolute one, any other unchanged."""
        if not path.startswith(".") or path.partition("/")[0] not in {".", ".."}:
            return path
        return self._clean(entry, os.path.normpath(self._directory / path[: 2 * MAX_PATH_BYTES]))

    def _flag(self, key: str, *, default: bool) -> bool:
        entry = self._document.scalars.get(key)
        return default if entry is None else entry.text == "true"

    def _image(self) -> str:
        entry = self._document.scalars.get("image")
        if entry is None:
            return ""
        if self._dialect == "sarus":
            return self._clean(entry, entry.text)
        image = self._path(entry, self._expand(entry, self._host.get))
        if len(image) > MAX_PATH_BYTES:
            message = f"the image's name is longer than {MAX_PATH_BYTES} characters."
            self._refuse(entry, "too-long", message, "Shorten it: no system has such a path.")
            return ""
        return image

    def _workdir(self, lookup: Lookup) -> str:
        entry = self._document.scalars.get("workdir")
        if entry is None:
            return ""
        workdir = self._path(entry, self._expand(entry, lookup))
        if workdir and not workdir.startswith(("/", f"${{{_JOB_PREFIX}")):
            self._refuse(entry, "relative-path", *not_absolute("the working directory", workdir))
        elif len(workdir) > MAX_PATH_BYTES:
            message = f"the path is longer than {MAX_PATH_BYTES} characters."
            self._refuse(entry, "too-long", message, "Shorten it: no system has such a path.")
        return workdir

    def _table(self, key: str, entries: Mapping[str, Entry], lookup: Lookup) -> dict[str, str]:
        if entries and not self._has_room(next(iter(entries.values())), "".join(entries)):
            return {}
        self.entries_by_key |= {f"{key}.{name}": entry for name, entry in entries.items()}
        return {name: self._expand(entry, lookup) for name, entry in entries.items()}

    def _devices(self, lookup: Lookup) -> tuple[str, ...]:
        unique: dict[str, Entry] = {}
        for entry in self._document.devices:
            unique.setdefault(self._expand(entry, lookup), entry)
        self.entries_by_key.update(
            (f"devices[{index}]", entry) for index, entry in enumerate(unique.values())
        )
        return tuple(unique)

    def _unique_mounts(self, lookup: Lookup) -> tuple[Mount, ...]:
        unique: dict[Mount, Entry] = {}
        for entry in self._document.mounts:
            if (mount := self._mount(entry, lookup)) is not None:
                self.mounts.append((entry, mount))
                unique.setdefault(mount, entry)
        self.entries_by_key.update((f"mounts[{index}]", entry) for index, entry in enumerate(unique.values()))
        return tuple(unique)

    def _mount(self, entry: Entry, lookup: Lookup) -> Mount | None:
        errors = self._errors
        fields = []
        for position, field in enumerate(split_fields(entry.text)):
            value = self._expand(entry, lookup, field)
            fields.append(self._path(entry, value) if position < 2 else value)
            if self._errors > errors:
                # One error per value is enough.
                return None
        return make_mount(
            fields, lambda code, message, fix: self._refuse(entry, code, message, fix), self._dialect
        )


def _searched_environments(lookup: Lookup) -> str:
    """Return a sentence about the environments that were searched for a variable."""
    if not isinstance(lookup, Variables):
        return " The caller's environment does not have it."
    if lookup.image_is_readable:
        return " Neither the caller's environment nor the image's has it."
    return " The caller's environment does not have it, and the image's can't be read here."
