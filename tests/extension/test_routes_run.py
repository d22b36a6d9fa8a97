import http.client
import json
import re
import stat
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from gipfel_cluster.runs import RunFolder
from gipfel_extension.routes import ROUTES

#: Path of a route for each group in the routes' patterns.
_EXAMPLES = {
    r"([\w-]+\.[0-9a-f]{16}\.js)": "a.0123456789abcdef.js",
    r"([A-Za-z0-9][A-Za-z0-9._-]{0,127})": "run",
    r"([0-9A-Za-z][0-9A-Za-z_.-]{0,63})": "1",
    r"([A-Za-z0-9][A-Za-z0-9_-]{0,99})": "start-here",
    r"\.(parquet|csv)": ".csv",
    r"\.(png)": ".png",
    "(stop|rerun|notebook)": "stop",
    "(stop|rerun)": "stop",
    "(trace|dump)": "dump",
}


def test_no_route_answers_without_the_token(server):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    for pattern, _ in ROUTES:
        path = pattern
        for group, example in _EXAMPLES.items():
            path = path.replace(group, example)
        assert re.fullmatch(pattern, path)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            connection.request(method, f"/{path}")
            answer = connection.getresponse()
            answer.read()
            # 302: to the login; 405: the route does not have this method.
            assert answer.status in {302, 403, 405}, (method, path, answer.status)
    connection.close()


def test_a_server_without_a_job_records_its_own_machine(server):
    status, run = server.call("gipfel/run")
    assert status == 200
    folder = Path(run["run"])
    assert folder.parent == server.home / ".gipfel" / "runs"
    assert folder.name.startswith(f"local-{server.process.pid}-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    hosts = server.wait(lambda: [d for d in server.call("gipfel/run")[1]["devices"] if d["kind"] == "host"])
    assert len(hosts) == 1
    assert (run["edf"], run["ends_ns"], run["job_id"]) == (None, None, "")
    assert run["record"]["node"] == run["node"] != ""
    assert len(server.recorders()) == 1


def test_a_job_is_described_by_its_record_and_records_itself(start_server, tmp_path):
    folder = RunFolder.create(tmp_path / "runs", "alps", "48812")
    record = {"edf": {"name": "ngc-25.05", "image": "x"}, "edf_digest": "sha256:ab"}
    folder.write_record({**record, "time_limit_ends": "2030-01-02T03:04:05+00:00"})
    sockets = tmp_path / "sockets"
    sockets.mkdir(0o700)
    job = {"GIPFEL_RUN": folder.path, "GIPFEL_SOCKETS": sockets, "GIPFEL_NODE": "nid001234"}
    server = start_server(**{name: str(value) for name, value in job.items()})
    status, run = server.call("gipfel/run")
    assert status == 200
    assert (run["node"], run["cluster"], run["job_id"]) == ("nid001234", "alps", "48812")
    assert run["edf"] == {"name": "ngc-25.05", "digest": "sha256:ab"}
    assert run["ends_ns"] == 1893553445 * 10**9
    assert server.recorders() == []
    assert server.call("gipfel/saturation")[1]["status"]["state"] == "absent"


def test_a_run_folder_that_is_gone_is_said_in_one_line(start_server, tmp_path):
    server = start_server(GIPFEL_RUN=str(tmp_path / "gone"))
    status, run = server.call("gipfel/run")
    assert (status, run["run"]) == (200, None)
    assert "does not exist" in run["message"]
    assert "\n" not in run["message"]
    assert server.call("gipfel/saturation")[0] == 400
    message = json.loads(server.stream().recv())
    assert (message["type"], message["status"]["state"]) == ("status", "absent")
    assert "does not exist" in message["status"]["message"]


def test_nothing_is_left_when_the_server_ends(start_server):
    server = start_server()
    server.call("gipfel/telemetry/source", "POST", {"source": "synthetic:training"})
    recorders = server.recorders()
    assert len(recorders) == 2
    folder = Path(server.call("gipfel/run")[1]["run"])
    arguments = recorders[0].cmdline()
    sockets = Path(arguments[arguments.index("--sockets") + 1])
    assert (sockets / "job.sock").is_socket()
    server.process.terminate()
    server.process.wait(15)
    assert psutil.wait_procs(recorders, timeout=10)[1] == []
    assert not sockets.exists()
    segments = sorted(path.name for path in (folder / "telemetry").glob("*.arrows"))
    assert len(segments) == 2
    assert all(name.endswith(".closed.arrows") for name in segments)


def test_recorders_end_with_a_server_that_is_killed(start_server):
    server = start_server()
    server.call("gipfel/run")
    recorders = server.recorders()
    assert len(recorders) == 1
    server.process.kill()
    server.process.wait()
    deadline = time.monotonic() + 20
    while not all(map(_has_ended, recorders)):
        assert time.monotonic() < deadline, recorders
        time.sleep(0.1)


def _has_ended(process: psutil.Process) -> bool:
    # Nothing may have waited for a process whose parent was killed.
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_every_route_refuses_who_is_not_logged_in(server):
    for method, path in [
        ("GET", "gipfel/run"),
        ("GET", "gipfel/saturation"),
        ("POST", "gipfel/telemetry/source"),
        ("DELETE", "gipfel/telemetry/source"),
        ("GET", "gipfel/notebooks"),
        ("POST", "gipfel/notebooks/measure-saturation"),
    ]:
        body = {"source": "synthetic:training"} if method == "POST" else None
        for authorization in ("", "token wrong"):
            assert server.call(path, method, body, Authorization=authorization)[0] == 403, (method, path)
