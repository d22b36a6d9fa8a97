"""From a name to a resolved EDF: find, read with its bases, merge, expand, check."""

import functools
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .expand import ExpansionError, Lookup, expand, split_fields
from .image import image_environment
from .inherit import Chain, merge
from .lint import KNOWN_FLAGS, lint
from .lookup import find_edf
from .model import Diagnostic, Edf, EdfError, Mount
from .parse import Document, Entry


@dataclass(frozen=True)
class Resolution:
    """What became of an EDF."""

    file: str
    #: None where there are errors.
    edf: Edf | None
    diagnostics: tuple[Diagnostic, ...]
    #: Key to the file that its value comes from.
    origins: dict[str, str] = field(default_factory=dict)


def load_edf(name_or_path: str, *, environment: Mapping[str, str], directory: Path) -> Edf:
    """Find, read and resolve an EDF.

    Parameters
    ----------
    environment
        The host's variables, for ``EDF_PATH``, ``HOME`` and every ``${VAR}``; the image's own win over them.
    directory
        What relative paths are relative to.

    Raises
    ------
    EdfError
        It can't be found or read, or says something wrong; every error is in its ``diagnostics``.
    """
    resolution = resolve(name_or_path, environment=environment, directory=directory)
    if resolution.edf is None:
        raise EdfError(resolution.diagnostics)
    return resolution.edf


def resolve(name_or_path: str, *, environment: Mapping[str, str], directory: Path) -> Resolution:
    """Like `load_edf`, but errors are in the result."""
    find = functools.partial(find_edf, environment=environment, directory=directory)
    try:
        path = find(name_or_path)
    except EdfError as error:
        return Resolution(error.diagnostics[0].file, None, error.diagnostics)
    chain = Chain(find, environment.get)
    chain.read(path)
    merged = merge(chain.documents)
    resolver = _Resolver(merged, environment, directory)
    edf = resolver.resolve(path, tuple(chain.sources))
    diagnostics = (*chain.diagnostics, *resolver.diagnostics, *lint(merged))
    valid = all(each.severity != "error" for each in diagnostics)
    origins = {entry.key: entry.file for entry in merged.entries()}
    return Resolution(str(path), edf if valid else None, diagnostics, origins)


class _Resolver:
    """Expands the values of one merged document and collects what is wrong with them."""

    def __init__(self, document: Document, environment: Mapping[str, str], directory: Path) -> None:
        self._document = document
        self._host = environment
        self._directory = directory
        self.diagnostics: list[Diagnostic] = []

    def resolve(self, path: Path, sources: tuple[str, ...]) -> Edf:
        scalars = self._document.scalars
        image = self._image()
        lookup = self._lookup(image)
        writable = scalars.get("writable")
        entrypoint = scalars.get("entrypoint")
        mounts = [self._mount(entry, lookup) for entry in self._document.mounts]
        return Edf(
            name=path.stem,
            path=str(path),
            image=image,
            workdir=self._workdir(lookup),
            entrypoint=entrypoint is not None and entrypoint.text == "true",
            writable=writable is None or writable.text == "true",
            mounts=tuple(dict.fromkeys(mount for mount in mounts if mount is not None)),
            env={name: self._expand(entry, lookup) for name, entry in self._document.env.items()},
            annotations={
                name: self._expand(entry, lookup) for name, entry in self._document.annotations.items()
            },
            devices=tuple(dict.fromkeys(self._expand(entry, lookup) for entry in self._document.devices)),
            sources=sources,
        )

    def _refuse(self, entry: Entry, code: str, message: str, fix: str) -> None:
        self.diagnostics.append(entry.diagnostic(code, message, fix))

    def _expand(self, entry: Entry, lookup: Lookup, text: str | None = None) -> str:
        try:
            value = expand(entry.text if text is None else text, lookup)
        except ExpansionError as error:
            self._refuse(entry, error.code, error.message, error.fix)
            return ""
        if any(character in value for character in "\n\r\0"):
            self._refuse(entry, "line-break", "the value holds a line break or NUL.", "Write it on one line.")
        return value

    def _image(self) -> str:
        entry = self._document.scalars.get("image")
        if entry is None:
            return ""
        return self._path(self._expand(entry, self._host.get))

    def _lookup(self, image: str) -> Lookup:
        """Variables of the image, which is opened when the first one is asked for, then those of the host."""

        @functools.cache
        def of_image() -> Mapping[str, str]:
            return image_environment(Path(image)) if image.startswith("/") else {}

        return lambda name: of_image().get(name, self._host.get(name))

    def _path(self, path: str) -> str:
        """Make a path that begins with a dot absolute and leave any other as it is."""
        return os.path.normpath(self._directory / path) if path.partition("/")[0] in {".", ".."} else path

    def _workdir(self, lookup: Lookup) -> str:
        entry = self._document.scalars.get("workdir")
        workdir = "" if entry is None else self._path(self._expand(entry, lookup))
        if entry is not None and workdir and not workdir.startswith("/"):
            self._refuse(entry, "relative-path", f"{workdir!r} is no absolute path.", "Begin it with '/'.")
        return workdir

    def _mount(self, entry: Entry, lookup: Lookup) -> Mount | None:
        errors = len(self.diagnostics)
        source, *rest = (self._expand(entry, lookup, field) for field in split_fields(entry.text))
        source = self._path(source)
        destination = rest[0] if rest else source
        flags = tuple(rest[1].split("+")) if len(rest) > 1 else ()
        if len(self.diagnostics) > errors:
            return None
        if len(rest) > 2:
            self._refuse(
                entry, "mount", "a mount has at most three fields.", "Write SOURCE:DESTINATION[:FLAG+FLAG]."
            )
        for path, name in ((source, "source"), (destination, "destination")):
            if not path.startswith("/"):
                self._refuse(
                    entry,
                    "mount-path",
                    f"the mount's {name} {path!r} is no absolute path.",
                    "Begin it with '/'" + (" or './'." if name == "source" else "."),
                )
        if "sqsh" in flags and len(flags) > 1:
            self._refuse(entry, "mount-flags", "'sqsh' stands alone as a flag.", "Take the others out.")
        for flag in sorted(set(flags) - KNOWN_FLAGS):
            self._refuse(
                entry, "mount-flags", f"{flag!r} is no mount flag.", "Flags are joined by '+': ro+private."
            )
        return Mount(
            source=posixpath.normpath(source), destination=posixpath.normpath(destination), flags=flags
        )
