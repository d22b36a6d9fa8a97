"""Workloads of kinds without own routes: ``sleep`` of another package, through the server's routes."""

import os
from pathlib import Path
from typing import Any

import sleep_kind
from sleep_kind import SleepKind, install_sleep_kind


def test_a_kind_of_another_package_is_listed_read_stopped_and_run_again(
    start_server: Any, tmp_path: Path
) -> None:
    path = os.pathsep.join((str(install_sleep_kind(tmp_path)), str(Path(sleep_kind.__file__).parent)))
    runs = {"GIPFEL_RUNS": str(tmp_path / "runs"), "GIPFEL_SCHEDULER": "local"}
    server = start_server(PYTHONPATH=path, **runs)
    assert server.call("gipfel/workloads") == (200, {"workloads": []})
    started = SleepKind.start(60, {**runs, "HOME": str(tmp_path)})
    _, answer = server.call("gipfel/workloads")
    (row,) = answer["workloads"]
    assert (row["kind"], row["id"], row["title"], row["state"]) == (
        "sleep",
        started.id,
        "sleep 60",
        "running",
    )
    name = {"kind": "sleep", "id": started.id}

    log = server.call(f"gipfel/workloads/log?kind=sleep&id={started.id}&1795437000000")
    assert log == (200, {"lines": [{"rank": 0, "text": "going to sleep"}]})
    assert server.call("gipfel/workloads/stop", "POST", name) == (200, name)

    def ended() -> bool:
        return all(each["ended"] for each in server.call("gipfel/workloads")[1]["workloads"])

    server.wait(ended, 30)
    status, again = server.call("gipfel/workloads/rerun", "POST", name)
    assert (status, again["kind"], again["id"] != started.id) == (200, "sleep", True)
    assert server.call("gipfel/workloads/stop", "POST", again)[0] == 200
    server.wait(ended, 30)

    wrong: tuple[tuple[Any, str], ...] = (
        ({"kind": "sleep", "id": "7"}, "no workload 'sleep:7'"),
        ({"kind": "launch", "id": "1"}, "no workload"),
        ({"kind": "sleep", "id": "../1"}, "not valid: id"),
        ({"kind": "sleep;id", "id": "1"}, "not valid: kind"),
        ({"kind": "sleep"}, "not valid: id"),
        ([], "not valid"),
    )
    for body, message in wrong:
        status, answer = server.call("gipfel/workloads/stop", "POST", body)
        assert (status, message in answer["message"]) == (400, True), answer
    status, answer = server.call("gipfel/workloads/log?kind=sleep&id=1&id=%2e%2e%2f1")
    assert (status, "not valid: id" in answer["message"]) == (400, True)
    for method, route in (
        ("GET", ""),
        ("GET", "/log?kind=sleep&id=1"),
        ("POST", "/stop"),
        ("POST", "/rerun"),
    ):
        body = name if method == "POST" else None
        assert server.call(f"gipfel/workloads{route}", method, body, Authorization="")[0] == 403
