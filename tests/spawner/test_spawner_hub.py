"""The spawner in a real hub, with the local scheduler and a tiny server."""

import json
import os
import pwd
import sqlite3
import time
import urllib.request
from typing import Any

import psutil
import pytest
from hub_servers import environment, failure, keeper, refusal, start, until


def test_a_server_starts_answers_and_stops(hub: Any) -> None:
    assert start(hub, "ada").status in {201, 202}, hub.log()
    until(lambda: hub.ready("ada"), 30, hub)
    seen = environment(hub, "ada")
    spec = json.loads(seen["GIPFEL_JOB"])
    assert (spec["kind"], spec["edf"], spec["options"]["nodes"]) == ("server", "", 1)
    assert seen["HOME"] == str(hub.user_home("ada"))
    assert seen["GIPFEL_RUNS"].startswith(seen["HOME"])
    assert seen["GIPFEL_JOB_ID"] == hub.job("ada")
    job = keeper(hub, "ada")
    assert job.alive
    request = urllib.request.Request(
        f"{hub.public}/user/ada/", headers={"Authorization": f"token {seen['JUPYTERHUB_API_TOKEN']}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"hello from ada"
    assert hub.call("DELETE", "/users/ada/server").status in {202, 204}
    until(lambda: not job.alive, 20, hub)
    until(lambda: hub.server("ada") == {}, 10, hub)


def test_a_server_that_ends_leaves_the_hub(hub: Any) -> None:
    start(hub, "bea")
    until(lambda: hub.ready("bea"), 30, hub)
    keeper(hub, "bea").signal(15)
    until(lambda: hub.server("bea") == {}, 20, hub)


def test_a_job_that_dies_shows_its_last_words_and_no_token(hub: Any) -> None:
    answer = start(hub, "dora", behaviour="die")
    event: dict[str, Any] = (
        {"message": answer.content.get("message", "")} if answer.status >= 400 else failure(hub, "dora")
    )
    assert "exit status 3" in event["message"]
    assert "The image was not found: /none.sqsh" in event["message"]
    assert "pick another environment" in event["message"]
    if "html_message" in event:
        assert "What to do:" in event["html_message"]
        assert "gipfel: The image /none.sqsh is not there." in event["html_message"]
    assert "\n" not in event["message"]
    token = environment(hub, "dora")["JUPYTERHUB_API_TOKEN"]
    assert token not in json.dumps(event)
    assert "Traceback" not in json.dumps(event)
    until(lambda: hub.server("dora") == {}, 10, hub)


def test_a_start_that_takes_too_long_says_where_it_stands(new_hub: Any) -> None:
    hub = new_hub("c.EDFSpawner.start_timeout = 4", "c.EDFSpawner.http_timeout = 3")
    start(hub, "greta", behaviour="silent")
    job = keeper(hub, "greta")
    until(lambda: not job.alive, 30, hub)
    until(lambda: hub.server("greta") == {}, 10, hub)
    assert "took more than 4 s. Job" in failure(hub, "greta")["message"]


def test_a_server_without_a_port_says_so(new_hub: Any) -> None:
    hub = new_hub("c.EDFSpawner.server_timeout = 1")
    start(hub, "hanna", behaviour="silent")
    job = keeper(hub, "hanna")
    until(lambda: not job.alive, 30, hub)
    until(lambda: hub.server("hanna") == {}, 10, hub)
    message = failure(hub, "hanna")["message"]
    assert "its server reported no port within 1 s." in message
    assert f"Possibly the nodes can't reach the hub at {hub.hub}/hub/api" in message


def test_a_site_whose_values_cannot_be_is_one_line(new_hub: Any) -> None:
    hub = new_hub("c.EDFSpawner.req_memory = 'plenty'", "c.EDFSpawner.environment = {'A': 's3cret'}")
    assert refusal(hub, "iris", start(hub, "iris")).startswith("The job's memory is not valid: ")
    assert "s3cret" not in hub.log()


def test_the_death_of_a_running_server_is_seen_at_once_and_explained(new_hub: Any) -> None:
    """Not at the hub's next look, which is a minute away, but at the watcher's, which is a second."""
    hub = new_hub(
        "c.EDFSpawner.poll_interval = 60",
        "c.EDFSpawner.calm_interval = 1",
        "from gipfel_spawner import HUB_TEMPLATES",
        "c.JupyterHub.template_paths = [HUB_TEMPLATES]",
    )
    browser = hub.browser("nora")
    start(hub, "nora")
    until(lambda: hub.ready("nora"), 30, hub)
    job = keeper(hub, "nora")
    log = hub.user_home("nora") / ".gipfel/logs" / f"server-{hub.job('nora')}.log"
    with log.open("a") as end:
        end.write("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n<b>bold</b>\n")
    for process in psutil.Process(job.pid).children(recursive=True):
        process.kill()
    until(lambda: not job.alive, 20, hub)
    died = time.monotonic()
    until(lambda: hub.server("nora") == {}, 20, hub)
    assert time.monotonic() - died < 1 + 2
    _, page = browser.get("/hub/user/nora/")
    assert "Your server has ended" in page
    assert "A GPU is used by another process" in page
    assert "&lt;b&gt;bold" in page
    assert "Change and retry" in page
    # It is reported once: the next start clears it.
    start(hub, "nora")
    until(lambda: hub.ready("nora"), 30, hub)
    hub.call("DELETE", "/users/nora/server")
    until(lambda: hub.server("nora") == {}, 20, hub)
    assert "Your server is not running" in browser.get("/hub/user/nora/")[1]


def test_the_death_of_a_starting_server_is_on_the_page_within_two_intervals(new_hub: Any) -> None:
    hub = new_hub("c.EDFSpawner.watch_interval = 1")
    start(hub, "olaf", behaviour="wait")
    job = keeper(hub, "olaf")
    environment(hub, "olaf")
    for process in psutil.Process(job.pid).children(recursive=True):
        process.kill()
    until(lambda: not job.alive, 20, hub)
    died = time.monotonic()
    assert "ended after" in failure(hub, "olaf")["message"]
    assert time.monotonic() - died < 2 + 1


def test_a_queued_job_outlives_every_limit_of_a_start(new_hub: Any, tmp_path: Any) -> None:
    """Only what comes after the queue is limited."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in {
        "sinfo": "echo 'normal|normal*|up|1-00:00:00|2|idle|gpu:gh200:4'",
        "sbatch": "cat > /dev/null; echo 41",
        "squeue": "echo '41|PENDING||N/A|0|Resources|normal|1|N/A|'",
        "scancel": f"echo gone > {tmp_path}/cancelled",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    hub = new_hub(
        "c.EDFSpawner.scheduler = 'slurm'",
        "c.EDFSpawner.server_timeout = 1",
        "c.EDFSpawner.stop_timeout = 1",
        "c.EDFSpawner.http_timeout = 1",
        environment={"PATH_FIRST": str(programs)},
    )
    own = pwd.getpwuid(os.getuid()).pw_name
    hub.call("POST", f"/users/{own}")
    hub.call("POST", f"/users/{own}/servers/second", {})
    time.sleep(5)
    assert hub.call("GET", f"/users/{own}").content["servers"]["second"]["pending"] == "spawn"
    # The page's button.
    assert hub.call("DELETE", f"/users/{own}/servers/second").status in {202, 204}
    until(lambda: (tmp_path / "cancelled").exists(), 10, hub)


def test_a_start_can_be_stopped(hub: Any) -> None:
    start(hub, "finn", behaviour="wait")
    job = keeper(hub, "finn")
    until(lambda: hub.server("finn").get("pending") == "spawn", 10, hub)
    assert hub.call("DELETE", "/users/finn/server").status in {202, 204}
    until(lambda: not job.alive, 20, hub)
    until(lambda: hub.server("finn") == {}, 10, hub)


def test_progress_tells_each_step_once(hub: Any) -> None:
    start(hub, "egon", behaviour="wait")
    until(lambda: hub.server("egon").get("pending") == "spawn", 10, hub)
    environment(hub, "egon")
    (hub.user_home("egon") / "behaviour").unlink()
    events = hub.call("GET", "/users/egon/server/progress").body.decode()
    messages = [json.loads(line[6:])["message"] for line in events.splitlines() if line.startswith("data: ")]
    assert any("is submitted" in each for each in messages)
    assert any("has started on" in each for each in messages)
    assert len(messages) == len(set(messages))
    until(lambda: hub.ready("egon"), 20, hub)
    hub.call("DELETE", "/users/egon/server")


def _refusal(options: dict[str, Any]) -> int:
    """Return the status that refuses options: 413 if the request's body is too long, else 400."""
    return 413 if any(len(name) > 32_768 for name in options) else 400


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "local\n#SBATCH --uid=0"},
        {"edf": "../../x"},
        {"edf": "--help"},
        {"time": "1:00:00 --uid=0"},
        {"time": "0"},
        {"x" * 100_000: 1},
        {"gpus": -1},
        {"nodes": 0},
        {"nodes": [1]},
        {"batch_script": "#!/bin/sh"},
        {"partition": "elsewhere"},
        {"nodes": 2},
    ],
)
def test_options_that_cannot_be_are_one_line(hub: Any, options: dict[str, Any]) -> None:
    answer = start(hub, "fritz", {"user_options": options})
    assert answer.status == _refusal(options), answer
    message = answer.content["message"]
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    assert not hub.job("fritz")
    assert "Exception applying user_options" not in hub.log()


@pytest.mark.parametrize("options", [{"cmd": "sh"}, {"time": "0"}, {"x" * 1_000_000: 1}])
def test_refused_options_are_not_stored(hub: Any, options: dict[str, Any]) -> None:
    hub.call("POST", "/users/otto")
    for method, path in (("POST", "server"), ("PUT", "servers/new"), ("POST", "servers/new")):
        answer = hub.call(method, f"/users/otto/{path}", {"user_options": options})
        assert answer.status == _refusal(options), answer
    assert hub.call("PUT", "/users/otto/servers/named", {}).status in {200, 201, 409}
    assert hub.call("PATCH", "/users/otto/servers/named", {"user_options": options}).status == _refusal(
        options
    )
    database = (hub.folder / "hub.sqlite").read_bytes()
    assert b"x" * 1000 not in database
    stored = hub.call("GET", "/users/otto?include_stopped_servers").content["servers"]
    assert all(not each["user_options"] for each in stored.values())


def test_options_of_an_older_version_are_refused_once(new_hub: Any) -> None:
    hub = new_hub()
    hub.call("POST", "/users/paula")
    assert hub.call("PUT", "/users/paula/servers/old", {"user_options": {"time": "1"}}).status == 201
    hub.end()
    database = sqlite3.connect(hub.folder / "hub.sqlite")
    database.execute("UPDATE spawners SET user_options = ? WHERE name = 'old'", ('{"cmd": "sh"}',))
    database.commit()
    database.close()
    hub.start()
    answer = hub.call("POST", "/users/paula/servers/old")
    assert answer.status == 400
    assert answer.content["message"].startswith("There is no option 'cmd'.")
    assert "Traceback" not in hub.log()
    assert hub.call("POST", "/users/paula/servers/old").status in {201, 202}
    until(lambda: hub.call("DELETE", "/users/paula/servers/old").status in {202, 204}, 30, hub)


def test_a_path_in_the_home_folder_is_the_accounts(hub: Any) -> None:
    (hub.user_home("quin") / "x.toml").write_text('workdir = "/tmp"\n')
    assert start(hub, "quin", {"edf": "~/x.toml"}).status in {201, 202}, hub.log()
    spec = json.loads(environment(hub, "quin")["GIPFEL_JOB"])
    assert spec["edf"] == f"{hub.user_home('quin')}/x.toml"
    until(lambda: hub.ready("quin"), 30, hub)
    hub.call("DELETE", "/users/quin/server")
