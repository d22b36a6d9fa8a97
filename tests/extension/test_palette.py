"""One palette, readable on light and dark pages and in grey, and one style of controls in all views."""

import io
import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from gipfel_extension.saturation import LOSSES
from gipfel_extension.telemetry.figures import lines
from gipfel_extension.telemetry.figures.image import static_image
from gipfel_extension.telemetry.figures.palette import (
    AREAS,
    DEVICES,
    HEAT,
    MARK,
    PAGE,
    RANKS,
    STATES,
    WARNING,
    text_color,
)
from gipfel_extension.telemetry.figures.score_figures import score_figure, shares_figure

EXTENSION = Path(__file__).resolve().parents[2] / "extension"
sys.path.insert(0, str(EXTENSION))

import generate_api  # noqa: E402

#: What WCAG 2.2 asks of graphics (1.4.11) and of text (1.4.3).
GRAPHICS, TEXT = 3.0, 4.5
#: Difference of CIE lightness in which two areas or lines are told apart in grey.
STEP = 9.5
THEMES = (False, True)


def luminance(color: str) -> float:
    """Return the relative luminance of ``#rrggbb``, as WCAG defines it."""
    parts = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(first: str, second: str) -> float:
    low, high = sorted(luminance(each) for each in (first, second))
    return (high + 0.05) / (low + 0.05)


def lightness(color: str) -> float:
    """Return CIE L*, from 0 to 100: what remains of a color in grey."""
    share = luminance(color)
    return 116 * share ** (1 / 3) - 16 if share > 0.008856 else 903.3 * share


def mixed(color: str, other: str, share: float) -> str:
    """Return what ``color-mix(in srgb, …)`` makes of two colors."""
    both = (
        share * int(color[at : at + 2], 16) + (1 - share) * int(other[at : at + 2], 16) for at in (1, 3, 5)
    )
    return "#" + "".join(f"{round(each):02x}" for each in both)


def oklch(light: float, chroma: float, hue: float) -> str:
    """Return a color by Björn Ottosson's formula, cut to sRGB."""
    a, b = (chroma * part for part in (np.cos(np.radians(hue)), np.sin(np.radians(hue))))
    cubes = np.array(
        [
            light + 0.3963377774 * a + 0.2158037573 * b,
            light - 0.1055613458 * a - 0.0638541728 * b,
            light - 0.0894841775 * a - 1.2914855480 * b,
        ]
    )
    matrix = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(matrix @ cubes**3, 0, 1)
    shown = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * float(each)):02x}" for each in shown)


def too_alike(styles: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of (name, color, dash or hatching) that look the same in grey."""
    return [
        (one[0], two[0])
        for one, two in itertools.combinations(styles, 2)
        if one[2] == two[2] and abs(lightness(one[1]) - lightness(two[1])) < STEP
    ]


@pytest.mark.parametrize("dark", THEMES)
def test_resources_score_and_losses_differ_in_grey_and_from_the_page(dark):
    styles = [(name, pair[dark], pair[2]) for name, pair in AREAS.items()]
    assert too_alike(styles) == []
    assert [name for name, color, _ in styles if contrast(color, PAGE[dark]) < GRAPHICS] == []


@pytest.mark.parametrize("dark", THEMES)
@pytest.mark.parametrize(
    "group", ["GPU_LINES", "FURTHER_LINES", "HOST_LINES", "IO_LINES", "LINK_LINES", "CLOCK_LINES"]
)
def test_lines_of_a_plot_differ_in_grey_and_from_the_page(dark, group):
    # Further lines are drawn beside those of a GPU.
    drawn = (*(lines.GPU_LINES if group == "FURTHER_LINES" else ()), *getattr(lines, group))
    styles = [(line.metric, line.dark if dark else line.light, line.dash) for line in drawn]
    assert too_alike(styles) == []
    assert [name for name, color, _ in styles if contrast(color, PAGE[dark]) < GRAPHICS] == []


@pytest.mark.parametrize("dark", THEMES)
def test_devices_of_a_plot_differ_in_grey_and_from_the_page(dark):
    styles = [(str(place), style[dark], style[2]) for place, style in enumerate(DEVICES)]
    assert too_alike(styles) == []
    assert min(contrast(color, PAGE[dark]) for _, color, _ in styles) >= GRAPHICS


@pytest.mark.parametrize("dark", THEMES)
def test_a_heat_map_goes_one_way_in_equal_steps_and_0_is_not_the_page(dark):
    places, colors = zip(*HEAT[dark], strict=True)
    assert list(places) == [0.0, 0.25, 0.5, 0.75, 1.0]
    steps = np.diff([lightness(color) for color in colors])
    assert (np.sign(steps) == (1 if dark else -1)).all()
    assert np.abs(steps).min() >= STEP
    assert np.abs(steps).max() <= 1.5 * np.abs(steps).min()
    assert min(contrast(color, PAGE[dark]) for color in colors) >= GRAPHICS


@pytest.mark.parametrize("dark", THEMES)
def test_states_are_legible_as_text(dark):
    shown = [*(pair[dark] for pair in STATES.values()), WARNING[dark], MARK[dark], text_color(dark=dark)]
    assert min(contrast(color, PAGE[dark]) for color in shown) >= TEXT


def test_the_style_sheets_have_the_palette():
    assert generate_api.PALETTE.read_text() == generate_api.generate_palette(), (
        "Run `python generate_api.py` in extension/."
    )
    sheets = {path.name: path.read_text() for path in (EXTENSION / "style").rglob("*.css")}
    ranks = re.findall(r"--jp-gipfel-rank: (#\w+);", sheets["launch.css"])
    assert ranks == list(RANKS)
    # Every other color of a view is one of JupyterLab's, or stands in for it where there is no JupyterLab.
    own = {
        name: re.findall(r"(?<!, )#[0-9a-f]{6}\b", text)
        for name, text in sheets.items()
        if name not in {"palette.css", "launch.css"}
    }
    assert {name for name, found in own.items() if found} == set()
    used = set(re.findall(r"var\((--gipfel-[\w-]+)", "".join(sheets.values())))
    declared = set(re.findall(r"(--gipfel-[\w-]+):", "".join(sheets.values())))
    assert used - declared <= {"--gipfel-hue", "--gipfel-tone"}
    for index in ("index.js", "index.css"):
        assert "views/palette.css" in (EXTENSION / "style" / index).read_text()


def test_controls_of_all_views_have_one_style():
    classes = {"jp-Gipfel-button", "jp-Gipfel-icon", "jp-Gipfel-link", "jp-Gipfel-field"}
    # Tabs, terms, rows of tables and JupyterLab's status bar have styles of their containers.
    contained = {"tabs.tsx", "term.tsx", "ranks.tsx", "table.tsx", "item.tsx"}
    for path in (EXTENSION / "src").rglob("*.tsx"):
        text = path.read_text()
        assert "jp-mod-styled" not in text, path
        for kind, attributes in re.findall(r"<(button|select|input|textarea)\b(.*?)(?<!=)>", text, re.DOTALL):
            if re.search(r"type=\"(checkbox|radio)", attributes) or path.name in contained:
                continue
            found = set(re.findall(r"jp-Gipfel-\w+", attributes))
            assert found & classes, (path.name, kind, attributes)


@pytest.mark.parametrize("dark", THEMES)
def test_forced_colors_take_the_palette_of_the_page_that_the_browser_forces(dark):
    sheet = generate_api.generate_palette()
    scheme = "dark" if dark else "light"
    forced = sheet.partition(f"@media (forced-colors: active) and (prefers-color-scheme: {scheme})")[2]
    forced = forced.partition("\n}\n")[0]
    for name in LOSSES:
        assert f"--gipfel-{name.replace('_', '-')}: {AREAS[name][dark]};" in forced
        # The browser's own pages are white and black.
        assert contrast(AREAS[name][dark], "#000000" if dark else "#ffffff") >= GRAPHICS


@pytest.mark.parametrize("dark", THEMES)
def test_roles_of_the_topology_have_three_tones_that_differ_from_each_other_and_from_their_text(dark):
    sheet = (EXTENSION / "style/views/topology.css").read_text()
    lowest = float(re.findall(r"--gipfel-light: ([\d.]+);", sheet)[dark])
    text = ("#ffffff", "#111111")[dark]
    assert re.findall(r"--gipfel-on-fill: (#\w+);", sheet)[dark] in {text, "#fff", "#111"}
    for hue in range(0, 360, 15):
        tones = [oklch(lowest + 0.11 * tone, 0.1, hue) for tone in range(3)]
        assert min(contrast(color, PAGE[dark]) for color in tones) >= GRAPHICS
        assert min(contrast(color, text) for color in tones) >= TEXT
        assert too_alike([(str(place), color, "") for place, color in enumerate(tones)]) == []


def test_numbers_of_ranks_in_a_log_are_legible():
    for dark in THEMES:
        shown = [mixed(color, text_color(dark=dark), 0.7) for color in RANKS]
        assert min(contrast(color, PAGE[dark]) for color in shown) >= TEXT
    # In saved notebooks, on any page.
    assert min(contrast(color, PAGE[dark]) for color in RANKS for dark in THEMES) >= GRAPHICS


@pytest.mark.parametrize("dark", THEMES)
def test_images_are_drawn_in_the_palette(dark):
    losses = {"input": 20.0, "launch": 10.0, "occupancy": 10.0}
    document = {"score": 60.0, "losses": losses, "simulated": False}
    shares = shares_figure(
        np.arange(4) * 10**9, {"compute": np.full(4, 60.0), "input": np.full(4, 40.0)}, dark=dark
    )
    for figure, names in (
        (score_figure(document, dark=dark), ("score", *losses)),
        (shares, ("compute", "input")),
    ):
        pixels = _colors(static_image(figure, width=600))
        for name in names:
            assert AREAS[name][dark] in pixels, name
        assert PAGE[dark] in pixels


def _colors(image: bytes) -> set[str]:
    from PIL import Image  # noqa: PLC0415 - as the module that draws them

    picture = Image.open(io.BytesIO(image)).convert("RGB")
    counted = picture.getcolors(picture.width * picture.height) or []
    return {"#{:02x}{:02x}{:02x}".format(*color) for count, color in counted if count > 20}
