"""Nodes that are vetted before a server starts, on the hub's pages: the form, the wait, the refusal."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_pages import HubPages
from hub_process import HubProcess
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

_USER = "vera"
# In the place of the shipped one of this name: this user's own.
_QUICK = """\
name: quick
checks:
- {name: shared memory, type: shared_memory, parameters: {min_free: 1 MiB, write: 1 MiB}}
- name: memory bandwidth
  type: memory_bandwidth
  time_limit: 60 s
  parameters: {device: cpu, bytes: 64 MiB, samples: 5, seconds: 0.5}
  threshold: {at_least: 1 kB/s}
- {name: variable, type: environment, parameters: {expected: {NOT_SET_HERE: "1"}}}
"""


def test_a_node_that_is_not_fit_is_told_while_it_is_vetted_and_named_at_the_end(
    hub: HubProcess, new_page: Callable[[], Page], state: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    folder = state / "users" / _USER / ".gipfel" / "protocols"
    folder.mkdir(mode=0o700, parents=True)
    (folder / "quick.yaml").write_text(_QUICK)
    hub.user(_USER)
    pages = HubPages(new_page(), hub.url)
    page = pages.page
    pages.login(_USER, hub.password)
    # On a machine of one node the field is hidden; a link that names several nodes shows it.
    page.goto(f"{hub.url}/hub/spawn?nodes=2")
    vet, action = page.get_by_label("Vet the nodes first"), page.get_by_label("If a node fails the vetting")
    nodes = page.get_by_label("Nodes", exact=True)
    # What follows is asked where something is vetted; shrink needs several nodes.
    nodes.fill("1")
    expect(action).to_be_disabled()
    vet.select_option("quick")
    expect(action).to_be_enabled()
    expect(action).to_have_value("abort")
    expect(action.locator("option[value=shrink]")).to_be_disabled()
    nodes.fill("2")
    action.focus()
    page.keyboard.press("ArrowDown")
    expect(action).to_have_value("shrink")
    screenshot(page, "35-vet-first-shrink")
    nodes.fill("1")
    expect(action).to_have_value("abort")
    screenshot(page, "35-vet-first-form")
    pages.start()
    steps = page.locator("#gipfel-steps")
    expect(steps).to_contain_text("vetting")
    said = page.locator("#progress-message")
    expect(said).to_contain_text("Vetting by quick: 0 of 1 node done")
    # The check of the variable may have failed before the page is told that a check runs.
    expect(said.locator("li")).to_contain_text(re.compile("waiting|runs"))
    expect(steps.locator("[aria-current=step]")).to_contain_text("vetting (now)")
    screenshot(page, "36-vet-first-waiting")
    failure = page.locator("#progress-message .gipfel-failure")
    expect(failure).to_contain_text("not of the nodes: 1 of 1 nodes not fit by quick")
    expect(failure).to_contain_text("variable: NOT_SET_HERE is not set")
    expect(steps).to_contain_text("vetting (failed)")
    screenshot(page, "37-vet-first-failed")
    # Who changes and tries again finds what was chosen.
    pages.open_form()
    expect(page.get_by_label("Vet the nodes first")).to_have_value("quick")
    expect(page.get_by_label("If a node fails the vetting")).to_have_value("abort")
    page.close()
