"""Responses of a real hub to a server that reports its port, and to users who open the form."""

import json
import re
from typing import Any

import pytest
from hub_servers import environment, start, until

from gipfel_spawner import EDFSpawner


@pytest.fixture(scope="module")
def waiting(hub: Any) -> Any:
    """The token of a server that has not given its port yet."""
    start(hub, "gerda", behaviour="wait")
    yield environment(hub, "gerda")["JUPYTERHUB_API_TOKEN"]
    hub.call("DELETE", "/users/gerda/server")
    until(lambda: hub.server("gerda") == {}, 30, hub)


class TestCallback:
    """Only the starting server's own token can give a port, once."""

    def give(self, hub: Any, token: str, content: Any = None, raw: bytes | None = None) -> int:
        status: int = hub.call("POST", "/gipfel/server", content, token=token, raw=raw).status
        return status

    def test_no_trait_of_the_spawner_can_be_set(self, hub: Any, waiting: str) -> None:
        for name in sorted(
            {*EDFSpawner.class_trait_names(), "_port_taken", "api_token", "user", "__class__"}
        ):
            if name != "port":
                assert self.give(hub, waiting, {name: 8888}) == 400, name
                assert self.give(hub, waiting, {"port": 8888, name: 8888}) == 400, name
        assert hub.server("gerda")["pending"] == "spawn"

    @pytest.mark.parametrize(
        "port",
        [0, 1, 80, 1023, 65536, -8888, "8888", 8888.0, 8888.5, True, None, [8888], {"port": 1}, 10**30],
    )
    def test_a_port_is_a_whole_number_in_range(self, hub: Any, waiting: str, port: Any) -> None:
        assert self.give(hub, waiting, {"port": port}) == 400

    @pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"8888", b"{", b'"port"', b"\xff\xfe"])
    def test_a_body_is_one_object(self, hub: Any, waiting: str, raw: bytes) -> None:
        assert self.give(hub, waiting, raw=raw) == 400

    def test_other_tokens_are_refused(self, hub: Any, waiting: str) -> None:
        hub.call("POST", "/users/hilde")
        other = hub.call("POST", "/users/hilde/tokens", {}).content["token"]
        own = hub.call("POST", "/users/gerda/tokens", {}).content["token"]
        for token in (other, own, hub.token, "wrong", ""):
            assert self.give(hub, token, {"port": 8888}) == 403, token

    def test_batchspawners_route_is_gone(self, hub: Any, waiting: str) -> None:
        answer = hub.call("POST", "/batchspawner", {"cmd": ["x"]}, token=waiting)
        assert answer.status == 404

    def test_a_replay_is_refused(self, hub: Any, waiting: str) -> None:
        (hub.user_home("gerda") / "behaviour").unlink()
        until(lambda: hub.ready("gerda"), 20, hub)
        assert self.give(hub, waiting, {"port": 8888}) == 403
        # A second server of the same user starts, and its token differs.
        (hub.user_home("gerda") / "behaviour").write_text("wait")
        hub.call("POST", "/users/gerda/servers/two", {})
        assert self.give(hub, waiting, {"port": 8888}) == 403
        hub.call("DELETE", "/users/gerda/servers/two")


class TestForm:
    def test_the_form_shows_what_there_is(self, hub: Any) -> None:
        status, page = hub.browser("ida").get("/hub/spawn")
        assert status == 200
        for name in ("edf", "edf_path", "gpus", "nodes", "time", "partition"):
            assert re.search(rf'<label[^>]* for="gipfel-{name.replace("_", "-")}"', page), name
            assert f'name="{name}"' in page
        assert re.search(r"local: (\d+ of \d+ \S+ idle · )?1 of 1 nodes idle", page)

    def test_a_mistake_comes_back_in_the_form_escaped(self, hub: Any) -> None:
        browser = hub.browser("jan")
        browser.get("/hub/spawn")
        form = {"edf": "", "edf_path": "<script>alert(1)</script>", "gpus": "0", "nodes": "1", "time": "1:00"}
        status, page = browser.post(f"/hub/spawn?_xsrf={browser.xsrf()}", form)
        assert status == 400
        assert "The value for the environment" in page
        assert "<script>alert" not in page
        status, page = browser.post(
            f"/hub/spawn?_xsrf={browser.xsrf()}", {**form, "edf_path": "", "cmd": "sh"}
        )
        assert status == 400
        assert "There is no option" in page

    def test_a_link_brings_no_path(self, hub: Any) -> None:
        browser = hub.browser("kai")
        status, page = browser.get("/hub/spawn?opt-edf=/tmp/evil.toml")
        assert status == 400
        assert "A link can" in page
        assert not hub.job("kai")

    @pytest.mark.parametrize(
        ("query", "shown"),
        [("time=3:21:00", "3:21:00"), ("opt-time=4:32:00", "4:32:00"), ("edf=", "2:00:00")],
    )
    def test_a_link_fills_the_form_and_starts_nothing(self, hub: Any, query: str, shown: str) -> None:
        browser = hub.browser("mia")
        status, page = browser.get(f"/hub/spawn/mia?{query}")
        assert status == 200
        assert "A link does not start a server. Check the options and press Start." in page
        assert f'value="{shown}"' in page
        assert hub.server("mia") == {}
        assert 'value="2:00:00"' in browser.get("/hub/spawn")[1]

    def test_the_form_starts_a_server(self, hub: Any) -> None:
        browser = hub.browser("lea")
        browser.get("/hub/spawn")
        form = {"edf": "", "edf_path": "", "gpus": "0", "nodes": "1", "time": "1:00:00", "partition": "local"}
        status, _ = browser.post(f"/hub/spawn?_xsrf={browser.xsrf()}", form)
        assert status == 200
        until(lambda: hub.ready("lea"), 30, hub)
        assert json.loads(environment(hub, "lea")["GIPFEL_JOB"])["options"]["time"] == "1:00:00"
        hub.call("DELETE", "/users/lea/server")
