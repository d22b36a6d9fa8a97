"""The job page in a browser: a role expression selects the same ranks in every tab, and a reload keeps it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from lab_page import LabPage
from lab_server import LabServer
from playwright.sync_api import Page, expect
from recorded_runs import START_NS
from topology_trees import collected, gh200

from gipfel_extension.recorder.journal import Journal
from gipfel_extension.recorder.sample_files import SampleWriter, Settings
from gipfel_extension.telemetry.ranks import RankLocation, ranks_file, ranks_json
from gipfel_extension.telemetry.sample import Device, Provenance, Sample
from gipfel_extension.telemetry.sources import SystemClock
from gipfel_extension.topology.collect import store_node

pytestmark = pytest.mark.browser

_CHOSEN = ["4"]


def made_run(run: Path, system: Path) -> None:
    """Make a run of four nodes with four GPUs and ranks each, a pipeline stage to a node."""
    telemetry = run / "telemetry"
    telemetry.mkdir(parents=True)
    node = collected(system, gh200(system))
    for number in range(4):
        name = f"nid{number:03}"
        uuids = {gpu.uuid: f"GPU-{number}-{gpu.index}" for gpu in node.gpus}
        gpus = tuple(replace(gpu, uuid=uuids[gpu.uuid]) for gpu in node.gpus)
        links = tuple(
            replace(each, first=uuids[each.first], second=uuids.get(each.second, each.second))
            for each in node.links
        )
        store_node(run, replace(node, node=name, gpus=gpus, links=links))
        devices = tuple(Device(f"GPU-{number}-{i}", "gpu", "GPU", i, name) for i in range(4))
        origin = Provenance(name, "job", "test", True, 1.0, devices)
        settings = Settings(telemetry, name, "job", 1.0, 5.0)
        writer = SampleWriter(settings, origin, Journal(telemetry, name, "job", SystemClock()), SystemClock())
        writer.add(
            [
                Sample(START_NS + s * 10**9, s, each.uuid, {"SM_ACTIVE": 0.8})
                for s in range(60)
                for each in devices
            ]
        )
        writer.flush()
        writer.finish()
        where = [
            RankLocation(4 * number + i, name, 100 + i, each.uuid, "python") for i, each in enumerate(devices)
        ]
        ranks_file(telemetry, name, "job").write_text(ranks_json(where))
    roles = {str(rank): {"pp": rank // 4, "dp": rank % 4} for rank in range(16)}
    (run / "roles.json").write_text(json.dumps(roles))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    with LabServer("synthetic:training:4") as running:
        made_run(running.folder / "runs" / "made-1", tmp_path_factory.mktemp("gh200"))
        yield running


def test_a_role_expression_selects_in_every_tab_and_a_reload_keeps_it(
    server: LabServer, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    lab = LabPage(new_page())
    lab.page.goto(f"{server.url}&gipfel-job={quote('tab=overview&run=made-1')}")
    job = lab.page.locator("#gipfel-job")
    expect(job.locator(".heatmaplayer image").first).to_be_visible()
    screenshot(lab.page, "95-job-overview-light")
    job.locator("input[name='roles']").fill("pp=1 & dp=0")
    job.locator("input[name='roles']").press("Enter")
    job.get_by_role("tab", name="Ranks").click()
    expect(job.locator("tr[data-rank]")).to_have_count(16)
    chosen = job.locator("tr[data-rank][aria-selected='true']")
    expect(chosen).to_have_count(1)
    assert chosen.evaluate_all("all => all.map(each => each.dataset.rank)") == _CHOSEN
    job.get_by_role("tab", name="Topology").click()
    lit = job.locator("[data-unit='gpu'][data-state='chosen']")
    expect(lit).to_have_count(1)
    assert lit.first.get_attribute("data-name") == "GPU-1-0"
    frame = job.locator(".jp-Gipfel-topology-frame rect").first
    # Without its style sheet, SVG is filled with black.
    assert frame.evaluate("node => getComputedStyle(node).fill") != "rgb(0, 0, 0)"
    screenshot(lab.page, "95-job-topology-light")
    job.get_by_role("tab", name="Metrics").click()
    expect(job.locator(".main-svg").first).to_be_visible()
    job.get_by_role("tab", name="Events").click()
    expect(job.get_by_role("tab", selected=True)).to_contain_text("Events")
    lab.page.wait_for_function("decodeURIComponent(location.search).includes('tab=events')")
    lab.page.reload()
    expect(job.get_by_role("tab", selected=True)).to_contain_text("Events")
    expect(job.locator("input[name='roles']")).to_have_value("pp=1 & dp=0")
    assert not lab.errors
    lab.page.close()
