"""The nodes that rules still have to look at, after reports: a piece at a time, each node once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

_PIECE = 100


class Backlog:
    """Nodes in the order in which they were reported; one task works through them.

    Parameters
    ----------
    consider
        What is called with a cluster and some of its nodes; it must not raise.
    """

    def __init__(self, consider: Callable[[str, Sequence[str]], Awaitable[None]]) -> None:
        self._consider = consider
        self._nodes: dict[str, dict[str, None]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, cluster: str, nodes: Iterable[str]) -> None:
        """Put nodes at the end; one that waits already keeps its place."""
        self._nodes.setdefault(cluster, {}).update(dict.fromkeys(nodes))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def settled(self) -> None:
        """Wait until no node is left."""
        while self._task and not self._task.done():
            await asyncio.wait({self._task})

    async def close(self, patience_s: float) -> None:
        """Drop what waits; what is under way has so many seconds to end."""
        self._nodes.clear()
        if self._task and not self._task.done():
            await asyncio.wait({self._task}, timeout=patience_s)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _work(self) -> None:
        while self._nodes:
            # A piece of each cluster in turn: a long list of one holds up no other.
            for cluster, waiting in list(self._nodes.items()):
                piece = list(islice(waiting, _PIECE))
                for node in piece:
                    del waiting[node]
                if not waiting:
                    self._nodes.pop(cluster, None)
                await self._consider(cluster, piece)
