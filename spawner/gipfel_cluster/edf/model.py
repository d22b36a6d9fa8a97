"""What an environment definition file (EDF) says once it is resolved, and what is wrong with one."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from ..model import Frozen, GipfelError, one_line
from .limits import DIAGNOSTICS, PATH_BYTES

#: A note says what follows from an EDF that is right as it is.
Severity = Literal["error", "warning", "note"]

_LONGEST = {"key": 200, "message": 2000, "fix": 400}
_QUOTED = 120
#: Sources that name no file: the Container Engine and Pyxis mount or unmount there.
SPECIAL_SOURCES = frozenset(("tmpfs", "umount"))


def shortened(text: str, most: int = _QUOTED) -> str:
    """Return a text with its middle left out where it is too long to be read in a message."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}…{text[-most // 3 :]}"


class Mount(Frozen):
    """One path of the host, seen at another place in the container."""

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
        """What the EDF asks for, without the name and the files that it came from.

        Set-up steps are named by their digests, and not at all where there are none.
        """
        content = self.model_dump(mode="json", exclude={"name", "path", "sources", "setup", "setup_digests"})
        return content | ({"setup": list(self.setup_digests)} if self.setup_digests else {})

    @property
    def digest(self) -> str:
        """``sha256:…`` over the canonical JSON of `content`."""
        canonical = json.dumps(self.content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return "sha256:" + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def image_path(self) -> Path | None:
        """Where the image is on this machine, or None where it has none or comes from a registry."""
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
        """Replace bytes that are no UTF-8, which no JSON could carry, and leave out what is too long."""
        text = shortened(text, _LONGEST.get(info.field_name or "", PATH_BYTES))
        return text if text.isascii() else text.encode("utf-8", "replace").decode()

    @property
    def where(self) -> str:
        """File, line and key, as far as they are known."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.key) if part)

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.severity}: {self.message} {self.fix}")


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
