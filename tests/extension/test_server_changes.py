"""Observation of topics for pages: each page hears of each change once; without pages nothing is observed."""

import asyncio
import logging

from gipfel_extension.server.changes import ServerChanges, Topic

_LOG = logging.getLogger("changes")


async def take(messages, count):
    async with asyncio.timeout(5):
        return [await anext(messages) for _ in range(count)]


async def pause():
    """Let the watches observe a few times."""
    await asyncio.sleep(0.05)


def test_a_page_hears_of_each_change_and_of_each_topic_once_when_it_connects():
    values = {"list": [1], "number": 5}

    async def run():
        seen = []

        async def listed():
            seen.append(tuple(values["list"]))
            return list(values["list"])

        async def number():
            return values["number"]

        topics = {"list": Topic(listed, 0.01), "number": Topic(number, 0.01, sends_value=True)}
        changes = ServerChanges(topics, _LOG)
        await pause()
        assert not seen
        page = changes.messages()
        first = await take(page, 2)
        assert sorted(first, key=str) == [{"topic": "list"}, {"topic": "number", "number": 5}]
        waiting = asyncio.ensure_future(anext(page))
        await pause()
        assert not waiting.done()
        values["list"].append(2)
        assert await waiting == {"topic": "list"}
        other = changes.messages()
        assert {"topic": "number", "number": 5} in await take(other, 2)
        await page.aclose()
        await other.aclose()
        count = len(seen)
        await pause()
        assert len(seen) == count

    asyncio.run(run())


def test_a_failing_topic_is_reported_once_and_recovers(caplog):
    failing = [True]

    async def run():
        async def listed():
            if failing[0]:
                raise OSError("no such file")
            return ["there"]

        changes = ServerChanges({"list": Topic(listed, 0.01)}, _LOG)
        page = changes.messages()
        assert await take(page, 1) == [{"topic": "list"}]
        await pause()
        failing[0] = False
        assert await take(page, 1) == [{"topic": "list"}]
        await page.aclose()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert len(caplog.records) == 1


def test_what_is_running_is_observed_more_often():
    running = [True]

    async def run():
        count = [0]

        async def listed():
            count[0] += 1
            return running[0]

        changes = ServerChanges({"list": Topic(listed, 60.0, 0.001, bool)}, _LOG)
        page = changes.messages()
        await take(page, 1)
        await pause()
        assert count[0] > 3
        running[0] = False
        await take(page, 1)
        before = count[0]
        await pause()
        assert count[0] == before
        await page.aclose()

    asyncio.run(run())
