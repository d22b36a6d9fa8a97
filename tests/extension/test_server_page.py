import asyncio

from gipfel_extension.server.page import MOST_WAITING, Event, Page


def event(number):
    return Event({"last_ns": number}, (), ())


def test_a_page_that_keeps_up_gets_every_event_in_order():
    async def read():
        page = Page()
        for number in range(MOST_WAITING):
            page.put(event(number))
        return [await page.take() for _ in range(MOST_WAITING)]

    assert asyncio.run(read()) == [(event(number), False) for number in range(MOST_WAITING)]


def test_a_page_that_is_too_slow_is_told_so_once_and_goes_on_from_the_newest():
    async def read():
        page = Page()
        for number in range(MOST_WAITING + 2):
            page.put(event(number))
        return [await page.take(), await page.take()]

    assert asyncio.run(read()) == [(event(MOST_WAITING), True), (event(MOST_WAITING + 1), False)]


def test_a_page_waits_for_the_next_event():
    async def read():
        page = Page()
        asyncio.get_running_loop().call_later(0.05, page.put, event(7))
        return await asyncio.wait_for(page.take(), 5)

    assert asyncio.run(read()) == (event(7), False)
