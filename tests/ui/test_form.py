"""The spawn form in a browser: presets, keyboard, a new environment, errors at their fields."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_pages import HubPages, write_environment
from hub_process import HubProcess
from package_images import put
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, expect
from test_hub_pages import serious_findings

from gipfel_spawner.form.page import environment_fields

pytestmark = pytest.mark.browser

_USER = "hedy"
_PACKAGES = "".join(
    f"Package: {name}\nStatus: install ok installed\nVersion: 1.0\nArchitecture: amd64\n\n"
    for name in ("bash", "dpkg")
)
_NOTED = 'workdir = "/tmp"\n[annotations]\nhooks.aws_ofi_nccl.enabled = "true"\n'

# Then what the form offers is this machine's.
_MAY_HAVE_GPUS = any(Path(each).exists() for each in ("/dev/nvidiactl", "/dev/kfd"))
_ASK_START = "options => window.gipfelForm.ask('expected-start', options)"
Screenshot = Callable[[Page, str], Path]


@pytest.fixture(scope="module")
def pages(hub: HubProcess, new_page: Callable[[], Page], state: Path) -> Iterator[HubPages]:
    """A user with environments: a good one, with a note, with an image, without its image."""
    write_environment(state, _USER, "plain", 'workdir = "/tmp"\n[env]\nGREETING = "grüezi"\n')
    write_environment(state, _USER, "noted", _NOTED)
    packages = {"etc/os-release": "ID=debian\nVERSION_ID=12\n", "var/lib/dpkg/status": _PACKAGES}
    image = put(state / "form-image", packages)
    write_environment(state, _USER, "judged", f'image = "{image}"\n')
    write_environment(state, _USER, "lost-image", '# an image\nimage = "/nowhere/lost.sqsh"\n')
    hub.user(_USER)
    pages = HubPages(new_page(), hub.url)
    pages.page.on("pageerror", lambda error: pages.errors.append(f"{pages.page.url}: {error.stack}"))
    pages.login(_USER, hub.password)
    yield pages
    pages.page.close()


def start_words(page: Page) -> Locator:
    """The line that says when the job would start."""
    return page.locator("#gipfel-start")


def test_the_form_fills_itself_from_what_there_is(pages: HubPages, screenshot: Screenshot) -> None:
    pages.open_form()
    page = pages.page
    presets = page.get_by_role("group", name="Presets").get_by_role("button")
    expect(presets).to_have_count(3)
    if not _MAY_HAVE_GPUS:
        expect(presets.filter(has_text="needs 1 GPU; this machine has none")).to_have_count(2)
        expect(presets.nth(1)).to_be_disabled()
        expect(page.get_by_text("This machine has no GPU.")).to_be_visible()
        refused = page.evaluate(_ASK_START, {"gpus": 1})
        assert refused["problem"] == "This machine has no GPU, 1 was requested. Request 0 GPUs."
    presets.first.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert presets.first.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    expect(start_words(page)).to_have_text("now")
    expect(page.locator("#gipfel-summary")).to_have_text("no container · no GPU on local · 2 h")
    # This machine is one node of one partition: there is nothing to choose.
    expect(page.get_by_label("Nodes", exact=True)).to_be_hidden()
    expect(page.get_by_label("Partition", exact=True)).to_be_hidden()
    expect(page.locator("#gipfel-partitions tbody tr")).to_have_count(1)
    screenshot(page, "21-form-presets")


def test_the_form_is_readable_in_the_dark_and_in_a_narrow_window(
    pages: HubPages, screenshot: Screenshot
) -> None:
    page = pages.page
    page.emulate_media(color_scheme="dark")
    pages.open_form()
    page.get_by_label("Environment", exact=True).select_option("noted")
    expect(page.locator("#gipfel-edf-state")).to_contain_text("1 note")
    screenshot(page, "22-form-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 320, "height": 900})
    page.locator("#gipfel-more summary").click()
    # Nothing is wider than the window.
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.screenshot(path=str(screenshot(page, "23-form-narrow")), full_page=True)
    page.locator("#gipfel-new-open").click()
    page.locator("#gipfel-new-fields > summary").click()
    assert page.evaluate("document.querySelector('#gipfel-new').scrollWidth") <= 320
    page.keyboard.press("Escape")
    expect(page.locator("#gipfel-new")).to_be_hidden()
    page.set_viewport_size({"width": 1400, "height": 900})


def test_the_verdict_on_the_image_is_in_the_form(pages: HubPages, screenshot: Screenshot) -> None:
    page = pages.page
    for scheme, width in (("light", 1400), ("dark", 320)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        pages.open_form()
        page.get_by_label("Environment", exact=True).select_option("judged")
        found = page.locator(".gipfel-security")
        expect(found).to_have_attribute("data-level", "warn")
        expect(found).to_contain_text("1 critical, 1 of them with a fixed version; advisories 0 days old")
        expect(found).to_contain_text("1 excepted by Ada, the first until 2999-01-31")
        expect(found).to_contain_text("Policy of the site: report.")
        found.locator("summary").click()
        expect(found).to_contain_text("critical: CVE-2026-1 in bash 1.0, fixed in 99.1")
        expect(found).to_contain_text("until 2999-01-31: no packages are installed here")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found.scroll_into_view_if_needed()
        screenshot(page, f"24-form-security-{scheme}-{width}")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1400, "height": 900})
    page.get_by_label("Environment", exact=True).select_option("plain")
    expect(page.locator("#gipfel-edf-state")).to_contain_text("✓ valid")
    expect(page.locator(".gipfel-security")).to_have_count(0)


def test_an_environment_is_checked_before_it_is_started(pages: HubPages, screenshot: Screenshot) -> None:
    pages.open_form()
    page = pages.page
    state = page.locator("#gipfel-edf-state")
    page.get_by_label("Environment", exact=True).select_option("plain")
    expect(state).to_contain_text("✓ valid")
    state.get_by_text("Show the resolved environment").click()
    expect(state.locator("pre")).to_contain_text("env.GREETING  grüezi")
    page.get_by_label("Environment", exact=True).select_option("lost-image")
    expect(state).to_contain_text("✗ Error (line 2, image)")
    expect(state).not_to_contain_text("1 error")
    start = page.get_by_role("button", name="Start")
    expect(start).not_to_have_class(re.compile("btn-jupyter"))
    expect(state).to_contain_text("/nowhere/lost.sqsh")
    # Below the path's field, where it is the path that can't be used.
    path = page.get_by_label("…or path to an EDF")
    path.fill("/nowhere/x.toml")
    expect(path).to_have_attribute("aria-invalid", "true")
    expect(path).to_have_attribute("aria-errormessage", "gipfel-edf-state")
    boxes = [each.bounding_box() or {"y": 0} for each in (path, state)]
    assert boxes[0]["y"] < boxes[1]["y"]
    screenshot(page, "24-form-checked")
    path.fill("")
    page.get_by_label("Environment", exact=True).select_option("plain")
    expect(start).to_have_class(re.compile("btn-jupyter"))


def test_a_time_says_what_it_means(pages: HubPages, screenshot: Screenshot) -> None:
    pages.open_form()
    time, words = pages.page.get_by_label("Time", exact=True), pages.page.locator("#gipfel-time-words")
    for given, meant in (("1:00", "= 1 min."), ("2h", "= 2 h."), ("90 min", "= 1 h 30 min."), ("", "")):
        time.fill(given)
        expect(words).to_have_text(meant)
        assert time.evaluate("each => each.checkValidity()")
        if given == "2h":
            for scheme in ("dark", "light"):
                pages.page.emulate_media(color_scheme=scheme)
                time.scroll_into_view_if_needed()
                screenshot(pages.page, f"09-form-time-{scheme}")
    time.fill("2 moons")
    expect(words).to_have_text("✗ not a valid time:")
    assert not time.evaluate("each => each.checkValidity()")


def test_data_to_copy_is_named_by_paths_and_storage_classes(pages: HubPages, screenshot: Screenshot) -> None:
    page = pages.page
    pages.open_form()
    page.locator("#gipfel-more summary").click()
    field = page.get_by_label("Copy data to the nodes first")
    for text, valid in (("imagenet.sqsh", False), ("/scratch/a shared:imagenet.sqsh", True)):
        field.fill(text)
        assert field.evaluate("each => each.validity.valid") is valid
    screenshot(page, "25-form-stage")
    field.fill("")


def test_a_mistake_is_shown_at_its_field(pages: HubPages, screenshot: Screenshot) -> None:
    pages.open_form()
    page = pages.page
    # What the browser itself refuses is let through, as an older browser would.
    page.locator("#spawn_form").evaluate("form => { form.noValidate = true; }")
    gpus = page.get_by_label("GPUs per node")
    gpus.fill("999")
    expect(gpus).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#gipfel-start")).to_have_text("unknown (fix “GPUs per node” above)")
    gpus.fill("0")
    expect(gpus).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Time", exact=True).fill("soon")
    pages.start()
    time = page.get_by_label("Time", exact=True)
    expect(time).to_have_attribute("aria-invalid", "true")
    expect(time).to_be_focused()
    # What was typed is there again, the wrong word, too.
    expect(time).to_have_value("soon")
    expect(page.locator("#gipfel-time-error")).to_contain_text("'soon' is not a valid time limit")
    screenshot(page, "25-form-mistake")
    assert serious_findings(page) == []
    time.fill("30")
    expect(time).not_to_have_attribute("aria-invalid", "true")


def test_an_environment_is_pasted_checked_saved_and_chosen(
    pages: HubPages, state: Path, screenshot: Screenshot
) -> None:
    pages.open_form()
    page = pages.page
    page.locator("#gipfel-new-open").click()
    text = page.get_by_label("The file (TOML)")
    said = page.locator("#gipfel-new-state")
    text.fill('workdir = "/tmp"\nmount = ["/tmp:/data"]\nimage = 3\n')
    page.get_by_role("button", name="Check").click()
    expect(said).to_contain_text("✗ 1 error")
    expect(said).to_contain_text("line 3, image")
    expect(said).to_contain_text("line 2, mount")
    expect(text).to_have_attribute("aria-invalid", "true")
    screenshot(page, "26-form-new-environment")
    text.fill('workdir = "/tmp"\n')
    page.get_by_role("button", name="Save and use").click()
    expect(said).to_contain_text("Enter a name")
    page.get_by_label("Save as").fill("mine")
    page.get_by_role("button", name="Save and use").click()
    expect(said).to_contain_text("✓ Saved as")
    path = state / "users" / _USER / ".edf" / "mine.toml"
    assert path.read_text() == 'workdir = "/tmp"\n'
    assert path.stat().st_mode & 0o777 == 0o600
    expect(page.get_by_label("Environment", exact=True)).to_have_value("mine")
    # A second time only on purpose.
    text.fill('workdir = "/"\n')
    page.get_by_role("button", name="Save and use").click()
    expect(said).to_contain_text("exists already")
    assert path.read_text() == 'workdir = "/tmp"\n'
    page.get_by_role("button", name="Overwrite").click()
    expect(said).to_contain_text("✓ Saved as")
    assert path.read_text() == 'workdir = "/"\n'
    page.keyboard.press("Escape")
    expect(page.locator("#gipfel-summary")).to_contain_text("mine · ")


def test_an_environment_is_made_of_the_schemas_fields(pages: HubPages) -> None:
    pages.open_form()
    page = pages.page
    page.locator("#gipfel-new-open").click()
    page.locator("#gipfel-new-fields > summary").click()
    titles = {each.key: each.title for each in environment_fields().values()}
    variables = page.get_by_label(titles["env"], exact=True)
    page.get_by_label(titles["workdir"], exact=True).fill("/tmp")
    page.get_by_label(titles["mounts"], exact=True).fill("/tmp:/data\n/var/tmp:/more:ro")
    variables.fill('A=1\nB=say "hi"')
    page.get_by_role("button", name="Generate the file below").click()
    text = page.get_by_label("The file (TOML)")
    expect(text).to_have_value(re.compile(r'B = "say \\"hi\\""'))
    expect(page.locator("#gipfel-new-state")).to_contain_text("✓ valid")
    variables.fill("NOT-A-NAME=1")
    page.get_by_role("button", name="Generate the file below").click()
    expect(variables).to_have_attribute("aria-invalid", "true")


def test_two_clicks_start_a_preset_and_it_is_the_last_one(
    pages: HubPages, hub: HubProcess, screenshot: Screenshot
) -> None:
    pages.open_form()
    page = pages.page
    page.get_by_role("button", name="CPU only").click()
    expect(page.get_by_role("button", name="CPU only")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Time", exact=True)).to_have_value("30")
    page.get_by_role("button", name="Start").click()
    pages.wait_for_lab()
    hub.user(_USER).stop_server()
    pages.open_form()
    last = page.get_by_role("button", name="Last")
    expect(last).to_contain_text("0 GPUs · 30 min")
    expect(page.get_by_label("Time", exact=True)).to_have_value("30")
    screenshot(page, "27-form-last")


def test_a_preset_is_started_by_keyboard_alone(hub: HubProcess, new_page: Callable[[], Page]) -> None:
    user = hub.user("ida")
    page = new_page()
    try:
        HubPages(page, hub.url).login("ida", hub.password)
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement?.className.includes('gipfel-preset')"):
                break
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Start")).to_be_focused()
        page.keyboard.press("Enter")
        waiting = HubPages(page, hub.url)
        steps: list[str] = []

        def look(_: Page) -> None:
            # The page leaves for the lab at any moment.
            with contextlib.suppress(PlaywrightError):
                steps.extend(page.locator("#gipfel-steps").all_inner_texts())

        waiting.wait_for_lab(look)
        # Without an image there is no container to wait for, neither as a step nor in words.
        assert any("server" in each for each in (*steps, *waiting.told))
        assert not [each for each in (*steps, *waiting.told) if "container" in each]
    finally:
        page.close()
        user.stop_server()


def test_two_named_servers_run_two_environments(hub: HubProcess, pages: HubPages) -> None:
    user = hub.user(_USER)
    for edf in ("plain", "mine"):
        answer = hub.call("POST", f"/users/{_USER}/servers/{edf}", json={"edf": edf})
        assert answer.status_code in {201, 202}, answer.text
    try:
        servers = hub.wait_for_servers(_USER, "plain", "mine")
        assert {name: each["user_options"]["edf"] for name, each in servers.items()} == {
            "plain": "plain",
            "mine": "mine",
        }
    finally:
        for edf in ("plain", "mine"):
            hub.call("DELETE", f"/users/{_USER}/servers/{edf}", json={"remove": True})
    assert user.server() is None


def test_the_page_threw_nothing(pages: HubPages) -> None:
    assert not [each for each in pages.errors if "/hub/" in each.partition(": ")[0]]
