"""A server whose nodes are vetted first, on real Slurm: told node by node, or refused with the reason."""

from pathlib import Path
from typing import Any

import pytest
from edf_files import write_edf
from hub_process import HubProcess
from images import Images
from one_machine import OneMachine
from unix_users import UnixUser

from gipfel_extension.vetting.report import read_report

pytestmark = pytest.mark.cluster

_VET = {"edf": "vetted", "partition": "debug", "time": "00:20:00", "vet": "cpu"}


def report_of(user: UnixUser, job: str) -> Any:
    return read_report(user.home / ".gipfel" / "runs" / f"tests-{job}")


def job_of(events: list[dict[str, Any]]) -> str:
    return next(str(each["message"]).split()[1] for each in events if "is submitted" in str(each["message"]))


def test_a_fit_node_is_vetted_in_the_container_and_then_has_its_server(
    hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], images: Images, cluster: OneMachine
) -> None:
    unix = plain_users[0]
    write_edf(unix, "vetted", image=images.debian)
    user = hub.user(unix.name)
    wrong = user.request_server({**_VET, "vet": "rm -rf"})
    assert wrong.status_code == 400, wrong.text
    events = user.start_server({**_VET, "vet_action": "abort"})
    try:
        percents = [int(str(each["progress"])) for each in events]
        assert percents == sorted(percents), events
        told = [each for each in events if str(each["message"]).startswith("Vetting")]
        assert any("by cpu: 0 of 1 node done." in str(each["message"]) for each in told), events
        assert "The server starts." in str(told[-1]["message"]), told
        report = report_of(unix, job_of(events))
        (node,) = report.good_nodes
        assert node in cluster.node_names
        assert all(f"<strong>{node}</strong>" in str(each["html_message"]) for each in told)
        assert (report.protocol, report.complete, report.vetted) == ("cpu", True, True)
        # The panel of that server has it.
        shown = user.ask("gipfel/vetting").raise_for_status().json()
        assert (shown["state"], shown["grid"]["rows"][0]["node"]) == ("ended", node)
    finally:
        user.stop_server()


def test_where_a_node_is_not_fit_no_server_starts_and_the_page_names_it(
    hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], images: Images, cluster: OneMachine
) -> None:
    unix = plain_users[1]
    write_edf(unix, "vetted", image=images.python)
    # This image has Python, and lacks what a check needs: what was not tested is not fit.
    user = hub.user(unix.name)
    answer = user.request_server({**_VET, "nodes": 2, "vet_action": "abort"})
    events = user.progress() if answer.status_code in {201, 202} else []
    said = str(events[-1]["message"]) if events else answer.text
    assert "not all are fit: 2 of 2 nodes not fit by cpu" in said, (answer.text, events)
    assert f"{cluster.node_names[0]}: memory bandwidth: the image lacks a module" in said
    run = max((unix.home / ".gipfel" / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    report = read_report(Path(run))
    assert sorted(report.bad_nodes) == sorted(cluster.node_names)
    assert user.server() is None
