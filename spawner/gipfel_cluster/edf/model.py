"""What an environment definition file (EDF) says once it is resolved, and what is wrong with one."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from ..model import Frozen, GipfelError, one_line

Severity = Literal["error", "warning"]


class Mount(Frozen):
    """One path of the host, seen at another place in the container."""

    source: str
    destination: str
    flags: tuple[str, ...] = ()

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

    The message says what is wrong and what that causes; an error always causes that the EDF isn't used.
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
    def _readable(cls, text: str) -> str:
        """A file's name or a variable may hold bytes that are no UTF-8, which no JSON could carry."""
        return text if text.isascii() else text.encode("utf-8", "replace").decode()

    @property
    def where(self) -> str:
        """File, line and key, as far as they are known."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.key) if part)

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.severity}: {self.message} {self.fix}")


class EdfError(GipfelError):
    """An EDF that can't be used; the first error is the message, all are in `diagnostics`."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        errors = [each for each in self.diagnostics if each.severity == "error"]
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"{first.where}: {first.message}{more}", first.fix)
