"""A user's mistake is one line for the user, without a traceback in the hub's log."""

import threading
import time
from typing import Any

import pytest


def no_stack(hub: Any) -> bool:
    return "Traceback" not in (hub.folder / "hub.log").read_text()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "The body is not valid JSON."),
        (b"\xff\xfe", "The body is not valid JSON."),
        (b"[" * 30_000, "The body is not valid JSON."),
        (b"x" * 1_000_000, "The body is longer than 32768 bytes."),
        (b'{"edf": "/\\ud800"}', "is not valid: give the name of an environment, or a path"),
        (b'{"\\ud800": 1}', "The value for an option is not valid"),
        (b'{"gpus": true}', "The value for GPUs is not valid: give a number."),
        (b'{"gpus": NaN}', "The value for GPUs is not valid: give a whole number."),
        (b'{"memory": "much"}', "The value for the memory is not valid: give an amount such as 64G."),
        (b'{"time": "' + b"1" * 41 + b'"}', "give at most 40 characters"),
    ],
)
def test_options_that_cannot_be_are_one_line(hub: Any, body: bytes, said: str) -> None:
    hub.call("POST", "/users/mal")
    answer = hub.call("POST", "/users/mal/server", raw=body)
    assert answer.status == (413 if "longer" in said else 400)
    assert said in answer.content["message"]
    assert hub.server("mal") == {}
    assert no_stack(hub)


def test_a_link_that_is_no_text_is_one_line(hub: Any) -> None:
    status, page = hub.browser("mal").get("/hub/spawn/mal?opt-edf=%ff")
    assert status == 400
    assert "it is not UTF-8" in page
    assert no_stack(hub)


def test_an_environment_that_no_option_can_name_is_not_offered(hub: Any) -> None:
    folder = hub.user_home("odd") / ".edf"
    folder.mkdir()
    for name in ("good", "my env", "<b>"):
        (folder / f"{name}.toml").write_text("")
    _, page = hub.browser("odd").get("/hub/spawn")
    assert '<option value="good"' in page
    assert 'value="my env"' not in page
    assert "names have only letters" in page


@pytest.mark.parametrize("moment", [0.1, 0.3])
def test_a_start_that_is_stopped_at_once_is_one_line(hub: Any, moment: float) -> None:
    hub.call("POST", "/users/hasty")
    answers: list[Any] = []
    start = threading.Thread(target=lambda: answers.append(hub.call("POST", "/users/hasty/server", {})))
    start.start()
    time.sleep(moment)
    hub.call("DELETE", "/users/hasty/server")
    start.join(30)
    assert answers[0].status in {201, 202, 409}
    if answers[0].status == 409:
        assert answers[0].content["message"] == "The start was cancelled."
    hub.call("DELETE", "/users/hasty/server")
    assert no_stack(hub)
