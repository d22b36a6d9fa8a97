"""Fetch items of a data set by URL, record URL, hash and time of each, and refuse items that changed.

The record is ``.gipfel-fetched.jsonl`` in the data set's directory. Packing checks each item against it, and
writes URL and time to the image's manifest instead of packing the record.
"""

import hashlib
import http.client
import os
import re
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import open_regular, read_regular
from ..telemetry.redaction import is_secret
from .manifest import Digest
from .s3 import SCHEME, S3Service

FETCHED_NAME = ".gipfel-fetched.jsonl"
_MAX_RECORD_BYTES, _MAX_LIST_BYTES, _MAX_ITEMS = 64 << 20, 16 << 20, 100_000
_COPY_BYTES = 4 << 20
_TIMEOUT_S = 60.0
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


class Fetched(Frozen):
    """A fetched item: its path below the directory, URL, SHA-256, size in bytes, and time in UTC."""

    path: Annotated[str, Field(max_length=4096)]
    url: Annotated[str, Field(max_length=4096)]
    sha256: Digest
    size: int = Field(ge=0)
    fetched: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]


@dataclass(frozen=True)
class Wanted:
    """A line of a list: URL, path below the directory, and the expected SHA-256; empty if any is accepted."""

    url: str
    path: str
    sha256: str = ""


def read_fetched(directory: Path) -> dict[bytes, Fetched]:
    """Return the recorded items of a directory by path; empty if there is no record.

    Raises
    ------
    GipfelError
        It is not valid.
    """
    path = directory / FETCHED_NAME
    try:
        lines = read_regular(path, _MAX_RECORD_BYTES).splitlines()
        found = [Fetched.model_validate_json(each) for each in lines]
    except FileNotFoundError:
        return {}
    except ValidationError:
        raise GipfelError(f"{path} is not valid.", "Remove it, and fetch the items again.") from None
    except (OSError, ValueError) as error:
        raise GipfelError(
            f"{path} can't be read: {error}.", "Remove it, and fetch the items again."
        ) from error
    return {os.fsencode(each.path): each for each in found}


def read_list(path: Path) -> tuple[Wanted, ...]:
    """Return the items of a list; each line has a URL, optionally a path, and optionally ``sha256:…``.

    Raises
    ------
    GipfelError
        A line is not valid; the message has its number, but not its text, which may contain a key.
    """
    try:
        text = read_regular(path, _MAX_LIST_BYTES, follow=True).decode()
    except (OSError, ValueError) as error:
        raise GipfelError(f"{path} can't be read: {error}.", "Give a text file with a URL a line.") from error
    found: dict[str, Wanted] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        expected = _HASH.fullmatch(words[-1]) if len(words) > 1 else None
        url, *rest = words[:-1] if expected else words
        name = rest[0] if rest else PurePosixPath(unquote(urlsplit(url).path)).name
        problem = _problem(url, name) or ("a path twice" if name in found else "")
        if problem or len(rest) > 1 or len(found) >= _MAX_ITEMS:
            raise GipfelError(
                f"Line {number} of {path.name} is not valid: it has {problem or 'too many words'}.",
                "Write URL [PATH] [sha256:HASH], with http, https or s3, and without keys.",
            )
        found[name] = Wanted(url, name, expected[1] if expected else "")
    return tuple(found.values())


def _problem(url: str, name: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https", "s3"} or not parts.hostname:
        return "no URL of http, https or s3"
    if "@" in parts.netloc or any(map(_is_key, dict(parse_qsl(parts.query)))):
        return "a key in its URL"
    pieces = name.split("/")
    if not name or not name.isprintable() or any(each in {"", ".", ".."} for each in pieces):
        return "no path below the directory"
    return "a reserved name" if pieces[-1].startswith(".gipfel-") else ""


def _is_key(name: str) -> bool:
    return is_secret(name) or name.lower().endswith(("signature", "sig"))


def fetch(
    wanted: tuple[Wanted, ...],
    directory: Path,
    environment: Mapping[str, str],
    *,
    now: Callable[[], str],
    check: bool = False,
    on_item: Callable[[str], None] = lambda _: None,
) -> tuple[int, int]:
    """Fetch items that are not there yet; return how many were fetched, and how many were already there.

    The record is written after each item, so that a later call continues where an interrupted one stopped.

    Parameters
    ----------
    check
        Whether to also fetch the items that are already there, and compare their hashes.

    Raises
    ------
    GipfelError
        An item can't be fetched, has changed at its URL or here, or its hash is not the expected one.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(".gipfel-part-*"):
            left.unlink()
    except OSError as error:
        raise GipfelError(f"{directory} can't be written: {error.strerror}.", "Give another one.") from error
    record = read_fetched(directory)
    service = S3Service(environment) if any(each.url.startswith(SCHEME) for each in wanted) else None
    count = 0
    for each in wanted:
        known = record.get(os.fsencode(each.path))
        if known is not None and known.url != each.url:
            raise GipfelError(f"{each.path} was fetched from another URL.", "Give it another path.")
        is_there = _check_here(directory / each.path, known)
        if is_there and not check:
            continue
        on_item(each.path)
        found = _fetch_one(each, directory, service, now(), keep=not is_there, known=known)
        if not is_there:
            record[os.fsencode(each.path)] = found
            lines = (entry.model_dump_json() + "\n" for _, entry in sorted(record.items()))
            write_atomically(directory / FETCHED_NAME, "".join(lines))
            count += 1
    return count, len(wanted) - count


def _check_here(path: Path, known: Fetched | None) -> bool:
    """Return whether an item is there and unchanged since it was fetched."""
    if not path.exists() and not path.is_symlink():
        return False
    if known is None:
        raise GipfelError(f"{path} exists, but was not fetched.", "Remove it, or give the item another path.")
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise GipfelError(f"{path} can't be read: {error.strerror}.", "Check the file.") from error
    if digest != known.sha256:
        raise GipfelError(
            f"{path} is not what was fetched from {known.url}.", "Remove it, and fetch it again."
        )
    return True


def _fetch_one(
    each: Wanted, directory: Path, service: S3Service | None, now: str, *, keep: bool, known: Fetched | None
) -> Fetched:
    target, digest, size = directory / each.path, hashlib.sha256(), 0
    handle, part = tempfile.mkstemp(dir=directory, prefix=".gipfel-part-")
    try:
        with os.fdopen(handle, "wb") as file:
            remote = service is not None and each.url.startswith(SCHEME)
            for piece in _pieces_of_s3(each.url, service) if remote else _pieces_of_http(each.url):
                digest.update(piece)
                size += len(piece)
                if keep:
                    file.write(piece)
            os.fchmod(file.fileno(), 0o644)
        expected = each.sha256 or (known.sha256 if known else "")
        if expected not in {"", digest.hexdigest()}:
            since = f" since {known.fetched}" if known and not each.sha256 else ""
            raise GipfelError(
                f"{each.url} has changed{since}: its SHA-256 is {digest.hexdigest()}, not {expected}.",
                "Fetch it to another path as a new item, or remove the old one.",
            )
        if keep:
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(part).rename(target)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise GipfelError(
            f"{each.url} can't be fetched: {reason}.", "Check the URL and the server."
        ) from None
    finally:
        with suppress(OSError):
            os.unlink(part)  # noqa: PTH108 - a text
    return Fetched(path=each.path, url=each.url, sha256=digest.hexdigest(), size=size, fetched=now)


def _pieces_of_http(url: str) -> Iterator[bytes]:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):  # fmt: skip
        # No handlers for files and FTP, to which a server could redirect.
        opener.add_handler(handler())
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        length, got = answer.headers.get("Content-Length"), 0
        while piece := answer.read(_COPY_BYTES):
            got += len(piece)
            yield piece
        if length is not None and got != int(length):
            raise OSError(f"the answer was cut off after {got} of {length} bytes")


def _pieces_of_s3(address: str, service: S3Service | None) -> Iterator[bytes]:
    assert service is not None  # noqa: S101 - made where there is such an address
    (found,) = service.objects(address, 1)
    for offset in range(0, found.size, _COPY_BYTES):
        yield service.read(found, offset, min(_COPY_BYTES, found.size - offset))
    service.check_unchanged(found)
