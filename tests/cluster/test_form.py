"""The form on a real Slurm: idle GPUs, expected starts, reservations, accounts."""

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import accounting
import httpx
import pytest
from accounting import Accounting
from hub_process import HubProcess
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import current_user_name
from gipfel_cluster.scheduler.notation import GpuCount
from gipfel_cluster.scheduler.protocol import JobRequest, Partition
from gipfel_cluster.scheduler.slurm import SlurmScheduler
from gipfel_cluster.scheduler.slurm_limits import parse_limits
from gipfel_cluster.scheduler.slurm_usage import quota_sections
from gipfel_cluster.workloads.quota import check_limits
from gipfel_spawner.form.options import OptionError, UserOptions
from gipfel_spawner.form.validation import check_choices

pytestmark = pytest.mark.cluster


def scheduler(cluster: OneMachine, **more: str) -> SlurmScheduler:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return SlurmScheduler(environment={"PATH": path, **cluster.environment, **more}, limit=20)


def request(user: UnixUser | None = None, **changes: Any) -> JobRequest:
    home = str(user.home) if user else "/"
    given = {"name": "form", "script": "#!/bin/sh\nsleep 600\n", "directory": home, "time": "30"}
    return JobRequest.model_validate({**given, "user": user.name if user else "", **changes})


def partition(cluster: OneMachine, name: str = "normal") -> Partition:
    # A new scheduler each time: one remembers its answer for half a minute.
    found = asyncio.run(scheduler(cluster).partitions())
    return next(each for each in found if each.name == name)


def jobs(cluster: OneMachine) -> list[str]:
    return cluster.call(["squeue", "--noheader", "--format=%A"]).split()


@pytest.fixture
def quiet(cluster: OneMachine) -> Iterator[OneMachine]:
    """The cluster without jobs, before and after."""

    def end() -> None:
        cluster.call(["scancel", f"--user={current_user_name()}"])
        assert wait_until(lambda: not jobs(cluster), 30)
        assert wait_until(lambda: partition(cluster).idle_nodes == 2, 30)

    end()
    yield cluster
    end()


def test_idle_gpus_follow_the_jobs(quiet: OneMachine) -> None:
    before = partition(quiet)
    assert before.total_gpus == before.idle_gpus == (GpuCount(type="gh200", count=8),)
    assert (before.default, before.time_limit_s, before.default_time_limit_s) == (True, 86400, 3600)
    assert (before.nodes, before.idle_nodes, before.cpus, before.memory) == (2, 2, 16, 65536)
    job = asyncio.run(scheduler(quiet).submit(request(gpus_per_node=3)))
    assert wait_until(lambda: partition(quiet).idle_gpus == (GpuCount(type="gh200", count=5),), 30)
    # The other partition is made of the same nodes.
    assert partition(quiet, "debug").idle_gpus == (GpuCount(type="gh200", count=5),)
    assert partition(quiet).idle_nodes == 1
    asyncio.run(scheduler(quiet).cancel(job))
    assert wait_until(lambda: partition(quiet).idle_gpus == (GpuCount(type="gh200", count=8),), 30)
    quiet.call(["scontrol", "update", "NodeName=node02", "State=DRAIN", "Reason=test"])
    try:
        assert wait_until(lambda: partition(quiet).idle_gpus == (GpuCount(type="gh200", count=4),), 30)
    finally:
        quiet.call(["scontrol", "update", "NodeName=node02", "State=RESUME"])


def test_an_expected_start_is_slurms_own_and_makes_no_job(
    quiet: OneMachine, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    user = plain_users[0]
    ours = scheduler(quiet)
    assert asyncio.run(ours.expected_start(request(user, gpus_per_node=4))) == ""
    asyncio.run(ours.submit(request(nodes=2, gpus_per_node=4, time="60")))
    assert wait_until(lambda: partition(quiet).idle_nodes == 0, 30)
    start = datetime.fromisoformat(asyncio.run(ours.expected_start(request(user, gpus_per_node=1))))
    ahead = start - datetime.now().astimezone()
    assert timedelta(minutes=55) < ahead < timedelta(minutes=65)
    assert len(jobs(quiet)) == 1


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"gpus_per_node": 5}, "Ask for fewer nodes or GPUs per node"),
        ({"nodes": 3}, ""),
        ({"partition": "absent"}, "Pick another partition"),
        ({"reservation": "absent"}, "reservation"),
    ],
)
def test_a_job_that_can_never_start_is_told_in_slurms_words(
    quiet: OneMachine, plain_users: tuple[UnixUser, UnixUser], changes: dict[str, Any], advice: str
) -> None:
    with pytest.raises(GipfelError, match=r"Slurm refused \(sbatch\)") as caught:
        asyncio.run(scheduler(quiet).expected_start(request(plain_users[0], **changes)))
    assert advice in str(caught.value)
    assert not jobs(quiet)


@pytest.fixture
def reservation(quiet: OneMachine, plain_users: tuple[UnixUser, UnixUser]) -> Iterator[str]:
    """A node kept for the first user."""
    name = "gipfel-course"
    quiet.call(
        [
            *("scontrol", "create", "reservation", f"ReservationName={name}", "StartTime=now"),
            *("Duration=60", "Nodes=node02", f"Users={plain_users[0].name}"),
        ]
    )
    yield name
    quiet.call(["scontrol", "delete", f"ReservationName={name}"])


def test_a_reservation_is_offered_to_its_users(
    quiet: OneMachine, plain_users: tuple[UnixUser, UnixUser], reservation: str
) -> None:
    mine = asyncio.run(scheduler(quiet).choices(plain_users[0].name))
    assert [each.name for each in mine.reservations or ()] == [reservation]
    # No accounting here: no choice of account or QoS.
    assert mine.associations is None
    theirs = asyncio.run(scheduler(quiet).choices(plain_users[1].name))
    assert theirs.reservations == ()
    ours = scheduler(quiet)
    inside = request(plain_users[0], nodes=1, gpus_per_node=4, reservation=reservation)
    assert asyncio.run(ours.expected_start(inside)) == ""
    with pytest.raises(GipfelError, match="Slurm refused"):
        asyncio.run(ours.expected_start(inside.model_copy(update={"user": plain_users[1].name})))
    # A reserved node's GPUs are not available to other users.
    assert wait_until(lambda: partition(quiet).idle_gpus == (GpuCount(type="gh200", count=4),), 30)


@pytest.fixture(scope="module")
def accounts(cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser]) -> Iterator[Accounting]:
    """Two accounts of the first user, one of them for one partition."""
    reason = accounting.missing()
    if reason:
        pytest.skip(reason)
    user = plain_users[0].name
    with (
        tempfile.TemporaryDirectory(prefix="gipfel-a-", dir="/var/tmp") as folder,
        Accounting(cluster, Path(folder)) as started,
    ):
        started.call("add", "cluster", "gipfel")
        started.call("add", "qos", "long")
        for account in ("physics", "course"):
            started.call("add", "account", account, "Description=x", "Organization=x")
        started.call("add", "user", user, "account=physics", "qos=normal,long", "defaultqos=normal")
        started.call("add", "user", user, "account=course", "partition=debug")
        yield started


def test_accounts_and_qos_are_those_of_slurms_own_accounting(
    cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser], accounts: Accounting
) -> None:
    ours = scheduler(cluster, **accounts.environment)
    choices = asyncio.run(ours.choices(plain_users[0].name))
    assert choices.accounts == ("physics", "course")
    assert choices.default_account == "physics"
    assert choices.qos("physics") == ("long", "normal")
    assert choices.qos("course", "normal") == ()
    assert choices.qos("course", "debug") == ("normal",)
    check_choices(UserOptions(account="physics", qos="long"), choices)
    for wrong in (
        {"account": "root"},
        {"qos": "high"},
        {"account": "course", "partition": "normal", "qos": "normal"},
    ):
        with pytest.raises(OptionError, match="You have no"):
            check_choices(UserOptions.model_validate(wrong), choices)
    # A user whom the accounting does not know has no choice at all.
    assert asyncio.run(ours.choices(plain_users[1].name)).accounts == ()


def test_what_slurms_limits_would_hold_for_ever_is_refused_before_the_start(
    cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser], accounts: Accounting
) -> None:
    user = plain_users[0]
    # It tells the accounting that there are GPUs, which limits of them need.
    accounts.start_controller()
    accounts.call("modify", "account", "physics", "set", "GrpTRES=gres/gpu=3")
    accounts.call("modify", "user", user.name, "where", "account=physics", "set", "MaxWall=12:00:00")
    accounts.call("modify", "qos", "long", "set", "MaxTRESPerJob=gres/gpu=1")
    ours = scheduler(cluster, **accounts.environment)

    def is_known() -> bool:
        limits = asyncio.run(ours.choices(user.name)).limits
        return len({each.name.partition("=")[0] for each in limits}) == 3

    assert wait_until(is_known, 30)

    def check(**changes: Any) -> str:
        return asyncio.run(check_limits(ours, request(user, **changes), {}))

    for changes, limit in (
        ({"gpus_per_node": 4}, "account physics allows 3 GPUs (GrpTRES=gres/gpu=3), 4"),
        ({"nodes": 2, "gpus_per_node": 2}, "account physics allows 3 GPUs (GrpTRES=gres/gpu=3), 4"),
        ({"time": "13:00:00"}, "allows 12 h per job (MaxWall=720), 13 h"),
        ({"gpus_per_node": 2, "qos": "long"}, "QoS long allows 1 GPU (MaxTRESPJ=gres/gpu=1), 2"),
        ({"partition": "debug", "time": "01:00:00"}, "Partition debug allows 00:30:00 (MaxTime)"),
    ):
        with pytest.raises(GipfelError) as refused:
            check(**changes)
        assert limit in refused.value.problem
        # Slurm itself accepts each of them.
        assert asyncio.run(ours.submit(request(user, **changes))).isdecimal()
    standing = check(gpus_per_node=3)
    assert standing.startswith("Used this month: 0.0 GPU hours. Share of the cluster, physics: "), standing
    quota = asyncio.run(ours.quota(user.name))
    assert {(each.account, each.used) for each in quota.usage.shares} >= {("physics", 0.0)}
    shown = {each.title: each.lines for each in quota_sections(quota)}
    physics = shown["Account physics (default), QoS long, normal"]
    assert "account physics: 3 GPUs at once, 0 in use" in physics
    assert f"{user.name} in account physics: 12 h per job" in physics
    assert shown["QoS long"] == ("QoS long: 1 GPU per job",)
    assert "Share of the cluster" in shown


def test_gpu_hours_of_the_month_are_summed_by_project_and_service(
    cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser], accounts: Accounting
) -> None:
    user = plain_users[0]
    ours = scheduler(cluster, **accounts.environment)
    # A node that the controller did not know before may take a moment.
    asked = {
        ("physics", "board"): ("gipfel-board", "normal", 2),
        ("physics", ""): ("gipfel-launch", "normal", 1),
        ("course", "board"): ("gipfel-board", "debug", 1),
    }
    submitted = {}
    for (account, service), (name, queue, gpus) in asked.items():
        wanted = {"name": name, "partition": queue, "gpus_per_node": gpus, "cpus_per_task": 1, "time": "5"}
        job = request(user, script="#!/bin/sh\nsleep 4\n", account=account, **wanted)
        submitted[account, service] = asyncio.run(ours.submit(job))
    assert wait_until(lambda: all(map(accounts.hours, submitted.values())), 90)
    hours = {key: accounts.hours(job) for key, job in submitted.items()}
    assert 2 * 4 <= 3600 * hours["physics", "board"] <= 2 * 30
    quota = asyncio.run(ours.quota(user.name))
    # The same jobs, asked for by user and month; those that the test before submitted have not run.
    spent = {(each.account, each.service): each.gpu_hours for each in quota.spent}
    assert {key: spent[key] for key in hours} == pytest.approx(hours)
    assert quota.usage.used == pytest.approx(sum(hours.values()))
    lines = next(each.lines for each in quota_sections(quota) if each.title.startswith("Used this month"))
    assert [line.partition(":")[0] for line in lines] == ["course", "physics"]
    assert all("(services: board " in line for line in lines)
    assert asyncio.run(ours.quota(plain_users[1].name)).spent == ()
    # No node has counters of energy here; sacct prints it where the database has it.
    assert quota.usage.energy_kwh is None
    for job, joules in zip(submitted.values(), (7_200_000, 1_800_000, 2**64 - 1), strict=True):
        accounts.set_energy(job, joules)
    quota = asyncio.run(ours.quota(user.name))
    assert quota.usage.energy_kwh == pytest.approx(2.5)
    titles = [each.title for each in quota_sections(quota)]
    assert f"Used this month: {quota.usage.used:.1f} GPU hours, 2.5 kWh" in titles


def test_where_accounting_is_private_the_users_own_limits_and_those_of_qos_still_hold(
    cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser], accounts: Accounting
) -> None:
    user = plain_users[0]
    accounts.hide()
    asked = ["scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos", f"users={user.name}"]
    environment = [f"{name}={value}" for name, value in accounts.environment.items()]
    limits = parse_limits(user.run("env", *environment, *asked).stdout, user.name)
    assert {each.name for each in limits} == {"MaxWall=720", "MaxTRESPJ=gres/gpu=1"}


def test_the_hubs_page_shows_what_slurm_has(
    hub: HubProcess, quiet: OneMachine, plain_users: tuple[UnixUser, UnixUser], reservation: str
) -> None:
    user = plain_users[0]
    with httpx.Client(base_url=hub.url, timeout=60, follow_redirects=True, trust_env=False) as browser:

        def xsrf() -> str:
            found = [each for each in browser.cookies.jar if each.name == "_xsrf" and each.value]
            return max(found, key=lambda each: len(each.path)).value or ""

        browser.get("/hub/login").raise_for_status()
        form = {"username": user.name, "password": hub.password, "_xsrf": xsrf()}
        page = browser.post("/hub/login?next=/hub/spawn", data=form).raise_for_status().text
        assert re.search(r"normal: \d of 8 gh200 idle · \d of 2 nodes idle · up to 1-00:00:00", page)
        # What the hub has asked for another page a moment ago is the answer for this one too.
        option = f'<option value="{reservation}">'
        assert wait_until(lambda: option in browser.get("/hub/spawn").raise_for_status().text, 45)
        assert 'name="account"' not in page

        def ask(what: str, content: dict[str, Any]) -> Any:
            path = f"/hub/api/gipfel/users/{user.name}/{what}"
            return browser.post(path, json=content, headers={"X-XSRFToken": xsrf()}).raise_for_status().json()

        assert ask("expected-start", {"gpus": 1, "time": "10"}) == {"start": "", "text": "now"}
        asyncio.run(scheduler(quiet).submit(request(gpus_per_node=4, time="60")))
        assert wait_until(lambda: partition(quiet).idle_nodes == 0, 30)
        later = ask("expected-start", {"gpus": 4, "time": "10"})
        assert "start" in later, later
        assert datetime.fromisoformat(later["start"]) > datetime.now().astimezone() + timedelta(minutes=30)
        # The file is the user's own, made by a process of the user.
        saved = ask("draft", {"name": "drafted", "toml": 'workdir = "/tmp"', "save": True})["saved"]
        assert Path(saved).stat().st_uid == user.uid
        assert Path(saved).stat().st_mode & 0o777 == 0o600
        assert ask("environment", {"edf": "drafted"})["valid"]
        other = browser.post(
            f"/hub/api/gipfel/users/{plain_users[1].name}/draft", json={}, headers={"X-XSRFToken": xsrf()}
        )
        assert other.status_code in {403, 404}
    assert len(jobs(quiet)) == 1
