"""An EDF after it was resolved, diagnostics about it, and the limits and dialects of EDFs.

Real EDFs have a few dozen values and a few kilobytes; the limits are far above these. They keep a hostile EDF
cheap: checking, showing or rendering one takes seconds at most and writes less than a megabyte.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator

from ..model import Frozen, GipfelError, one_line

#: Bytes of one file.
FILE_BYTES = 1 << 20
#: Bytes of all files of one EDF.
ALL_BYTES = 2 << 20
#: Entries of ``base_environment`` in all files of one EDF, and how deep they lead.
FILES = 200
LEVELS = 10
#: Values of one file, and of all files of one EDF.
VALUES = 2000
#: Parts of one key.
PARTS = 50
#: Characters of one value as written and as expanded; the kernel carries no longer variable either.
LONGEST = 1 << 16
#: Characters of all names and expanded values of one EDF. One that JSON escapes counts as six.
ALL_CHARACTERS = 1 << 17
#: Bytes of a path. Source: Linux, PATH_MAX.
PATH_BYTES = 4096
#: Flags of one mount.
FLAGS = 32
#: Bytes of all set-up steps of one EDF.
STEPS_BYTES = 1 << 16
#: Diagnostics of one EDF that are reported.
DIAGNOSTICS = 100
#: A note explains a consequence of an EDF that is right as it is.
Severity = Literal["error", "warning", "note"]
_LONGEST = {"key": 200, "message": 2000, "fix": 400}
_QUOTED = 120
#: Sources that name no file: the Container Engine and Pyxis mount or unmount there.
SPECIAL_SOURCES = frozenset(("tmpfs", "umount"))
Dialect = Literal["ce", "sarus", "pyxis"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
#: Whether the image's entrypoint runs where the EDF doesn't say; Pyxis leaves it to its site, mostly like CE.
ENTRYPOINT: dict[Dialect, bool] = {"ce": False, "sarus": True, "pyxis": False}


class Mount(Frozen):
    """A path of the host, mounted at another path of the container."""

    source: str
    destination: str
    flags: tuple[str, ...] = ()

    @property
    def is_special(self) -> bool:
        """Return whether there is no source to bind: ``tmpfs`` or ``umount``."""
        return self.source in SPECIAL_SOURCES

    def __str__(self) -> str:
        flags = f":{'+'.join(self.flags)}" if self.flags else ""
        return f"{self.source}:{self.destination}{flags}"


class Edf(Frozen):
    """An EDF with its bases merged in and every ``${…}`` expanded."""

    name: str
    path: str | None
    image: str = ""
    workdir: str = ""
    entrypoint: bool = False
    writable: bool = True
    mounts: tuple[Mount, ...] = ()
    #: An empty value unsets the variable.
    env: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    devices: tuple[str, ...] = ()
    #: The files it was read from, the base first.
    sources: tuple[str, ...] = ()
    #: The files of set-up steps beside them, absolute paths of this machine, the base's first.
    setup: tuple[str, ...] = ()
    #: ``sha256:…`` of each of these files as it was read.
    setup_digests: tuple[str, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """Return the EDF's settings, without the name and the files that they came from.

        Set-up steps are named by their digests, and not at all where there are none.
        """
        content = self.model_dump(mode="json", exclude={"name", "path", "sources", "setup", "setup_digests"})
        return content | ({"setup": list(self.setup_digests)} if self.setup_digests else {})

    @property
    def digest(self) -> str:
        """Return ``sha256:…`` over the canonical JSON of `content`."""
        canonical = json.dumps(self.content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return "sha256:" + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def image_path(self) -> Path | None:
        """Return the path of the image on this machine; None without an image or with one of a registry."""
        return Path(self.image) if self.image.startswith("/") else None


class Diagnostic(Frozen):
    """One thing about an EDF that a person should know, as one line.

    The message says what is wrong and what that causes; an error always causes that the EDF isn't used. Texts
    that are too long to be read are shortened.
    """

    severity: Severity
    code: str
    file: str
    line: int | None
    key: str
    message: str
    fix: str = ""

    @field_validator("file", "key", "message", "fix", mode="before")
    @classmethod
    def _readable(cls, text: str, info: ValidationInfo) -> str:
        """Replace bytes that are not UTF-8, which no JSON could carry, and leave out what is too long."""
        text = shortened(text, _LONGEST.get(info.field_name or "", PATH_BYTES))
        return text if text.isascii() else text.encode("utf-8", "replace").decode()

    @property
    def where(self) -> str:
        """Return file, line and key, as far as they are known."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.key) if part)

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.severity}: {self.message} {self.fix}")


class EdfError(GipfelError):
    """An EDF that can't be used; the first error is the message, all are in `diagnostics`.

    Parameters
    ----------
    file
        The EDF that was asked for, which is named too where the error is in one of its bases.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic], file: str = "") -> None:
        self.diagnostics = tuple(diagnostics)
        errors = [each for each in self.diagnostics if each.severity == "error"]
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        asked = f"{file} can't be used: " if file and file != first.file else ""
        super().__init__(f"{asked}{first.where}: {first.message}{more}", first.fix)


def most_important(diagnostics: Iterable[Diagnostic], file: str) -> tuple[Diagnostic, ...]:
    """Return each diagnostic once, at most a hundred, errors first to stay; a last one counts the others."""
    found = tuple(diagnostics)
    if len(found) > 1:
        found = tuple(dict.fromkeys(found))
    if len(found) <= DIAGNOSTICS:
        return found
    rank = {"error": 0, "warning": 1, "note": 2}
    order = sorted(range(len(found)), key=lambda index: (rank[found[index].severity], index))
    kept = [found[index] for index in sorted(order[:DIAGNOSTICS])]
    left = [found[index] for index in order[DIAGNOSTICS:]]
    errors = sum(each.severity == "error" for each in left)
    what = "errors" if errors == len(left) else f"diagnostics, {errors} of them errors,"
    more = Diagnostic(
        severity=left[0].severity,
        code="more",
        file=file,
        line=None,
        key="",
        message=f"{len(left)} more {what} are not listed.",
        fix="Put right what is listed, and check again.",
    )
    return (*kept, more)


def shortened(text: str, most: int = _QUOTED) -> str:
    """Return a text with its middle left out where it is too long to be read in a message."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}…{text[-most // 3 :]}"


def weight(text: str) -> int:
    """Return how many characters a text takes in JSON, at most."""
    return len(text) if text.isascii() and text.isprintable() else 6 * len(text)


def annotation_variables(annotations: Mapping[str, str]) -> dict[str, str]:
    """Name the variables by which Enroot's hooks see annotations: a dot becomes two underscores."""
    return {f"OCI_ANNOTATION_{name.replace('.', '__')}": value for name, value in annotations.items()}
