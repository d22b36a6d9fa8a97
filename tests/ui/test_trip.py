"""The first visit, from login to home: by keyboard, and by mouse in a narrow window; the panel at all sizes.

`make campaign NAME=trip` goes all ways.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_process import HubProcess
from playwright.sync_api import Browser, Page, expect
from test_hub_pages import serious_findings
from trip_page import COLORS, HANDS, WINDOWS, ZONES, Trip, Way, all_ways

pytestmark = pytest.mark.browser

_WAYS = (
    Way("keyboard", "UTC", "1400", "light"),
    Way("mouse", "America/Los_Angeles", "320", "forced"),
)
#: From Start to the first sentence about a score.
_SENTENCE_S = 60.0
_TABS = ("Saturation", "Workloads", "Runs", "Vetting", "Job")
#: From the widest: in a window that grows again, the panel stays in the main area.
_SIZES = sorted(((width, height) for width, height, _ in WINDOWS.values()), reverse=True)


@pytest.fixture
def trip(
    request: pytest.FixtureRequest,
    hub: HubProcess,
    browser: Browser,
    state: Path,
    screenshot: Callable[[Page, str], Path],
) -> Iterator[Trip]:
    """The first visit of a user."""
    trip = Trip(request.param, hub, state, browser, screenshot)
    yield trip
    trip.close()
    trip.stop_server()


def test_twelve_ways_of_the_campaign_have_each_pair_of_values() -> None:
    dimensions = (HANDS, tuple(ZONES), tuple(WINDOWS), tuple(COLORS))
    for number, values in enumerate(dimensions):
        for other in range(number):
            met = {(_values(way)[number], _values(way)[other]) for way in all_ways()[:12]}
            assert len(met) == len(values) * len(dimensions[other])
    assert len(set(all_ways())) == len(all_ways()) == 72


def _values(way: Way) -> tuple[str, ...]:
    return (way.hand, way.zone, way.window, way.colors)


@pytest.mark.parametrize("trip", _WAYS, ids=str, indirect=True)
def test_from_login_to_the_first_sentence_a_launch_a_batch_notebook_and_home(
    trip: Trip, screenshot: Callable[[Page, str], Path]
) -> None:
    trip.go()
    assert trip.seconds_to_sentence < _SENTENCE_S
    if trip.way == _WAYS[0]:
        _look_at_the_panel(trip.page, trip, screenshot)
        assert trip.lab.errors == []


def _look_at_the_panel(page: Page, trip: Trip, screenshot: Callable[[Page, str], Path]) -> None:
    """Open each tab: nothing serious for axe-core, and nothing wider than the panel at any size."""
    for name in _TABS:
        trip.lab.open_section(name)
        found = serious_findings(page, "#gipfel-panel")
        assert not found, f"{name}: {json.dumps(found, indent=1)}"
        trip.assert_fits(trip.panel, name)
        screenshot(page, f"61-panel-{name.lower()}")
    trip.lab.open_section("Saturation")
    # In a narrow window, the panel would not cover the job page.
    page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text="Launcher").click()
    page.emulate_media(forced_colors="active")
    screenshot(page, "62-forced-colours")
    page.emulate_media(forced_colors="none")
    for width, height in _SIZES:
        page.set_viewport_size({"width": width, "height": height})
        # Without room for a sidebar, the panel opens in the main area.
        shown = page.locator("#gipfel-wide-panel") if width < 640 else trip.lab.panel
        expect(shown).to_be_visible()
        trip.assert_fits(shown, f"{width} pixels")
        screenshot(page, f"63-lab-{width}")
    page.set_viewport_size({"width": 1400, "height": 900})
    for command, kind in (("Open the Table of Runs", "runs"), ("Open the Job Page", "job")):
        trip.call(command)
        main = page.locator("#jp-main-dock-panel")
        expect(main.locator({"runs": ".jp-Gipfel-runs", "job": ".jp-Gipfel-job"}[kind]).first).to_be_visible()
        found = serious_findings(page, "#jp-main-dock-panel")
        assert not found, f"{kind}: {json.dumps(found, indent=1)}"
        screenshot(page, f"64-{kind}")
