"""Answers of servers, including hostile and late ones."""

import asyncio
import gc
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gipfel_spawner.handlers.usage import ServerAnswers, SharedSaturation

GOOD = {"shared": True, "score": 61.5, "bottleneck": "compute", "gpus": 4, "seconds": 600.0}


def server(name: str) -> Any:
    user = SimpleNamespace(name=name, new_api_token=lambda **given: json.dumps(given))
    return SimpleNamespace(user=user, name="", ready=True, server=object(), user_options={})


def board_of(answer: Any) -> ServerAnswers[SharedSaturation]:
    return ServerAnswers(logging.getLogger("test"), SharedSaturation, answer, "test")


def look(answer: Any, *names: str) -> Any:
    async def run() -> Any:
        return await board_of(answer).read(map(server, names))

    return asyncio.run(run())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"<script>",
        json.dumps({**GOOD, "score": 1e400}).encode(),
        json.dumps({**GOOD, "score": 101}).encode(),
        json.dumps({**GOOD, "bottleneck": "<b>compute</b>"}).encode(),
        json.dumps({**GOOD, "note": "more"}).encode(),
        b"[" * 4000,
    ],
)
def test_what_is_no_answer_of_ours_is_unknown(content: bytes) -> None:
    async def answer(*_: object) -> bytes:
        return content

    assert look(answer, "ada") == {}


def test_a_server_that_is_silent_holds_up_neither_the_page_nor_the_others() -> None:
    async def answer(spawner: Any, token: str) -> bytes:
        assert json.loads(token)["scopes"] == [f"access:servers!server={spawner.user.name}/"]
        if spawner.user.name == "slow":
            await asyncio.sleep(60)
        return json.dumps(GOOD).encode()

    found = look(answer, "ada", "slow")
    assert {name for name, _ in found} == {"ada"}
    assert found[("ada", "")].text == "62 of 100, compute"


def test_words_say_what_is_not_known() -> None:
    assert SharedSaturation(shared=False).text == "not shared"
    assert SharedSaturation(shared=True).text == "no score"
    assert SharedSaturation.model_validate({**GOOD, "simulated": True}).text.endswith("(simulated)")


def test_a_server_is_asked_once_a_minute_however_often_the_page_is_opened() -> None:
    asked = []

    async def answer(spawner: Any, _: str) -> bytes:
        asked.append(spawner.user.name)
        return json.dumps(GOOD).encode()

    async def run() -> None:
        board = board_of(answer)
        for _ in range(3):
            assert len(await board.read([server("ada")])) == 1

    asyncio.run(run())
    assert asked == ["ada"]


def test_a_server_that_fails_is_not_asked_again_at_once() -> None:
    asked = []

    async def answer(spawner: Any, _: str) -> bytes:
        asked.append(spawner.user.name)
        raise OSError("It is busy.")

    async def run() -> None:
        board = board_of(answer)
        for _ in range(3):
            assert await board.read([server("ada")]) == {}

    asyncio.run(run())
    assert asked == ["ada"]


def test_a_server_that_stops_while_its_request_waits_is_unknown() -> None:
    problems: list[Any] = []
    stopping = server("last")

    async def answer(spawner: Any, _: str) -> bytes:
        assert spawner.server is not None
        await asyncio.sleep(0)
        # All slots were taken when this server was ready.
        stopping.server = None
        return json.dumps(GOOD).encode()

    async def run() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        board = board_of(answer)
        found = await board.read([*(server(f"user{number}") for number in range(16)), stopping])
        gc.collect()
        return found

    found = asyncio.run(run())
    assert len(found) == 16
    assert not problems


def test_a_service_is_not_asked() -> None:
    asked: list[str] = []

    async def answer(spawner: Any, token: str) -> bytes:
        asked.append(spawner.user.name)
        return json.dumps(GOOD).encode()

    service = server("ada")
    service.user_options = {"service": "files"}

    async def run() -> None:
        await board_of(answer).read([service, server("bob")])

    asyncio.run(run())
    assert asked == ["bob"]
