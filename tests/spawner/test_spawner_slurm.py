"""A hub whose Slurm hangs or refuses, with small programs in place of Slurm's commands."""

import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_servers import refusal, until

SINFO = "echo 'normal|normal*|up|1-00:00:00|2|idle|gpu:gh200:4'"


@pytest.fixture
def slurm(tmp_path: Path) -> Callable[..., None]:
    (tmp_path / "bin").mkdir()

    def write(**programs: str) -> None:
        for name, body in programs.items():
            path = tmp_path / "bin" / name
            temporary = path.with_suffix(".new")
            temporary.write_text(f"#!/bin/sh\n{body}\n")
            temporary.chmod(0o755)
            temporary.replace(path)

    return write


def start(hub: Any, user: str = "root") -> Any:
    hub.call("POST", f"/users/{user}")
    return hub.call("POST", f"/users/{user}/server", {})


@pytest.fixture
def answer_limit() -> float:
    return 0.5


@pytest.fixture
def slurm_hub(new_hub: Any, tmp_path: Path, answer_limit: float) -> Any:
    own = pwd.getpwuid(os.getuid()).pw_name
    hub = new_hub(
        "c.EDFSpawner.scheduler = 'slurm'",
        f"c.EDFSpawner.answer_limit = {answer_limit}",
        "c.EDFSpawner.stop_timeout = 5",
        environment={"PATH_FIRST": str(tmp_path / "bin")},
    )
    hub.user = own
    return hub


def test_a_silent_slurm_is_one_line_in_the_form_and_the_answer(slurm_hub: Any, slurm: Any) -> None:
    slurm(sinfo="sleep 60")
    hub = slurm_hub
    words = (
        "Slurm did not answer within 0.5 s (sinfo). Its controller may be down. Try again in a few minutes."
    )
    assert refusal(hub, hub.user, start(hub, hub.user)) == words
    browser = hub.browser(hub.user)
    status, page = browser.get("/hub/spawn")
    assert status == 200
    assert words in page
    assert 'id="gipfel-partition" name="partition" type="text"' in page


@pytest.mark.parametrize("answer_limit", [10.0])
def test_a_refusal_is_one_line(slurm_hub: Any, slurm: Any) -> None:
    slurm(
        sinfo=SINFO,
        sbatch="echo 'sbatch: error: Batch job submission failed: Invalid account or account/partition "
        "combination specified' >&2; exit 1",
    )
    assert "Pick another account" in refusal(slurm_hub, slurm_hub.user, start(slurm_hub, slurm_hub.user))


def test_silence_on_the_way_neither_ends_nor_loses_the_job(
    slurm_hub: Any, slurm: Any, tmp_path: Path
) -> None:
    hub = slurm_hub
    slurm(
        sinfo=SINFO,
        sbatch="cat > /dev/null; env > ../sbatch.env 2>/dev/null; echo 41",
        squeue="echo '41|PENDING||N/A|0|Resources|'",
        scancel=f"echo $1 >> {tmp_path}/cancelled",
    )
    assert start(hub, hub.user).status == 202
    time.sleep(1)
    slurm(squeue="sleep 60", scancel="sleep 60")
    time.sleep(2.5)
    assert hub.server(hub.user)["pending"] == "spawn"
    assert hub.job(hub.user) == "41"
    hub.end()
    hub.start()
    assert hub.server(hub.user)["pending"] == "spawn"
    assert not (tmp_path / "cancelled").exists()
    # Slurm answers again, and the job is still ours; it is cancelled when its user wants it.
    slurm(squeue="echo '41|PENDING||N/A|0|Resources|'")
    answer = hub.call("DELETE", f"/users/{hub.user}/server")
    assert answer.status in {202, 204}
    slurm(scancel=f"echo $1 >> {tmp_path}/cancelled")
    until(lambda: (tmp_path / "cancelled").exists(), 70, hub)
    slurm(squeue="echo '41|CANCELLED||N/A|15|None|'")
    until(lambda: hub.server(hub.user) == {}, 30, hub)


def test_a_job_that_no_server_owns_is_on_the_administrators_page(
    new_hub: Any, slurm: Any, tmp_path: Path
) -> None:
    hub = new_hub(
        "c.EDFSpawner.scheduler = 'slurm'",
        "c.Authenticator.admin_users = {'root'}",
        "c.EDFSpawner.answer_limit = 2",
        environment={"PATH_FIRST": str(tmp_path / "bin")},
    )
    slurm(sinfo=SINFO, sbatch=f'echo "$@" > {tmp_path}/argv; echo 7', squeue=":", scancel=":")
    start(hub)
    until(lambda: not hub.server("root"), 20, hub)
    words = (tmp_path / "argv").read_text().split()
    mark = next(word.removeprefix("--comment=") for word in words if word.startswith("--comment="))
    # Each field ends as the hub asked; a comment may hold a newline and what looks like fields.
    forged = f"x|\\n6|{mark}|ada|RUNNING|\\n"
    jobs = [
        ("7", mark, "carl"),
        ("8", "gipfel-000000000000-1", "ada"),
        ("9", "", "bea"),
        ("5", forged, "eve"),
    ]
    rows = "".join(f"{job}@{comment}@{user}@RUNNING@\\n" for job, comment, user in jobs)
    ending = "f=${SQUEUE_FORMAT2#*:}; f=${f%%,*}"
    slurm(squeue=f"""{ending}; printf '{rows}' | sed "s/@/$f/g" """)
    status, page = hub.browser("root").get("/hub/gipfel/servers")
    assert status == 200
    assert "Job 7 of carl, running: <code>scancel 7</code>" in page
    assert page.count("scancel") == 1
    slurm(squeue="sleep 60")
    assert "Slurm did not answer" in hub.browser("root").get("/hub/gipfel/servers")[1]
