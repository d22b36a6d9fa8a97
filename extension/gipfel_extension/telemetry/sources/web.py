"""HTTP as sources need it: a GET with a limit in time and size, and an error in one sentence."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from ..sample import SourceError

#: The environment variable with the value of the ``Authorization`` header, if a server wants one: a command
#: line could be read by everybody on the node.
AUTHORIZATION = "GIPFEL_METRICS_AUTHORIZATION"

_MOST_BYTES = 256 << 20


def checked_url(kind: str, url: str) -> str:
    """A source's URL without its last slash.

    Raises
    ------
    SourceError
        It is none, or holds a password.
    """
    parts = urllib.parse.urlsplit(url)
    fix = f"Use {kind}:http://HOST:PORT."
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known or any(ord(c) <= 32 for c in url):
        raise SourceError(f"{url!r} is no address of HTTP.", fix)
    if parts.username is not None or parts.password is not None:
        raise SourceError(
            "The address holds a password, which everybody on the node could read.",
            f"Put the value of the Authorization header into ${AUTHORIZATION}.",
        )
    return url.rstrip("/")


def get(url: str, *, seconds: float, environment: Mapping[str, str] = os.environ) -> bytes:
    """The answer's body.

    Raises
    ------
    SourceError
        No answer, or one that is no success.
    """
    request = urllib.request.Request(url)  # noqa: S310 - checked to be HTTP
    if environment.get(AUTHORIZATION):
        # Not to whom it may redirect us.
        request.add_unredirected_header("Authorization", environment[AUTHORIZATION])
    where = urllib.parse.urlsplit(url)
    place = f"{where.scheme}://{where.netloc}{where.path}"
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - checked to be HTTP
            body: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise SourceError(f"{place} answers {error.code}: {_reason(error)}.", "Ask the site.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise SourceError(f"{place} doesn't answer: {reason}.", "Is the address right, and up?") from error
    if len(body) > _MOST_BYTES:
        raise SourceError(f"{place} answers with more than {_MOST_BYTES >> 20} MiB.", "Ask for less.")
    return body


def get_json(url: str, *, seconds: float, environment: Mapping[str, str] = os.environ) -> Any:
    """The answer's JSON.

    Raises
    ------
    SourceError
        As :func:`get`, or it is no JSON.
    """
    body = get(url, seconds=seconds, environment=environment)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{url.partition('?')[0]} answers with no JSON.", "Is it a Prometheus?") from error


def _reason(error: urllib.error.HTTPError) -> str:
    """What Prometheus says of a query that it refuses, else the status in words."""
    try:
        return str(json.loads(error.read(1 << 16))["error"])[:300]
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)
