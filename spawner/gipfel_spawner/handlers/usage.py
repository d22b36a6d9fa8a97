"""Saturation of running servers on the hub's pages, and cached answers of servers in general."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Generic, Literal, TypeVar

from jupyterhub.utils import url_path_join
from pydantic import Field
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from gipfel_cluster.model import Frozen, GipfelError

from ..cluster.cache import LRU, AsyncCache
from ..spawner import EDFSpawner

#: Seconds for which an answer is cached.
_TTL_S = 60.0
#: Seconds after a failed request until the next one.
_RETRY_S = 20.0
#: Seconds that a page view waits for answers; later ones are shown in the next view.
_PAGE_WAIT_S = 1.0
_CONNECT_S = 2.0
_REQUEST_TIMEOUT_S = 10.0
_MAX_BYTES = 4096
#: Requests to servers at the same time.
_MAX_CONCURRENT = 16
#: A token is replaced after half of this time.
_TOKEN_LIFETIME_S = 1800
#: Servers whose answers are cached.
_MAX_ENTRIES = 2000

#: Where most of the saturation is lost; ``launch`` means kernels, ``capped`` a limit of power or clocks.
Bottleneck = Literal[
    "compute",
    "memory",
    "interconnect",
    "idle",
    "input",
    "launch",
    "occupancy",
    "imbalance",
    "communication",
    "checkpoint",
    "capped",
    "start_up",
    "unexplained",
]
_Activity = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Fetch = Callable[[EDFSpawner, str], Awaitable[bytes]]
Answer = TypeVar("Answer", bound=Frozen)


class SharedSaturation(Frozen):
    """Saturation that a server reports; restricted to numbers and known names, since users can forge it.

    ``shared`` is whether its user shares it; if not, all other fields have their defaults. ``simulated`` is
    true for simulated GPUs. ``score`` is 0 to 100 over the last ``seconds``, None if there was nothing to
    score; ``activity`` is the mean SM activity of all GPUs, 0 to 1, in time buckets of equal length, None
    where there is no sample.
    """

    shared: bool
    score: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    bottleneck: Bottleneck | None = None
    gpus: int = Field(0, ge=0, le=100_000)
    seconds: float = Field(0.0, ge=0, le=1e9, allow_inf_nan=False)
    simulated: bool = False
    activity: tuple[_Activity | None, ...] = Field((), max_length=60)

    @property
    def text(self) -> str:
        """Text of the table's cell."""
        if not self.shared:
            return "not shared"
        if self.score is None:
            return "no score"
        suffix = " (simulated)" if self.simulated else ""
        return f"{self.score:.0f} of 100, {self.bottleneck or 'bottleneck unclear'}{suffix}"


class ServerAnswers(Generic[Answer]):
    """Cached answers of all servers to one question.

    Parameters
    ----------
    model
        Validates an answer, which a user can forge.
    fetch
        Requests an answer from a spawner's server with a token.
    note
        Purpose of the token, for the user's list of tokens.
    """

    def __init__(self, log: logging.Logger, model: type[Answer], fetch: Fetch, note: str) -> None:
        self._log, self._model, self._fetch, self._note = log, model, fetch, note
        self._answers: LRU[Answer] = LRU(_MAX_ENTRIES)
        # The spawners of the last read, because the hub may have replaced earlier ones.
        self._spawners: dict[tuple[str, str], EDFSpawner] = {}
        self._tokens: dict[tuple[str, str], tuple[float, str]] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def read(self, spawners: Iterable[EDFSpawner]) -> Mapping[tuple[str, str], Answer]:
        """Return the answers of these servers by user and server name; wait at most 1 s, and never raise."""
        ready = {
            (each.user.name, each.name): each
            for each in spawners
            # A service has no saturation, and would take the request for a visitor's: it would never be idle.
            if each.ready and each.server and not (each.user_options or {}).get("service")
        }
        self._spawners = (self._spawners if len(self._spawners) < _MAX_ENTRIES else {}) | ready
        caches = [
            self._answers.at(
                key, partial(AsyncCache, partial(self._request, key), ttl=_TTL_S, retry=_RETRY_S)
            )
            for key in ready
        ]
        answers = await asyncio.gather(*(each.cached(limit=_PAGE_WAIT_S) for each in caches))
        return {
            key: each.value
            for key, each in zip(ready, answers, strict=True)
            # After a failure the answer is unknown.
            if each.value is not None and not each.problem and each.age < 10 * _TTL_S
        }

    def forget(self, key: tuple[str, str]) -> None:
        """Request a server's answer again at the next read."""
        self._answers.drop(key)

    async def _request(self, key: tuple[str, str]) -> Answer:
        async with self._slots:
            spawner = self._spawners.get(key)
            # It may have stopped while the request waited for a slot.
            if spawner is None or not spawner.server:
                raise GipfelError("The server has stopped.")
            try:
                return self._model.model_validate_json(await self._fetch(spawner, self.token(key, spawner)))
            except (HTTPError, OSError, ValueError, TimeoutError) as error:
                # The server is busy or of an older version: the answer is unknown, not zero.
                self._log.debug("The server of %s does not answer (%s): %r", key[0], self._note, error)
                raise GipfelError("The server does not answer.") from error

    def token(self, key: tuple[str, str], spawner: EDFSpawner) -> str:
        """Return a token of the hub that is valid for 30 minutes and only for this server."""
        now = time.monotonic()
        created, token = self._tokens.get(key, (0.0, ""))
        if not token or now - created > _TOKEN_LIFETIME_S / 2:
            token = spawner.user.new_api_token(
                note=self._note,
                expires_in=_TOKEN_LIFETIME_S,
                scopes=[f"access:servers!server={spawner.user.name}/{spawner.name}"],
            )
            valid = {each: old for each, old in self._tokens.items() if now - old[0] < _TOKEN_LIFETIME_S}
            self._tokens = valid | {key: (now, token)}
        return token


async def fetch_answer(spawner: EDFSpawner, token: str, path: str, body: bytes | None = None) -> bytes:
    """Return the answer of a spawner's server to a GET request, or with a body to a POST request.

    Raises
    ------
    HTTPError, OSError
        The server does not answer in time.
    ValueError
        The answer is longer than 4 KiB.
    """
    chunks: list[bytes] = []

    def append(chunk: bytes) -> None:
        chunks.append(chunk)
        if sum(map(len, chunks)) > _MAX_BYTES:
            raise ValueError("the answer is too long")

    request = HTTPRequest(
        url_path_join(spawner.server.url, path),
        method="GET" if body is None else "POST",
        body=body,
        headers={"Authorization": f"token {token}", "Accept": "application/json"},
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
        follow_redirects=False,
        streaming_callback=append,
    )
    async with asyncio.timeout(_REQUEST_TIMEOUT_S + _CONNECT_S):
        await AsyncHTTPClient().fetch(request)
    return b"".join(chunks)


def saturation_cache(settings: dict[str, Any], log: logging.Logger) -> ServerAnswers[SharedSaturation]:
    """Return the hub's cache of the saturation of all servers, created at the first call."""
    fetch = partial(fetch_answer, path="gipfel/sharing/saturation")
    new = ServerAnswers(log, SharedSaturation, fetch, "gipfel: saturation column of the server list")
    cache: ServerAnswers[SharedSaturation] = settings.setdefault("gipfel_saturation_cache", new)
    return cache
