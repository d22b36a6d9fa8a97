"""Saturation of running servers, asked from those whose users share it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

from jupyterhub.utils import url_path_join
from pydantic import Field
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from gipfel_cluster.model import Frozen

from ..spawner import EDFSpawner

#: What an answer is good for; the next view of the page asks again.
_FRESH_S = 60.0
#: The page waits so long for answers, and shows the others when it is opened again.
_PATIENCE_S = 1.0
_CONNECT_S = 2.0
_ANSWER_S = 10.0
_MOST_BYTES = 4096
_AT_ONCE = 16
_TOKEN_S = 1800
_KEPT = 2000

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
Fetch = Callable[[EDFSpawner, str], Awaitable[bytes]]


class SharedSaturation(Frozen):
    """Saturation that a server reports: the user's programs may write it, so numbers and known words only.

    ``score`` is 0 to 100 over the last ``seconds``, None where nothing could be scored.
    """

    shared: bool
    score: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    bottleneck: Bottleneck | None = None
    gpus: int = Field(0, ge=0, le=100_000)
    seconds: float = Field(0.0, ge=0, le=1e9, allow_inf_nan=False)
    simulated: bool = False

    @property
    def text(self) -> str:
        """Text of the table's cell."""
        if not self.shared:
            return "not shared"
        if self.score is None:
            return "no score"
        mark = " (simulated)" if self.simulated else ""
        return f"{self.score:.0f} of 100, {self.bottleneck or 'bottleneck unclear'}{mark}"


class SaturationBoard:
    """Last answers of all servers, and the requests in progress.

    Parameters
    ----------
    fetch
        Asks a spawner's server with a token; by default over HTTP.
    """

    def __init__(self, log: logging.Logger, fetch: Fetch | None = None) -> None:
        self._log = log
        self._fetch = fetch or ask
        self._known: dict[tuple[str, str], tuple[float, SharedSaturation]] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tokens: dict[tuple[str, str], tuple[float, str]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def read(self, spawners: Iterable[EDFSpawner]) -> Mapping[tuple[str, str], SharedSaturation]:
        """Return what is known of these servers, by user and name; wait a second at most, and never fail."""
        now = time.monotonic()
        ready = {(s.user.name, s.name): s for s in spawners if s.ready and s.server}
        self._forget(ready, now)
        for key, spawner in ready.items():
            asked = self._known.get(key, (0.0, None))[0]
            if key not in self._asking and now - asked > _FRESH_S:
                task = asyncio.ensure_future(self._ask(key, spawner))
                self._asking[key] = task
                task.add_done_callback(partial(self._answered, key))
        mine = [self._asking[key] for key in ready if key in self._asking]
        if mine:
            await asyncio.wait(mine, timeout=_PATIENCE_S)
        return {key: self._known[key][1] for key in ready if key in self._known}

    def _answered(self, key: tuple[str, str], _: object) -> None:
        self._asking.pop(key, None)

    async def _ask(self, key: tuple[str, str], spawner: EDFSpawner) -> None:
        async with self._turns:
            try:
                answer = await self._fetch(spawner, self._token(key, spawner))
                self._known[key] = (time.monotonic(), SharedSaturation.model_validate_json(answer))
            except (HTTPError, OSError, ValueError, TimeoutError) as error:
                # One that is busy or older than this hub: unknown, not zero.
                self._known.pop(key, None)
                self._log.debug("The server of %s does not report how its GPUs are used: %r", key[0], error)

    def _token(self, key: tuple[str, str], spawner: EDFSpawner) -> str:
        """Return a token for this one server and nothing else, for half an hour; the hub alone knows it."""
        made, token = self._tokens.get(key, (0.0, ""))
        if not token or time.monotonic() - made > _TOKEN_S / 2:
            token = spawner.user.new_api_token(
                note="gipfel: saturation on the page of servers",
                expires_in=_TOKEN_S,
                scopes=[f"access:servers!server={spawner.user.name}/{spawner.name}"],
            )
            self._tokens[key] = (time.monotonic(), token)
        return token

    def _forget(self, ready: Mapping[tuple[str, str], object], now: float) -> None:
        for kept in (self._known, self._tokens):
            for key in [key for key in kept if key not in ready and len(kept) > _KEPT]:
                del kept[key]
        for key in [key for key, (since, _) in self._known.items() if now - since > 10 * _FRESH_S]:
            del self._known[key]


async def ask(spawner: EDFSpawner, token: str) -> bytes:
    """Return the answer of a spawner's server, cut off where it is longer than any of ours.

    Raises
    ------
    HTTPError, OSError
        It does not answer, or not in time.
    ValueError
        The answer is too long.
    """
    pieces: list[bytes] = []

    def take(piece: bytes) -> None:
        pieces.append(piece)
        if sum(map(len, pieces)) > _MOST_BYTES:
            raise ValueError("its answer is too long")

    request = HTTPRequest(
        url_path_join(spawner.server.url, "gipfel/sharing/saturation"),
        headers={"Authorization": f"token {token}", "Accept": "application/json"},
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        follow_redirects=False,
        streaming_callback=take,
    )
    async with asyncio.timeout(_ANSWER_S + _CONNECT_S):
        await AsyncHTTPClient().fetch(request)
    return b"".join(pieces)


def board_of(settings: dict[str, Any], log: logging.Logger) -> SaturationBoard:
    """Return the hub's one board."""
    board: SaturationBoard = settings.setdefault("gipfel_saturation_board", SaturationBoard(log))
    return board
