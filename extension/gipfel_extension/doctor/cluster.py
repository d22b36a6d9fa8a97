"""Probes of the cluster: Slurm, the account that is charged, and the broker of a job."""

from collections.abc import Callable

from gipfel_cluster.broker.client import ask_now
from gipfel_cluster.broker.messages import (
    FactsAnswer,
    FactsRequest,
    PartitionsAnswer,
    PartitionsRequest,
    broker_socket,
)
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import Partition
from gipfel_cluster.scheduler.slurm_site import PARTITION_FIELDS, read_associations, read_partitions

from .examine import Finding, Subject
from .machine import Machine

SLURM = Subject(name="Slurm", group="Cluster")
ACCOUNT = Subject(name="account", group="Cluster")
BROKER = Subject(name="jobs from here", group="Cluster")

_BROKER_SECONDS = 10.0
_PARTITIONS = ("sinfo", "--noheader", "--exact", f"--Format={PARTITION_FIELDS}")


def slurm(machine: Machine) -> Finding:
    """Look for a cluster that is configured and answers."""
    wanted = machine.environment.get("GIPFEL_SCHEDULER") == "slurm"
    refuse: Callable[[str, str], Finding] = SLURM.missing if wanted else SLURM.not_applicable
    if machine.in_container:
        return SLURM.not_applicable("This is a container: the job's broker submits for it.")
    presence = machine.slurm()
    if not presence.configured:
        fix = "Copy the site's file to /etc/slurm/slurm.conf, or export SLURM_CONF=FILE"
        if not presence.commands:
            fix = "sudo apt install slurm-client  # with the site's /etc/slurm/slurm.conf"
        return refuse(f"{presence.problem} Jobs run on this machine.", fix)
    answer = machine.run(_PARTITIONS)
    if not answer.ok:
        return SLURM.missing(
            f"Slurm is configured and does not answer: {answer.why}.", _slurm_fix(answer.why)
        )
    partitions = read_partitions(answer.output)
    if not partitions:
        return SLURM.missing("Slurm has no partition that is up.", "sinfo  # or ask its administrators")
    return SLURM.ok(_described(machine, partitions))


def _described(machine: Machine, partitions: tuple[Partition, ...]) -> str:
    version = machine.run(("sinfo", "--version")).output.strip() or "Slurm"
    return f"{version}; {_counted(partitions)}"


def _counted(partitions: tuple[Partition, ...]) -> str:
    gpus = sum(gpu.count for each in partitions for gpu in each.all_gpus)
    names = ", ".join(each.name for each in partitions[:4]) + (" …" if len(partitions) > 4 else "")
    nodes = sum(each.nodes for each in partitions)
    return f"partitions {names}: {nodes} nodes and {gpus} GPUs, counted by partition."


def _slurm_fix(why: str) -> str:
    lower = why.lower()
    if "munge" in lower or "authentication" in lower or "credential" in lower:
        return "sudo systemctl start munge  # same key and clock as the controller: munge -n | unmunge"
    if "contact" in lower or "connect" in lower or "answer" in lower:
        return "scontrol ping  # on the controller: sudo systemctl start slurmctld"
    return "scontrol ping"


def account(machine: Machine) -> Finding:
    """Look for an account that this user may charge, where the cluster keeps accounts."""
    if machine.in_container or not machine.slurm().configured:
        return ACCOUNT.not_applicable("There is no cluster to charge here.")
    argv = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "user", "withassoc")
    fields = "format=Account,DefaultAccount,Partition,QOS,DefaultQOS"
    answer = machine.run((*argv, f"name={machine.user}", fields))
    if "slurmdbd' is supported" in answer.errors:
        return ACCOUNT.not_applicable("The cluster keeps no accounts.")
    if not answer.ok:
        return ACCOUNT.warning(f"Accounts could not be asked for: {answer.why}.", "sacctmgr show assoc")
    found, default = read_associations(answer.output)
    if not found:
        enforced = "AccountingStorageEnforce" in machine.run(("scontrol", "show", "config")).output
        return ACCOUNT.warning(
            f"{machine.user} has no account on this cluster"
            + (", which it may insist on." if enforced else "."),
            f"sudo sacctmgr add user {machine.user} account=ACCOUNT",
        )
    names = sorted({each.account for each in found})
    return ACCOUNT.ok(f"May charge {', '.join(names[:6])}; by default {default or 'none'}.")


def broker(machine: Machine) -> Finding:
    """Ask the broker of the job that this is typed in whether jobs can be submitted from here."""
    if not machine.in_container:
        return BROKER.not_applicable("This is not the container of a job.")
    socket = broker_socket(machine.environment)
    fix = "Stop this server and start it again."
    if socket is None:
        return BROKER.missing("This job's broker is gone: nothing can be submitted from its container.", fix)
    try:
        facts = ask_now(socket, FactsRequest(), FactsAnswer, limit=_BROKER_SECONDS)
    except GipfelError as error:
        return BROKER.missing(f"This job's broker does not answer: {error.problem}", error.fix or fix)
    submits = f"The broker submits to {facts.scheduler} and runs containers by {facts.engine}."
    if facts.scheduler != "slurm":
        return BROKER.ok(submits)
    try:
        partitions = ask_now(socket, PartitionsRequest(), PartitionsAnswer, limit=_BROKER_SECONDS).partitions
    except GipfelError as error:
        return BROKER.missing(
            f"Slurm does not answer the job's broker: {error.problem}", "On a login node: scontrol ping"
        )
    return BROKER.ok(f"{submits} Slurm answers: {_counted(partitions)}")
