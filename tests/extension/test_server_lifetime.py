"""Remaining time, idleness and a hub that does not know this server, with a fake clock and a fake hub."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.server.activity import Indicators
from gipfel_extension.server.lifetime import (
    HubRefusedError,
    HubUnavailableError,
    LifetimeSettings,
    LifetimeStatus,
    ServerLifetime,
)


class FakeHub:
    def __init__(self, word: LifetimeStatus | None = None) -> None:
        self.word = word or LifetimeStatus()
        self.error: Exception | None = None
        self.heard: list[Mapping[str, Any]] = []

    def __call__(self, path: str, content: Mapping[str, Any]) -> LifetimeStatus:
        if path == "/activity":
            self.heard.append(content)
        if self.error:
            raise self.error
        if path == "/activity":
            return self.word
        return self.word.model_copy(update={"ends": (self.word.ends or 0) + self.word.extend_s})


class World:
    """A server at a time of its own."""

    def __init__(self, hub: FakeHub | None, *, ends: float | None = None) -> None:
        self.now, self.signs, self.ended = 10_000.0, Indicators(), []
        self.on_node = ends

        async def look() -> Indicators:
            return self.signs

        async def on_node() -> float | None:
            return self.on_node

        self.leaving = ServerLifetime(
            settings=LifetimeSettings(orphan_grace=600),
            hub=hub,
            job_end=on_node,
            indicators=look,
            stop_server=self.ended.append,
            log=logging.getLogger("leaving-test"),
            clock=lambda: self.now,
        )

    def beat(self, after: float = 0.0) -> dict[str, Any]:
        self.now += after
        asyncio.run(self.leaving.report_once())
        return self.leaving.describe()


def test_the_nodes_word_counts_until_the_hub_has_one():
    hub = FakeHub()
    world = World(hub, ends=20_000.0)
    assert world.beat()["ends_ms"] == 20_000_000
    assert hub.heard[-1]["ends"] == 20_000
    hub.word = LifetimeStatus(ends=23_600)
    assert world.beat()["ends_ms"] == 23_600_000


def test_a_server_without_a_hub_tells_the_time_and_cannot_be_extended():
    world = World(None, ends=20_000.0)
    assert world.beat() | {"idle": None, "extend_s": 0, "notices_s": [1800, 600, 120]} == world.beat()
    with pytest.raises(GipfelError, match="can't be extended"):
        asyncio.run(world.leaving.extend())


def test_a_short_server_does_not_begin_with_a_notice_of_its_end():
    notices = {
        seconds: World(None, ends=10_000.0 + seconds).beat()["notices_s"] for seconds in (1800, 600, 170)
    }
    assert notices == {1800: [600, 120], 600: [120], 170: [120]}


def test_an_idle_server_is_warned_first_and_reports_for_how_long():
    hub = FakeHub(LifetimeStatus(idle_limit_s=3600, idle_warning_s=600))
    world = World(hub)
    assert world.beat()["idle"] is None
    assert world.beat(2900)["idle"] is None
    idle = world.beat(200)["idle"]
    assert idle == {"since_ms": 10_000_000, "stop_ms": 13_700_000}
    world.beat(300)
    assert (hub.heard[-1]["idle_s"], hub.heard[-1]["warned_s"]) == (3400, 300)


def test_work_takes_the_warning_back():
    hub = FakeHub(LifetimeStatus(idle_limit_s=3600, idle_warning_s=600))
    world = World(hub)
    world.beat()
    assert world.beat(3100)["idle"]
    world.signs = Indicators(gpu_share=0.5)
    assert world.beat(30)["idle"] is None
    assert hub.heard[-1] | {"idle_s": 0, "busy_with": ["GPU 50%"], "warned_s": None} == hub.heard[-1]


def test_a_word_of_the_user_counts_as_use_and_the_hub_hears_it_at_once():
    hub = FakeHub(LifetimeStatus(idle_limit_s=3600, idle_warning_s=600))
    world = World(hub)
    world.beat()
    assert world.beat(3100)["idle"]
    asyncio.run(world.leaving.keep_alive())
    assert world.leaving.describe()["idle"] is None
    assert (hub.heard[-1]["idle_s"], hub.heard[-1]["warned_s"]) == (0, None)


def test_the_warning_is_as_long_as_it_should_be_however_late_it_came():
    hub = FakeHub()
    world = World(hub)
    world.beat()
    hub.word = LifetimeStatus(idle_limit_s=3600, idle_warning_s=600)
    world.beat(5000)
    idle = world.beat()["idle"]
    assert idle["stop_ms"] == 15_600_000


def test_a_hub_that_is_silent_never_ends_a_server():
    hub = FakeHub()
    hub.error = HubUnavailableError("The hub does not answer.")
    world = World(hub)
    for _ in range(5):
        world.beat(3600)
    assert world.ended == []


def test_a_hub_that_refuses_for_long_ends_a_server_with_a_line():
    hub = FakeHub()
    hub.error = HubRefusedError()
    world = World(hub)
    world.beat()
    world.beat(599)
    assert world.ended == []
    world.beat(1)
    assert world.ended == ["The hub has refused this server's token for 600 s, so the server stops."]


def test_a_hub_that_knows_the_server_again_is_believed():
    hub = FakeHub()
    hub.error = HubRefusedError()
    world = World(hub)
    world.beat()
    hub.error = None
    world.beat(590)
    hub.error = HubRefusedError()
    world.beat(590)
    world.beat(590)
    assert world.ended == []


def test_an_extension_moves_the_end_and_a_refusal_is_one_line():
    hub = FakeHub(LifetimeStatus(ends=20_000, extend_s=3600))
    world = World(hub, ends=20_000.0)
    assert world.beat()["extend_s"] == 3600
    asyncio.run(world.leaving.extend())
    assert world.leaving.describe()["ends_ms"] == 23_600_000
    hub.error = HubUnavailableError("This server's time can't be extended.")
    with pytest.raises(GipfelError, match="can't be extended"):
        asyncio.run(world.leaving.extend())
