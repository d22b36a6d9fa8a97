"""The registry and a real Slurm: the owner of a job, draining a node, and resuming only drained ones."""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError
from gipfel_extension.registry import queries
from gipfel_extension.registry.cases import StepView, steps
from gipfel_extension.registry.nodes import SlurmNodes
from gipfel_extension.registry.queries import RefusedError, Sender
from gipfel_extension.registry.rules import load_rules
from gipfel_extension.registry.schema import open_database
from gipfel_extension.registry.service import Registry
from gipfel_extension.registry.settings import Settings
from gipfel_extension.vetting.history.site_registry import SharedReport

pytestmark = pytest.mark.cluster

_SETTINGS = {
    "confirm_jobs": True,
    "drain": {"cluster": "tests", "dry_run": False, "per_hour": 2, "max_share": 0.5},
}


def _report(node: str, job: str, **entry: Any) -> SharedReport:
    now = time.time_ns()
    words = {
        "node": node, "check": "xid", "type": "xid", "scope": "node", "verdict": "fail", "codes": [79],
        "reason": "XID 79", "started_ns": now,
    }  # fmt: skip
    record = {
        "cluster": "tests", "job": job, "protocol": "quick", "started_ns": now, "ended_ns": now,
        "entries": [words | entry],
    }  # fmt: skip
    return SharedReport.model_validate({"record": record})


def _job(cluster: OneMachine, user: str, node: str) -> str:
    argv = [
        "sbatch",
        "--parsable",
        "--chdir=/tmp",
        "--output=/dev/null",
        f"--nodelist={node}",
        "--wrap=sleep 600",
    ]
    job = cluster.call(argv, user=user).strip()
    listing = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    assert wait_until(lambda: cluster.call(listing).strip() == "RUNNING", 60)
    return job


def _node(cluster: OneMachine, node: str) -> tuple[str, str]:
    """Its state and the reason that Slurm shows."""
    words = cluster.call(
        ["sinfo", "--noheader", "--Node", f"--nodes={node}", "--partition=normal", "--format=%T|%E"]
    )
    state, _, reason = words.strip().partition("|")
    return state, reason


@pytest.fixture
def untouched(cluster: OneMachine) -> Iterator[OneMachine]:
    """The cluster; after the test, its nodes are resumed and its jobs cancelled."""
    yield cluster
    jobs = cluster.call(["squeue", "--noheader", "--format=%A"]).split()
    if jobs:
        cluster.call(["scancel", *jobs])
        assert wait_until(lambda: not cluster.call(["squeue", "--noheader", "--format=%A"]).split(), 60)
    for node in cluster.node_names:
        if "drain" in _node(cluster, node)[0]:
            cluster.call(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        # Of a node that ran jobs while it was drained, sinfo keeps reporting "mixed".
        listing = ["scontrol", "show", "node", node]
        assert wait_until(lambda listing=listing: "State=IDLE " in cluster.call(listing), 60)


def test_two_users_jobs_drain_a_node_and_only_ours_is_resumed(
    untouched: OneMachine, plain_users: tuple[UnixUser, UnixUser], tmp_path: Path
) -> None:
    cluster, (ada, bob) = untouched, (user.name for user in plain_users)
    environment = {"PATH": os.environ["PATH"] + ":/usr/sbin", **cluster.environment}
    engine = open_database(f"sqlite:///{tmp_path}/registry.sqlite")
    registry = Registry(engine, Settings.model_validate(_SETTINGS), load_rules(), SlurmNodes(environment))
    first, second = _job(cluster, ada, "node01"), _job(cluster, bob, "node01")

    async def send(name: str, report: SharedReport, *, vouched: bool = False) -> None:
        await registry.receive(report, Sender(name=name, vouched=vouched))
        await registry.wait_until_idle()

    async def the_step(action: str) -> StepView:
        (step,) = await registry.query(lambda session: steps(session, waiting=True))
        assert step.action == action
        return step

    async def story() -> None:
        # Slurm says whose job it is, and which nodes it has.
        for name, node, job in ((bob, "node01", first), (ada, "node02", first)):
            with pytest.raises(RefusedError, match=f"Job {job} is not yours, or does not have these nodes"):
                await send(name, _report(node, job))
        for job in ("999999", "1; touch /tmp/x", "--help", "1,2"):
            assert await SlurmNodes(environment).job(job) is None
        await send(ada, _report("node01", first))
        await send(bob, _report("node01", second))
        results = await registry.query(lambda session: queries.node_history(session, "tests", "node01"))
        assert [(each.reporter, each.confirmed) for each in results] == [(bob, True), (ada, True)]

        # Drained with a reason of ours; running jobs continue.
        drain = await the_step("drain")
        done = await registry.recovery.decide(drain.id, "approve", "olga")
        assert done.state == "done"
        state, reason = _node(cluster, "node01")
        assert state in {"draining", "drained"}
        assert re.fullmatch(r"gipfel gpu-lost [0-9a-f]{8}", reason)
        assert cluster.call(["squeue", "--noheader", f"--jobs={first}", "--format=%T"]).strip() == "RUNNING"

        # The other half of the partition stays.
        reboot = await the_step("reboot")
        await send("service:ops", _report("node02", "1"), vouched=True)
        other = next(
            each
            for each in await registry.query(lambda session: steps(session, waiting=True))
            if each.node == "node02"
        )
        with pytest.raises(
            GipfelError, match=r"2 of 2 nodes of [a-z]+ would be out of service, and 50% are allowed"
        ):
            await registry.recovery.decide(other.id, "approve", "olga")
        assert _node(cluster, "node02")[0] == "idle"
        await registry.recovery.decide(other.id, "dismiss", "olga")

        # Back only after a run that the operators vouch for, and only while the reason is ours.
        await registry.recovery.decide(reboot.id, "approve", "olga")
        await registry.recovery.decide((await the_step("recheck")).id, "approve", "olga")
        await send("service:ops", _report("node01", "1", verdict="pass", codes=[]), vouched=True)
        resume = await the_step("resume")
        cluster.call(["scontrol", "update", "NodeName=node01", "Reason=fan | broken"])
        with pytest.raises(GipfelError, match=r"drained for another reason: fan \| broken"):
            await registry.recovery.decide(resume.id, "approve", "olga")
        assert "drain" in _node(cluster, "node01")[0]
        cluster.call(["scontrol", "update", "NodeName=node01", f"Reason={reason}"])
        await registry.recovery.decide(resume.id, "approve", "olga")
        assert wait_until(lambda: "drain" not in _node(cluster, "node01")[0], 30)
        events = [
            (each.event, each.node)
            for each in await registry.query(queries.recent_audit_lines)
            if each.actor == "olga"
        ]
        assert events.count(("drain", "node01")) == events.count(("resume", "node01")) == 1

    try:
        asyncio.run(story())
    finally:
        engine.dispose()
