"""Events of a user's jobs as JupyterLab gets them, from a journal that may hold anything."""

import time
from pathlib import Path

from gipfel_cluster.notify import Event
from gipfel_cluster.notify.journal import append_event
from gipfel_extension.server.changes import job_events
from gipfel_extension.server.responses import JobEvent

HOUR_NS = 3600 * 10**9


def _environment(home: Path, own: str = "") -> dict[str, str]:
    runs = home / "runs"
    (runs / "alps-7").mkdir(parents=True, exist_ok=True)
    more = {"GIPFEL_RUN": str(runs / own)} if own else {}
    return {"HOME": str(home), "GIPFEL_RUNS": str(runs), **more}


def test_events_have_a_report_where_the_server_can_read_the_run(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    assert job_events(environment) == []
    for name in ("alps-7", "alps-8", "../runs/alps-7", ".."):
        append_event(Event.of("failed", "Batch notebook", "why", run=name, workload="batch:7"), environment)
    found = [JobEvent.model_validate(each) for each in job_events(environment)]
    assert [each.report for each in found] == ["gipfel/runs/alps-7/report", "", "", ""]
    assert found[0].title == "Batch notebook failed"
    assert (found[0].reason, found[0].workload) == ("why", "batch:7")


def test_only_the_last_day_and_not_what_the_server_shows_itself(tmp_path: Path) -> None:
    environment = _environment(tmp_path, own="alps-7")
    now = time.time_ns()
    append_event(Event.of("failed", "old", run="alps-1", time_ns=now - 25 * HOUR_NS), environment)
    append_event(Event.of("time", "own time", run="alps-7"), environment)
    append_event(Event.of("idle", "own GPUs", run="alps-7"), environment)
    append_event(Event.of("time", "time of another", run="alps-8"), environment)
    titles = [each["title"] for each in job_events(environment)]
    assert titles == ["GPUs are idle: own GPUs", "The time limit ends soon: time of another"]


def test_many_events_are_twenty(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    for number in range(25):
        append_event(Event.of("ended", f"{number}", run=f"r-{number}"), environment)
    found = job_events(environment)
    assert len(found) == 20
    assert found[-1]["title"] == "24 has ended"
