"""Scheduler and broker queries from code with and without a running event loop."""

import asyncio

import pytest

from gipfel_cluster.scheduler.machine import run_sync


async def _answer(wrong: bool = False) -> int:
    await asyncio.sleep(0)
    if wrong:
        raise ValueError("wrong")
    return 7


def test_a_coroutine_is_waited_for_with_and_without_a_loop_around() -> None:
    async def cell(*, wrong: bool) -> int:
        return run_sync(_answer(wrong))

    assert run_sync(_answer()) == asyncio.run(cell(wrong=False)) == 7
    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(cell(wrong=True))
