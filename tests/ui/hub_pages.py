"""Page objects of the hub: login, spawn form, waiting page."""

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Error, Page, expect

_START_LIMIT_S = 120.0


class HubPages:
    """Login, form and waiting page of one user, in one tab."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.told: list[str] = []
        self.errors: list[str] = []

    def login(self, name: str, password: str) -> None:
        """Log in; a user without a server gets to the form."""
        self.page.goto(f"{self.url}/hub/login?next=/hub/spawn")
        self.page.get_by_label("Username").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator("#spawn_form")).to_be_visible()

    def open_form(self) -> None:
        """Go to the form again."""
        self.page.goto(f"{self.url}/hub/spawn")
        expect(self.page.locator("#spawn_form")).to_be_visible()

    def fill(self, *, edf: str = "", path: str = "", gpus: int = 0, time: str = "30") -> None:
        """Fill the form; nodes and partition keep what they show."""
        self.page.get_by_label("Environment", exact=True).select_option(edf)
        self.page.get_by_label("…or path to an EDF").fill(path)
        self.page.get_by_label("GPUs per node").fill(str(gpus))
        self.page.get_by_label("Time", exact=True).fill(time)

    def start(self) -> None:
        """Press the form's button."""
        self.page.get_by_role("button", name="Start").click()

    def wait_for_lab(self, on_news: Callable[[Page], object] = lambda page: None) -> None:
        """Follow the waiting page to the lab, and keep what it told; `on_news` is called for each line."""
        self.page.wait_for_url(re.compile(r"/hub/spawn-pending/|/lab"))
        end = time.monotonic() + _START_LIMIT_S
        while "/lab" not in self.page.url and time.monotonic() < end:
            for words in self._news():
                self.told.append(words)
                on_news(self.page)
            self.page.wait_for_timeout(100)
        assert "/lab" in self.page.url, self.told

    def _news(self) -> list[str]:
        with contextlib.suppress(Error):  # the page may be left at any moment
            said = self.page.locator("#progress-message").all_inner_texts()
            return [words for words in map(str.strip, said) if words and words not in self.told]
        return []

    def alert(self) -> str:
        """Return the line on what was wrong: in the form, or where users wait if the answer took longer."""
        late = self.page.locator("#progress-message", has_text="Spawn failed")
        # Still later, the page where users wait has been replaced by that of a failed start.
        failed = self.page.locator(".alert-danger[role=alert]")
        alert = self.page.locator(".spawn-error-msg").or_(failed).or_(late)
        expect(alert).to_be_visible()
        if late.count():
            # What can be done next stands below it.
            return str(late.evaluate("node => node.firstChild.textContent")).strip()
        return alert.inner_text().strip()


def write_environment(state: Path, user: str, name: str, lines: str) -> None:
    """Write ``~/.edf/<name>.toml`` of a user who is not a Unix user."""
    folder = state / "users" / user / ".edf"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(lines)
