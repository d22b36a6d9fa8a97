"""Bounds of rules in plots: in the plot's unit, in the plots of their metric, read again after a change."""

from pathlib import Path

import pytest
from simulated_tables import simulated

from gipfel_extension.job.figures import bands_figure
from gipfel_extension.job.rows import DeviceRow
from gipfel_extension.rules import RuleEntry
from gipfel_extension.rules.thresholds import drawn_rules, with_thresholds
from gipfel_extension.server.views import View, figures_of
from gipfel_extension.telemetry.figures.lines import coarsened
from gipfel_extension.telemetry.figures.run_figures import gpu_figure, host_figure, job_figure
from gipfel_extension.telemetry.store.overview import Overview

OVERVIEW = Overview.from_table(simulated(60), 60)
GPU = next(each for each in OVERVIEW.devices if each.kind == "gpu")


def lines(figure: dict) -> dict[str, tuple[float, str, str]]:
    """Return the height of each rule's line, the title of its plot, and its label."""
    layout = figure["layout"]
    notes = [each for each in layout["annotations"] if each.get("name") == "threshold"]
    shapes = [each for each in layout["shapes"] if each.get("name") == "threshold"]
    assert [each["y"] for each in notes] == [each["y0"] for each in shapes] == [each["y1"] for each in shapes]
    titles = {
        each["yref"].removesuffix(" domain"): each["text"]
        for each in layout["annotations"]
        if str(each.get("yref", "")).endswith(" domain") and each.get("name") != "event"
    }
    return {
        each["hovertext"].split()[1].rstrip(":"): (
            pytest.approx(each["y"]),
            titles.get(each["yref"], ""),
            each["text"],
        )
        for each in notes
    }


def test_the_shipped_rules_are_in_the_plots_of_their_metrics(tmp_path: Path) -> None:
    rules = drawn_rules({"HOME": str(tmp_path)})
    assert {"gpu-hot", "gpu-memory-full"} <= {each.name for each in rules}
    # A share of missing values is not a value of the metric.
    assert "loss-not-a-number" not in {each.name for each in rules}
    for figure in (job_figure(OVERVIEW), gpu_figure(OVERVIEW, GPU)):
        assert lines(with_thresholds(figure, rules)) == {
            "gpu-hot": (87.0, "Temperature, °C", "above 87 °C"),
            "gpu-memory-full": (98.0, "GPU memory, %", "above 98%"),
        }
    assert set(lines(with_thresholds(host_figure(OVERVIEW), rules))) <= {"host-memory-full"}


def test_a_rule_of_ones_own_is_drawn_in_the_plots_unit_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / ".gipfel/rules/own.yaml"
    file.parent.mkdir(parents=True)
    entry = (
        "rules:\n  - {{name: idle, metric: SM_ACTIVE, condition: mean below {} %, window: 60s, "
        "sentence: Idle.{}}}\n"
    )
    file.write_text(entry.format(30, ""))
    environment = {"HOME": str(tmp_path)}

    def bounds() -> dict:
        return lines(with_thresholds(job_figure(OVERVIEW), drawn_rules(environment)))

    assert bounds()["idle"][0] == 30.0
    file.write_text(entry.format(455e-1, ""))
    assert bounds()["idle"][0] == 45.5
    file.write_text(entry.format(30, ", where: rank=0"))
    assert "idle" not in bounds()


def test_rules_about_logged_metrics_and_the_bands_of_the_job_page() -> None:
    rule = RuleEntry(name="slow", metric="step*", condition="mean above 1.5", window="60s", sentence="Slow.")
    hot = RuleEntry(
        name="busy", metric="SM_ACTIVE", condition="mean above 90 %", window="60s", sentence="Busy."
    )
    rows = [DeviceRow(index=0, uuid=GPU.uuid, label="GPU 0")]
    rules = (rule.compiled(), hot.compiled())
    bands = with_thresholds(bands_figure(OVERVIEW, rows, ("SM_ACTIVE", "POWER_USAGE")), rules)
    assert lines(bands) == {"busy": (90.0, "SM active", "above 90%")}
    logged = {
        "data": [{"uid": "metrics/step_s/3/rank-0", "y": [1.0]}, {"uid": "metrics/loss/3", "y": [1.0]}],
        "layout": {},
    }
    assert [each["y0"] for each in with_thresholds(logged, rules)["layout"]["shapes"]] == [1.5]


def test_all_figures_of_the_panel_but_the_heat_map_have_them(tmp_path: Path) -> None:
    rules = drawn_rules({"HOME": str(tmp_path)})
    view = View(gpus=(GPU.uuid,), gauges=("GPU_TEMP",), metric="GPU_TEMP")
    figures = figures_of(OVERVIEW, coarsened(OVERVIEW, 20), view, None, rules=rules)
    marked = {name for name, each in figures.items() if "threshold" in str(each["layout"].get("shapes"))}
    assert marked >= {"job", f"gpu/{GPU.uuid}", "gauge/GPU_TEMP"}
    assert "heat" not in marked
