"""Waiting for a coroutine from anywhere, also from a notebook's cell, whose thread runs a loop already."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


def at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end; in a thread of its own where this one's loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1, "gipfel-ask") as pool:
        return pool.submit(asyncio.run, coroutine).result()
