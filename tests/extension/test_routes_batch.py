"""A notebook as a batch job, through the server's routes."""

import json
from typing import Any

from notebook_files import printed, write_notebook


def test_a_notebook_is_submitted_listed_and_cancelled(start_server: Any) -> None:
    server = start_server(GIPFEL_SCHEDULER="local", GIPFEL_CLUSTER="tests")
    write_notebook(server.root / "in.ipynb")
    assert server.call("gipfel/batch/jobs") == (200, {"jobs": []})
    status, form = server.call("gipfel/batch/form?path=in.ipynb")
    assert status == 200
    assert (form["scheduler"], form["schedulers"][0], form["output"]) == ("local", "local", "in-run.ipynb")
    assert form["parameters"][0] == {
        "name": "seconds", "type": "float", "default": "0.1", "help": "how long",
    }  # fmt: skip

    asked: dict[str, Any] = {"path": "in.ipynb", "output": "out.ipynb"}
    wrong = (
        ({**asked, "parameters": {"secnds": "1"}}, "Did you mean 'seconds'?"),
        ({**asked, "path": "../in.ipynb"}, "not below the server's root directory"),
        ({**asked, "output": "a\0b.ipynb"}, "not below the server's root directory"),
        ({**asked, "time": "soon"}, "time can't be used"),
        ({**asked, "memory": "much"}, "memory can't be used"),
        ({**asked, "qos": "a b"}, "qos can't be used"),
        ({**asked, "user": "root"}, "not valid: user"),
        ({**asked, "scheduler": "nowhere"}, "no scheduler 'nowhere'"),
        ([], "not valid"),
    )
    for body, said in wrong:
        status, answer = server.call("gipfel/batch/jobs", "POST", body)
        assert (status, said in answer["message"]) == (400, True), answer
    assert server.call("gipfel/batch/jobs") == (200, {"jobs": []})
    for path, method in (
        ("form?path=in.ipynb", "GET"),
        ("jobs", "GET"),
        ("jobs", "POST"),
        ("jobs/1", "DELETE"),
    ):
        body = asked if method == "POST" else None
        status, _ = server.call(f"gipfel/batch/{path}", method, body, Authorization="")
        assert status == 403

    parameters = {"text": "12", "fail": "False"}
    status, job = server.call(
        "gipfel/batch/jobs", "POST", {**asked, "scheduler": "local", "parameters": parameters}
    )
    assert status == 201, job

    def listed(job_id: str) -> dict[str, Any]:
        _, answer = server.call("gipfel/batch/jobs")
        return next(each for each in answer["jobs"] if each["job_id"] == job_id)

    server.wait(lambda: listed(job["job_id"])["tasks"][0]["ended"], 300)
    (task,) = listed(job["job_id"])["tasks"]
    assert (task["state"], task["done"], task["cells"], task["output"]) == ("COMPLETED", 4, 4, "out.ipynb")
    assert printed(server.root / "out.ipynb")[0] == "12"
    # With the values of the dialog, the same job can be submitted again.
    again = listed(job["job_id"])["request"]
    assert {key: again[key] for key in ("path", "output", "parameters", "scheduler")} == {
        "path": "in.ipynb",
        "output": "out.ipynb",
        "parameters": parameters,
        "scheduler": "local",
    }
    # The card: how long it ran, its score (there is no GPU), its log.
    assert (task["seconds"] > 0, task["started"] > 0, task["score"]) == (True, True, None)
    status, log = server.call(f"gipfel/workloads/log?kind=batch&id={job['job_id']}")
    assert (status, any("12" in line["text"] for line in log["lines"])) == (200, True), log

    slow = {**asked, "output": "slow.ipynb", "grid": {"seconds": "300,301"}}
    status, array = server.call("gipfel/batch/jobs", "POST", slow)
    assert (status, array["tasks"]) == (201, 2)
    assert listed(array["job_id"])["request"]["grid"] == {"seconds": "300,301"}
    server.wait(lambda: listed(array["job_id"])["tasks"][0]["state"] == "RUNNING", 180)
    assert listed(array["job_id"])["tasks"][1]["state"] == "PENDING"
    assert server.call("gipfel/batch/jobs/99-aaaaaa", "DELETE")[0] == 400
    assert server.call(f"gipfel/batch/jobs/{array['job_id']}", "DELETE")[0] == 200
    server.wait(lambda: all(each["ended"] for each in listed(array["job_id"])["tasks"]), 180)
    assert {each["state"] for each in listed(array["job_id"])["tasks"]} == {"CANCELLED"}
    # An unreadable note does not hide the others.
    (server.home / ".gipfel" / "server" / "submitted" / "local-x.json").write_text("{")
    _, answer = server.call("gipfel/batch/jobs")
    assert len(answer["jobs"]) == 2
    assert json.dumps(answer)
