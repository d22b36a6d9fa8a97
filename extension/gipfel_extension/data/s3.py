"""Read S3 objects that are staged: ``s3://BUCKET/KEY``, or ``s3://BUCKET/PREFIX/`` for all objects below it.

The client is pyarrow's, which telemetry needs anyway. Keys are taken from the variables
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_SESSION_TOKEN``, else from the profile
``AWS_PROFILE`` in ``~/.aws/credentials`` (mode 0600); without either, requests are anonymous. Keys are never
written anywhere, and never requested from a metadata service. ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``
is the address of the service; without them it is Amazon's in ``AWS_REGION``.
"""

import configparser
import json
import os
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gipfel_cluster.model import GipfelError
from gipfel_cluster.regular_files import read_secret
from gipfel_cluster.staged import OBJECTS

SCHEME = OBJECTS
_ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([^\x00-\x1f\x7f]{1,1024})")
_MAX_SUMMARY_BYTES = 256 << 20
_ATTEMPTS = 3
_CONNECT_S, _REQUEST_S = 5.0, 30.0
_KEYS = ("access_key", "secret_key", "session_token")
#: Texts in errors of the service and their meanings for a message; the first match is used.
_MEANINGS = (
    ("NO_SUCH_BUCKET", "there is no such bucket"),
    ("INVALID_ACCESS_KEY_ID", "it refuses the key: it does not know it"),
    ("SIGNATURE", "it refuses the key: the signature does not match"),
    ("EXPIRED", "it refuses the key: it has expired"),
    ("ACCESS_DENIED", "it refuses access"),
    ("HTTP STATUS 403", "it refuses access"),
    ("HTTP STATUS 404", "there is no such object"),
    ("NO_SUCH_KEY", "there is no such object"),
    ("RESOURCE_NOT_FOUND", "there is no such object"),
    ("CURLCODE: 6,", "its name is not known"),
    ("CURLCODE: 60,", "its certificate is not trusted (AWS_CA_BUNDLE names a file of authorities)"),
    ("CURLCODE: 77,", "the file of certificate authorities can't be read"),
    ("CURLCODE: 28,", "it does not answer in time"),
    ("CURLCODE: 18,", "an answer was cut off"),
    ("PARTIAL FILE", "an answer was cut off"),
    ("NETWORK_CONNECTION", "it does not answer"),
)


class S3Error(OSError):
    """An object can't be read; the message names the object and the reason, never a key."""


@dataclass(frozen=True)
class S3Object:
    """An object: its address, size in bytes, and ETag, which changes with its content."""

    address: str
    size: int
    etag: str


def split_address(address: str) -> tuple[str, str]:
    """Return bucket and key.

    Raises
    ------
    GipfelError
        The address is not valid; the message does not repeat it, since it may contain a key by mistake.
    """
    found = _ADDRESS.fullmatch(address)
    if (
        found is None
        or "@" in found[1]
        or any(each in {"", ".", ".."} for each in found[2].removesuffix("/").split("/"))
    ):
        raise GipfelError(
            "An address of S3 is not valid.",
            "Write s3://BUCKET/KEY, and your keys into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY alone.",
        )
    return found[1], found[2]


class S3Service:
    """The S3 service that the environment describes; methods are thread-safe.

    Raises
    ------
    GipfelError
        The environment or the file with the keys is not valid, or this pyarrow was built without S3.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            from pyarrow import fs  # noqa: PLC0415 - its S3 part takes a while
        except ImportError as error:
            raise GipfelError("This pyarrow has no S3.", "Install pyarrow from PyPI.") from error
        # Amazon's library would request keys from a metadata service, even on machines that have none.
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
        keys = _keys(environment)
        self._secrets = [each for each in keys.values() if each]
        url = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        parts = urlsplit(url)
        if url and (parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc):
            raise GipfelError("AWS_ENDPOINT_URL is not valid.", "Write https://HOST:PORT.")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        self.host = parts.netloc or f"s3.{region}.amazonaws.com"
        options: dict[str, Any] = {
            **(keys if keys["access_key"] else {"anonymous": True}),
            "region": region,
            "connect_timeout": _CONNECT_S,
            "request_timeout": _REQUEST_S,
            "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            **({"scheme": parts.scheme, "endpoint_override": parts.netloc} if url else {}),
        }
        authorities = environment.get("AWS_CA_BUNDLE") or ssl.get_default_verify_paths().cafile
        try:
            self._files = fs.S3FileSystem(**options, tls_ca_file_path=authorities)
        except TypeError:
            # pyarrow before 21 lacks this option; its S3 library then finds certificates on its own.
            self._files = fs.S3FileSystem(**options)
        self._open: dict[str, Any] = {}
        self._lock = threading.Lock()

    def objects(self, address: str, limit: int) -> Iterator[S3Object]:
        """Yield the object at an address, or all objects below an address that ends with a slash.

        Raises
        ------
        GipfelError
            There is none, there are more than `limit`, or the service can't be read.
        """
        bucket, key = split_address(address)
        try:
            if not key.endswith("/"):
                yield self.look_up(address)
                return
            from pyarrow import fs  # noqa: PLC0415

            found = self._files.get_file_info(fs.FileSelector(f"{bucket}/{key[:-1]}", recursive=True))
            files = sorted(each.path for each in found if each.type == fs.FileType.File)
            if not files:
                raise GipfelError(f"{address} has no objects.", "Check the address.")
            if len(files) > limit:
                raise GipfelError(
                    f"{address} has more than {limit} objects.", "Pack them into one image, and stage that."
                )
            for path in files:
                yield self.look_up(f"{SCHEME}{path}")
        except OSError as error:
            raise GipfelError(
                f"{self.explain(error, address)}.", "Check the address, AWS_ENDPOINT_URL and the keys."
            ) from None

    def look_up(self, address: str) -> S3Object:
        """Return an object with its current size and ETag.

        Raises
        ------
        OSError
            It does not exist, or can't be read.
        """
        bucket, key = split_address(address)
        with self._files.open_input_file(f"{bucket}/{key}") as file:
            return S3Object(address, file.size(), _etag(file))

    def summary(self, address: str) -> object:
        """Return the JSON value of the summary beside an image; None if there is none or it can't be read."""
        bucket, key = split_address(address)
        try:
            with self._files.open_input_file(f"{bucket}/{key}.json") as file:
                content = file.read(_MAX_SUMMARY_BYTES)
        except OSError:
            # Most objects have no summary. Without a readable one, chunks are not compared with it.
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            raise GipfelError(f"{address}.json is not valid: {error}.", "Copy it again.") from None

    def read(self, wanted: S3Object, offset: int, size: int) -> bytes:
        """Return `size` bytes of an object from `offset` on.

        Raises
        ------
        S3Error
            The object has changed, can't be read, or is truncated.
        """
        address = wanted.address
        try:
            with self._lock:
                if address not in self._open:
                    self._open[address] = self._files.open_input_file("/".join(split_address(address)))
                file = self._open[address]
                is_same = (file.size(), _etag(file)) == (wanted.size, wanted.etag)
            content: bytes = file.read_at(size, offset)
        except OSError as error:
            raise S3Error(self.explain(error, address)) from None
        if not is_same:
            raise S3Error(f"{address} changed while it was staged")
        if len(content) != size:
            raise S3Error(f"{address} can't be read from {self.host}: an answer was cut off")
        return content

    def check_unchanged(self, wanted: S3Object) -> None:
        """Raise S3Error if an object has changed or is gone."""
        try:
            now = self.look_up(wanted.address)
        except OSError as error:
            raise S3Error(self.explain(error, wanted.address)) from None
        if now != wanted:
            raise S3Error(f"{wanted.address} changed while it was staged")

    def explain(self, error: OSError, address: str) -> str:
        """Return a one-line message without keys for an error of the service."""
        text = " ".join(str(error).split())
        upper = text.upper()
        meaning = next((meaning for sign, meaning in _MEANINGS if sign in upper), "")
        if isinstance(error, FileNotFoundError) and not meaning:
            meaning = "there is no such object" if self._has_bucket(address) else "there is no such bucket"
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return f"{address} can't be read from {self.host}: {meaning or text[:300]}"

    def _has_bucket(self, address: str) -> bool:
        from pyarrow import fs  # noqa: PLC0415

        try:
            found = self._files.get_file_info(split_address(address)[0])
        except OSError:
            return True
        return bool(found.type != fs.FileType.NotFound)


def _etag(file: Any) -> str:
    found = file.metadata() or {}
    return str((found.get(b"ETag") or found.get("ETag") or b"").decode(errors="replace"))


def _keys(environment: Mapping[str, str]) -> dict[str, str | None]:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    if environment.get(names[0]):
        return {key: environment.get(name) or None for key, name in zip(_KEYS, names, strict=True)}
    path = environment.get("AWS_SHARED_CREDENTIALS_FILE") or str(
        Path(environment.get("HOME") or Path.home()) / ".aws" / "credentials"
    )
    if not Path(path).exists():
        return dict.fromkeys(_KEYS)
    profile = environment.get("AWS_PROFILE") or "default"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(read_secret(Path(path)).decode())
        found = parser[profile]
    except (configparser.Error, UnicodeDecodeError, KeyError):
        # The parser's message would repeat the line, which may contain the key.
        raise GipfelError(
            f"{path} has no valid profile {profile}.", "Check the file and AWS_PROFILE."
        ) from None
    return {key: found.get(name.lower()) or None for key, name in zip(_KEYS, names, strict=True)}
