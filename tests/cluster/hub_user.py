"""User of a hub who logs in, starts a server, and sends requests to it through the proxy."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import websocket
from kernel_client import Kernel

START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0


class HubUser:
    """Requests of one user to the hub and to the user's server, with an API token."""

    def __init__(self, url: str, name: str, token: str) -> None:
        self.url = url
        self.name = name
        self.token = token
        self._client = httpx.Client(
            base_url=url, headers={"Authorization": f"token {token}"}, timeout=60, trust_env=False
        )

    @classmethod
    def login(cls, url: str, name: str, password: str) -> "HubUser":
        """Log in through the login page and make a token, as a person would."""
        with _logged_in(url, name, password) as browser:
            made = browser.post(
                f"/hub/api/users/{name}/tokens",
                json={"note": "tests"},
                headers={"X-XSRFToken": _xsrf(browser)},
            )
            made.raise_for_status()
            return cls(url, name, made.json()["token"])

    def home_page(self, password: str) -> str:
        """Log in as a person would, and return the hub's home page."""
        with _logged_in(self.url, self.name, password) as browser:
            return browser.get("/hub/home").raise_for_status().text

    def request_server(self, options: dict[str, Any] | None = None) -> httpx.Response:
        """Request a server without waiting for it."""
        return self._client.post(f"/hub/api/users/{self.name}/server", json=options or {})

    def progress(self, limit_s: float = START_LIMIT_S) -> list[dict[str, Any]]:
        """Return the progress events of the waiting page, from now to the end of the start."""
        events = []
        end = time.monotonic() + limit_s
        with self._client.stream("GET", f"/hub/api/users/{self.name}/server/progress") as answer:
            if answer.status_code != 200:
                return []
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    events.append(json.loads(line[5:]))
                    if events[-1].get("ready") or events[-1].get("failed"):
                        break
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{self.name}'s server did not start within {limit_s:g} s: {events[-2:]}"
                    )
        return events

    def start_server(self, options: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Start a server and wait for it; returns the events of its start, as the waiting page gets them."""
        with ThreadPoolExecutor(1) as background:
            # The hub answers the request only after its first ten seconds, or at the end of the start.
            request = background.submit(self.request_server, options)
            events: list[dict[str, Any]] = []
            while not events and not request.done():
                time.sleep(0.1)
                events = self.progress()
            answer = request.result()
        assert answer.status_code in {201, 202}, answer.text
        events = events or self.progress()
        assert events[-1].get("ready"), events
        return events

    def server(self) -> dict[str, Any] | None:
        """Return the hub's model of the user's server, None if there is none."""
        model = self._client.get(f"/hub/api/users/{self.name}").raise_for_status().json()
        server: dict[str, Any] | None = (model.get("servers") or {}).get("")
        return server

    def stop_server(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Stop the server and wait until the hub reports that it has stopped."""
        self._client.delete(f"/hub/api/users/{self.name}/server")
        end = time.monotonic() + limit_s
        while self.server():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}'s server did not stop within {limit_s:g} s.")
            time.sleep(0.3)

    def request(self, path: str, *, owner: str = "", method: str = "GET", **options: Any) -> httpx.Response:
        """Send a request to a user's server (by default this user's) through the proxy."""
        return self._client.request(method, f"/user/{owner or self.name}/{path}", **options)

    def websocket(self, path: str, *, owner: str = "", token: str | None = None) -> websocket.WebSocket:
        """Open a websocket to a user's server through the proxy; an empty `token` sends none."""
        token = self.token if token is None else token
        return websocket.create_connection(
            f"ws://{urlsplit(self.url).netloc}/user/{owner or self.name}/{path}",
            header=[f"Authorization: token {token}"] if token else [],
            timeout=60,
            http_no_proxy=["127.0.0.1"],
        )

    def kernel(self, name: str = "python3") -> Kernel:
        """Start a kernel on the user's server."""
        answer = self.request("api/kernels", method="POST", json={"name": name})
        answer.raise_for_status()
        kernel = answer.json()["id"]
        return Kernel(self.websocket(f"api/kernels/{kernel}/channels"))

    def close(self) -> None:
        """Stop the server, if there is one, and close the connection."""
        try:
            if self.server():
                self.stop_server()
        finally:
            self._client.close()


@contextmanager
def _logged_in(url: str, name: str, password: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30, follow_redirects=True, trust_env=False) as browser:
        browser.get("/hub/login").raise_for_status()
        # A cookie for the login page and, after it, another one for the pages behind it.
        form = {"username": name, "password": password, "_xsrf": _xsrf(browser)}
        browser.post("/hub/login?next=/hub/token", data=form).raise_for_status()
        yield browser


def _xsrf(browser: httpx.Client) -> str:
    # Two cookies of that name live at / and /hub/; the page's own is the longest path's.
    found = [cookie for cookie in browser.cookies.jar if cookie.name == "_xsrf" and cookie.value]
    found.sort(key=lambda cookie: len(cookie.path))
    return found[-1].value or "" if found else ""
