"""Fixtures of the browser tests: a hub as ``make up`` runs it, Chromium, and a directory for screenshots."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import images as image_builder
import pytest
from hub_process import HubProcess, proxy_folder
from images import Images
from kept_runtime import runtime_for_tests
from package_images import mirror
from playwright.sync_api import Browser, Page, expect, sync_playwright

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import engine_for

_REPOSITORY = Path(__file__).resolve().parents[2]
#: Of Chromium.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: Screenshots of README's gallery by their names; ``GIPFEL_GALLERY=1 pytest tests/ui`` makes them again.
GALLERY = {
    "22-form-dark": "form",
    "32-home-score": "home",
    "09-widget": "notebook",
    "25-saturation-wide": "panel",
    "39-ended-launch": "launch",
    "32-batch-dialog": "batch",
    "33-vetting-faulty-component-dark": "vetting",
    "95-job-overview-light": "job",
    "95-job-topology-light": "topology",
    "report": "report",
}
_GALLERY_FOLDER = _REPOSITORY / "extension" / "screenshots"
_GALLERY_PIXELS, _GALLERY_COLORS = (1200, 1200), 128
_SLOWEST_MS = 60_000
# Five seconds, its default, are not enough for a lab on a machine that does other work too.
expect.set_options(timeout=_SLOWEST_MS)


def chromium() -> str | None:
    """``$CHROMIUM``, else the machine's own; None where there is neither."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with the reason where this machine has no browser."""
    if chromium() is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="No Chromium: apt-get install chromium."))


def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gipfel-ui-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def state() -> Iterator[Path]:
    """The shared hub's own folder, with the home directories of users who are not Unix users."""
    yield from _folder()


@pytest.fixture(scope="module")
def own_state() -> Iterator[Path]:
    """A folder for a hub that a module starts with a configuration of its own."""
    yield from _folder()


@pytest.fixture(scope="session")
def image(state: Path) -> Path | None:
    """An image without Python, None where this machine can't make or start one."""
    missing = engine_for(Edf(name="any", path=None, image="/any.sqsh"), "bubblewrap").unavailable_reason()
    built = image_builder.images_folder() / "debian.sqsh"
    if missing or (image_builder.missing() and not built.exists()):
        return None
    images: Images = image_builder.build_images()
    return images.debian


def _advisories(state: Path) -> dict[str, str]:
    """Make a mirror with two advisories on packages of every Debian image, and accept one of them."""
    found = []
    for name, package, complexity in (("CVE-2026-1", "bash", "L"), ("CVE-2026-2", "dpkg", "H")):
        affected = {
            "package": {"ecosystem": "Debian:12", "name": package},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}],
        }
        vector = f"CVSS:3.1/AV:N/AC:{complexity}/PR:N/UI:N/S:U/C:H/I:H/A:H"
        severity = [{"type": "CVSS_V3", "score": vector}]
        modified = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found.append({"id": name, "modified": modified, "severity": severity, "affected": [affected]})
    accepted = state / "exceptions.toml"
    accepted.write_text(
        '[[exception]]\nrule = "CVE-2026-2"\nreason = "no packages are installed here"\n'
        'until = 2999-01-31\nby = "Ada"\n'
    )
    return {
        "GIPFEL_ADVISORIES": str(mirror(state / "osv", *found)),
        "GIPFEL_SCAN_EXCEPTIONS": str(accepted),
    }


@pytest.fixture(scope="session")
def hub(state: Path, image: Path | None) -> Iterator[HubProcess]:
    """A hub with this project's own configuration and the local scheduler, shared by all modules.

    Each module has users of its own, and stops the servers that it started.
    """
    environment = {"GIPFEL_SCHEDULER": "local", "GIPFEL_CLUSTER": "workstation", **_advisories(state)}
    if image:
        environment["GIPFEL_RUNTIME"] = str(runtime_for_tests())
    with HubProcess(state, environment, proxy=proxy_folder()) as process:
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser with fresh data."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def new_page(browser: Browser) -> Iterator[Callable[[], Page]]:
    """Open a page of another person: no cookies, a light theme, a small laptop, and far from UTC."""
    contexts = []

    def open_page() -> Page:
        context = browser.new_context(
            viewport={"width": 1400, "height": 900},
            color_scheme="light",
            timezone_id="America/Los_Angeles",
        )
        context.set_default_timeout(_SLOWEST_MS)
        contexts.append(context)
        return context.new_page()

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def screenshot() -> Callable[[Page, str], Path]:
    """Take a picture of a page into ``build/screenshots``."""
    folder = _REPOSITORY / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> Path:
        path = folder / f"{name}.png"
        page.screenshot(path=path)
        if name in GALLERY and os.environ.get("GIPFEL_GALLERY"):
            _keep(path, _GALLERY_FOLDER / f"{GALLERY[name]}.png")
        return path

    return take


def _keep(picture: Path, target: Path) -> None:
    """Write a smaller copy of a picture, of fewer pixels and colors."""
    from PIL import Image  # noqa: PLC0415 - only to make the gallery

    target.parent.mkdir(exist_ok=True)
    copy = Image.open(picture).convert("RGB")
    copy.thumbnail(_GALLERY_PIXELS)
    # An octree keeps the few pixels of a color of its own, such as lines, which a median cut drops.
    copy.quantize(_GALLERY_COLORS, Image.Quantize.FASTOCTREE).save(target, optimize=True)
