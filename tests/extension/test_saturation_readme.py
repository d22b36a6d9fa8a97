"""The worked example of the README, recomputed from its own tables."""

import re
from pathlib import Path

import pytest
from saturation_tables import busy, gpu, host, table

import gipfel_extension.saturation
from gipfel_extension.saturation import LOSSES, score_table

README = Path(gipfel_extension.saturation.__file__).with_name("README.md")


def rows(first: str) -> list[dict[str, str]]:
    """The table whose header begins with these words."""
    lines = README.read_text().splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(first))
    header, _, *body = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[start : lines.index("", start)]
        if line.startswith("|")
    ]
    return [dict(zip(header, row, strict=True)) for row in body]


def test_the_worked_example():
    samples = rows("| s | GR_ENGINE_ACTIVE")
    series = {name: [float(row[name]) for row in samples] for name in samples[0] if name != "s"}
    cores = series.pop("CPU_CORES_USED")
    given = busy(GPU_UTIL=float("nan"), **series)
    job = score_table(table({gpu(): given, host(): {"CPU_CORES_USED": cores}}, length=len(samples)))
    trace = job.traces[0]
    for row in rows("| s | level"):
        place = int(row["s"])
        assert trace.levels.saturation[place] == pytest.approx(float(row["level"])), row
        assert ("compute", "memory", "interconnect")[trace.levels.binding[place]] == row["binding"]
        told = {name: float(row.get(name, 0)) for name in LOSSES}
        assert {name: trace.losses[name][place] for name in LOSSES} == pytest.approx(told), row
    text = " ".join(README.read_text().split())
    total = job.total
    parts = ", ".join(
        f"{name} {total.losses[name]:.3g}" for name in ("start_up", "input", "launch", "unexplained")
    )
    said = f"score {total.score:.3g}, {parts}, together 100."
    assert said in text
    assert (
        f"Of the score {total.points['compute']:.3g} is compute's and {total.points['memory']:.3g} memory's"
        in text
    )
    assert f"the bottleneck is {total.bottleneck}." in text
    assert total.binding == pytest.approx({"compute": 0.4, "memory": 0.4, "interconnect": 0.0})
    assert f"the score would be up to {total.upper_bound:.3g}" in text
    assert re.search(r"confidence is .* = ([0-9.]+)\. ", text)[1] == f"{job.confidence:.2f}"
    assert (job.startup, job.gpus[0].samples) == (1.0, 5)


def test_the_readme_names_every_loss():
    text = README.read_text()
    assert [name for name in LOSSES if f"`{name}`" not in text] == []
