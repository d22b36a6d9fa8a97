"""A server whose nodes are vetted first, on real Slurm: progress per node, refusal, and fewer nodes."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import images as image_builder
import pytest
from edf_files import write_edf
from hub_process import HubProcess
from images import Images
from kernel_client import Kernel
from one_machine import OneMachine
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError
from gipfel_extension.vetting.report import read_report

pytestmark = pytest.mark.cluster

# Beside the notebook, in the place of the shipped one of this name; its ranks meet across containers.
_QUICK = """\
name: quick
time_limit: 300 s
checks:
- {name: data, type: mounts, time_limit: 60 s, parameters: {paths: {/data/marker: read}}}
- {name: container, type: container, time_limit: 120 s}
- name: all together
  type: collective
  scope: all
  time_limit: 120 s
  parameters: {payload: 1 MB, samples: 5}
"""
# What a process of the server finds, and where a step of all nodes runs.
_LOOK = """
import json, os
from pathlib import Path
from gipfel_cluster.steps import StepSpec, start_step
folder = Path(os.environ["GIPFEL_RUN"], "look")
status = start_step(StepSpec(command=("hostname",), folder=str(folder))).wait(120)
names = ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_TASKS_PER_NODE")
logs = sorted(folder.glob("node-*.log"))
print(json.dumps([[os.environ.get(name) for name in names], status, [each.read_text() for each in logs]]))
"""
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
        shown = user.request("gipfel/vetting").raise_for_status().json()
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
    assert "fault of the environment, not of the nodes: 2 of 2 nodes not fit by cpu" in said, said
    assert f"{cluster.node_names[0]}: memory bandwidth: the image lacks a module" in said
    run = max((unix.home / ".gipfel" / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    report = read_report(Path(run))
    assert sorted(report.bad_nodes) == sorted(cluster.node_names)
    assert user.server() is None


@contextlib.contextmanager
def hidden(cluster: OneMachine, node: str, folder: Path) -> Iterator[None]:
    """A folder that is empty on one node."""
    at = ("nsenter", f"--target={cluster.pid(node)}", "--mount")
    subprocess.run([*at, "mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run([*at, "umount", str(folder)], check=True, timeout=60)


def test_several_nodes_pass_in_their_containers_and_where_one_fails_the_server_goes_on_without_it(
    hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], cluster: OneMachine
) -> None:
    try:
        image = image_builder.torch_image()
    except GipfelError as error:
        pytest.skip(str(error))
    unix = plain_users[0]
    data = unix.write("data/marker", "here").parent
    write_edf(unix, "vetted", image=image, mounts=(f"{data}:/data",))
    unix.write("gipfel/quick.yaml", _QUICK)
    user = hub.user(unix.name)
    asked = {**_VET, "vet": "quick", "nodes": 2}
    alone = user.request_server({**asked, "nodes": 1, "vet_action": "shrink"})
    assert alone.status_code == 400
    assert "shrink needs several nodes" in alone.text
    first, second = cluster.node_names

    events = user.start_server(asked)
    try:
        told = [each for each in events if str(each["message"]).startswith("Vetting")]
        assert "by quick: 0 of 2 nodes done." in str(told[0]["message"]), told
        for node in cluster.node_names:
            assert any(f"<strong>{node}</strong>" in str(each["html_message"]) for each in told)
        assert told[-1]["message"] == "Vetting: The server starts."
        report = report_of(unix, job_of(events))
        assert (report.vetted, report.good_nodes) == (True, (first, second))
        # The ranks were the image's own Python, and met each other.
        found = {each.check for each in report.results if each.verdict == "pass"}
        assert found == {"data", "container", "all together"}
        with user.kernel() as kernel:
            variables, status, said = look(kernel)
        assert variables[1:] == ["2", "2", "1(x2)"]
        assert (status, said) == (0, [f"{first}\n", f"{second}\n"])
    finally:
        user.stop_server()

    with hidden(cluster, second, data):
        events = user.start_server({**asked, "vet_action": "shrink"})
    try:
        told = [each for each in events if str(each["message"]).startswith("Vetting")]
        last = str(told[-1]["message"])
        assert f"1 of 2 nodes not fit by quick: {second}: data:" in last, told
        assert last.endswith(f"The server starts without {second}."), told
        report = report_of(unix, job_of(events))
        assert (report.good_nodes, report.bad_nodes) == ((first,), (second,))
        with user.kernel() as kernel:
            assert look(kernel) == [[first, "1", "1", "1"], 0, [f"{first}\n"]]
    finally:
        user.stop_server()

    # The node that the server itself would run on can't be left out.
    with hidden(cluster, first, data):
        answer = user.request_server({**asked, "vet_action": "shrink"})
        events = user.progress() if answer.status_code in {201, 202} else []
    said = str(events[-1]["message"]) if events else answer.text
    assert f"1 of 2 nodes not fit by quick: {first}: data:" in said, (answer.text, events)
    assert f"The server would run on {first}, which failed" in said
    assert user.server() is None


def look(kernel: Kernel) -> Any:
    """Return what a kernel says of its job's nodes."""
    done = kernel.run(_LOOK, 180)
    assert not done.error, done.error
    return json.loads(done.text)
