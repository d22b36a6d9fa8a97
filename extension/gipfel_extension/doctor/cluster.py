"""Probes of the cluster: Slurm, the user's account, the current job and its broker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gipfel_cluster.broker.client import send_request_sync
from gipfel_cluster.broker.messages import (
    FactsAnswer,
    FactsRequest,
    PartitionsAnswer,
    PartitionsRequest,
    broker_socket,
)
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import Partition
from gipfel_cluster.scheduler.slurm_site import PARTITION_FIELDS, parse_associations, parse_partitions

from .examine import Finding, ProbeTopic
from .machine import Machine

SLURM = ProbeTopic(name="Slurm", group="Cluster")
ACCOUNT = ProbeTopic(name="account", group="Cluster")
BROKER = ProbeTopic(name="jobs from here", group="Cluster")
JOB = ProbeTopic(name="this job", group="Cluster")

_BROKER_SECONDS = 10.0
_PARTITIONS = ("sinfo", "--noheader", "--exact", f"--Format={PARTITION_FIELDS}")


def slurm(machine: Machine) -> Finding:
    """Check that Slurm is configured and answers."""
    is_required = machine.environment.get("GIPFEL_SCHEDULER") == "slurm"
    refuse: Callable[[str, str], Finding] = SLURM.missing if is_required else SLURM.not_applicable
    if machine.in_container:
        return SLURM.not_applicable("In a container, jobs are submitted by the job's broker.")
    presence = machine.slurm()
    if not presence.configured:
        fix = "Copy the site's file to /etc/slurm/slurm.conf, or export SLURM_CONF=FILE"
        if not presence.commands:
            fix = "sudo apt install slurm-client  # with the site's /etc/slurm/slurm.conf"
        return refuse(f"{presence.problem} Jobs run on this machine.", fix)
    answer = machine.run(_PARTITIONS)
    if not answer.ok:
        return SLURM.missing(
            f"Slurm is configured but does not answer: {answer.error}.", _slurm_fix(answer.error)
        )
    partitions = parse_partitions(answer.output)
    if not partitions:
        return SLURM.missing("Slurm has no partition that is up.", "sinfo  # or ask the administrators")
    return SLURM.ok(_described(machine, partitions))


def _described(machine: Machine, partitions: tuple[Partition, ...]) -> str:
    version = machine.run(("sinfo", "--version")).output.strip() or "Slurm"
    return f"{version}; {_partition_summary(partitions)}"


def _partition_summary(partitions: tuple[Partition, ...]) -> str:
    gpus = sum(gpu.count for each in partitions for gpu in each.total_gpus)
    names = ", ".join(each.name for each in partitions[:4]) + (" …" if len(partitions) > 4 else "")
    nodes = sum(each.nodes for each in partitions)
    return f"partitions {names}: {nodes} nodes and {gpus} GPUs, counted by partition."


def _slurm_fix(error: str) -> str:
    lower = error.lower()
    if "munge" in lower or "authentication" in lower or "credential" in lower:
        return "sudo systemctl start munge  # same key and clock as the controller: munge -n | unmunge"
    if "contact" in lower or "connect" in lower or "answer" in lower:
        return "scontrol ping  # on the controller: sudo systemctl start slurmctld"
    return "scontrol ping"


def account(machine: Machine) -> Finding:
    """Check that this user has a Slurm account, if the cluster uses accounting."""
    if machine.in_container or not machine.slurm().configured:
        return ACCOUNT.not_applicable("Slurm is not configured here.")
    argv = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "user", "withassoc")
    fields = "format=Account,DefaultAccount,Partition,QOS,DefaultQOS"
    answer = machine.run((*argv, f"name={machine.user}", fields))
    if "slurmdbd' is supported" in answer.errors:
        return ACCOUNT.not_applicable("The cluster uses no accounting.")
    if not answer.ok:
        return ACCOUNT.warning(f"The accounts can't be listed: {answer.error}.", "sacctmgr show assoc")
    found, default = parse_associations(answer.output)
    if not found:
        enforced = "AccountingStorageEnforce" in machine.run(("scontrol", "show", "config")).output
        return ACCOUNT.warning(
            f"{machine.user} has no account on this cluster"
            + (", which its configuration may require." if enforced else "."),
            f"sudo sacctmgr add user {machine.user} account=ACCOUNT",
        )
    names = sorted({each.account for each in found})
    return ACCOUNT.ok(f"Accounts: {', '.join(names[:6])}; default: {default or 'none'}.")


def broker(machine: Machine) -> Finding:
    """Check that the current job's broker can submit jobs."""
    if not machine.in_container:
        return BROKER.not_applicable("This is not the container of a job.")
    socket = broker_socket(machine.environment)
    fix = "Stop this server and start it again."
    if socket is None:
        return BROKER.missing("This job's broker has ended, so its container can't submit jobs.", fix)
    try:
        facts = send_request_sync(socket, FactsRequest(), FactsAnswer, limit=_BROKER_SECONDS)
    except GipfelError as error:
        return BROKER.missing(f"This job's broker does not answer: {error.problem}", error.fix or fix)
    submits = f"The broker submits to {facts.scheduler} and runs containers with {facts.engine}."
    if facts.scheduler != "slurm":
        return BROKER.ok(submits)
    try:
        partitions = send_request_sync(
            socket, PartitionsRequest(), PartitionsAnswer, limit=_BROKER_SECONDS
        ).partitions
    except GipfelError as error:
        return BROKER.missing(
            f"Slurm does not answer the job's broker: {error.problem}", "On a login node: scontrol ping"
        )
    return BROKER.ok(f"{submits} Slurm answers: {_partition_summary(partitions)}")


def job(machine: Machine) -> Finding:
    """Report the current job, its node and its environment."""
    variables = machine.environment
    job_id = variables.get("SLURM_JOB_ID") or variables.get("GIPFEL_JOB_ID")
    if not job_id:
        return JOB.not_applicable("This is not a job.")
    node = variables.get("GIPFEL_NODE") or variables.get("SLURMD_NODENAME") or "this node"
    if not variables.get("GIPFEL_RUN"):
        return JOB.ok(f"{job_id} on {node}, not started by Gipfel.")
    record = read_record(machine)
    edf = record.get("edf")
    name = str(edf.get("name", "")) if isinstance(edf, dict) else ""
    where = "without a container"
    if machine.in_container:
        where = f"in the container of {name or 'its EDF'}, started by {variables['GIPFEL_ENGINE']}"
    nodes = record.get("nodes")
    count = f"{len(nodes)} nodes, " if isinstance(nodes, list) and len(nodes) > 1 else ""
    return JOB.ok(f"{job_id} on {node}, {count}{where}.")


def read_record(machine: Machine) -> dict[str, Any]:
    """Return the record of the job's run; empty if it can't be read."""
    run = machine.environment.get("GIPFEL_RUN", "")
    try:
        found = json.loads(machine.read(Path(run, "record.json")) if run else "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
