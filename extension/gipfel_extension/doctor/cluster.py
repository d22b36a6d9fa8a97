"""Probes of the cluster and its network: Slurm, the user's account, the job, its broker, and ports."""

import http.client
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from gipfel_cluster.broker.client import send_request_sync
from gipfel_cluster.broker.messages import Answer, FactsAnswer, FactsRequest, PartitionsRequest, broker_socket
from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange, bind_port
from gipfel_cluster.scheduler.protocol import Partition
from gipfel_cluster.scheduler.slurm_site import PARTITION_FIELDS, parse_associations, parse_partitions

from ..telemetry.files import edf_name, read_record_file
from .examine import Finding, Machine, fix_of, missing, not_applicable, ok, warning

_BROKER_SECONDS = 10.0
_PARTITIONS = ("sinfo", "--noheader", "--exact", f"--Format={PARTITION_FIELDS}")

#: Words in Slurm's error messages, and what to do about them.
_SLURM_FIXES = (
    (
        ("munge", "authentication", "credential"),
        "sudo systemctl start munge  # same key and clock as the controller: munge -n | unmunge",
    ),
    (
        ("contact", "connect", "answer"),
        "scontrol ping  # on the controller: sudo systemctl start slurmctld",
    ),
)

_TIMEOUT_S = 5.0
_MAX_RESPONSE_BYTES = 1 << 16
_LOOPBACK = "127.0.0.1"


def slurm(machine: Machine) -> Finding:
    """Check that Slurm is configured and answers."""
    is_required = machine.environment.get("GIPFEL_SCHEDULER") == "slurm"
    refuse: Callable[[str, str], Finding] = missing if is_required else not_applicable
    if machine.in_container:
        return not_applicable("In a container, jobs are submitted by the job's broker.")
    presence = machine.slurm()
    if not presence.configured:
        fix = (
            "Copy the site's file to /etc/slurm/slurm.conf, or export SLURM_CONF=FILE"
            if presence.commands
            else "sudo apt install slurm-client  # with the site's /etc/slurm/slurm.conf"
        )
        return refuse(f"{presence.problem} Jobs run on this machine.", fix)
    answer = machine.run(_PARTITIONS)
    if not answer.ok:
        return missing(
            f"Slurm is configured but does not answer: {answer.error}.",
            fix_of(answer.error, _SLURM_FIXES, "scontrol ping"),
        )
    partitions = parse_partitions(answer.output)
    if not partitions:
        return missing("Slurm has no partition that is up.", "sinfo  # or ask the administrators")
    version = machine.run(("sinfo", "--version")).output.strip() or "Slurm"
    return ok(f"{version}; {_partition_summary(partitions)}")


def _partition_summary(partitions: tuple[Partition, ...]) -> str:
    gpus = sum(gpu.count for each in partitions for gpu in each.total_gpus)
    names = ", ".join(each.name for each in partitions[:4]) + (" …" if len(partitions) > 4 else "")
    nodes = sum(each.nodes for each in partitions)
    return f"partitions {names}: {nodes} nodes and {gpus} GPUs, counted by partition."


def account(machine: Machine) -> Finding:
    """Check that this user has a Slurm account, if the cluster uses accounting."""
    if machine.in_container or not machine.slurm().configured:
        return not_applicable("Slurm is not configured here.")
    argv = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "user", "withassoc")
    fields = "format=Account,DefaultAccount,Partition,QOS,DefaultQOS"
    answer = machine.run((*argv, f"name={machine.user}", fields))
    if "slurmdbd' is supported" in answer.errors:
        return not_applicable("The cluster uses no accounting.")
    if not answer.ok:
        return warning(f"The accounts can't be listed: {answer.error}.", "sacctmgr show assoc")
    found, default = parse_associations(answer.output)
    if not found:
        enforced = "AccountingStorageEnforce" in machine.run(("scontrol", "show", "config")).output
        return warning(
            f"{machine.user} has no account on this cluster"
            + (", which its configuration may require." if enforced else "."),
            f"sudo sacctmgr add user {machine.user} account=ACCOUNT",
        )
    names = sorted({each.account for each in found})
    return ok(f"Accounts: {', '.join(names[:6])}; default: {default or 'none'}.")


def broker(machine: Machine) -> Finding:
    """Check that the current job's broker can submit jobs."""
    if not machine.in_container:
        return not_applicable("This is not the container of a job.")
    socket = broker_socket(machine.environment)
    fix = "Stop this server and start it again."
    if socket is None:
        return missing("This job's broker has ended, so its container can't submit jobs.", fix)
    try:
        facts = send_request_sync(socket, FactsRequest(), FactsAnswer, limit=_BROKER_SECONDS)
    except GipfelError as error:
        return missing(f"This job's broker does not answer: {error.problem}", error.fix or fix)
    submits = f"The broker submits to {facts.scheduler} and runs containers with {facts.engine}."
    if facts.scheduler != "slurm":
        return ok(submits)
    try:
        partitions = send_request_sync(
            socket, PartitionsRequest(), Answer[tuple[Partition, ...]], limit=_BROKER_SECONDS
        ).value
    except GipfelError as error:
        return missing(
            f"Slurm does not answer the job's broker: {error.problem}", "On a login node: scontrol ping"
        )
    return ok(f"{submits} Slurm answers: {_partition_summary(partitions)}")


def job(machine: Machine) -> Finding:
    """Report the current job, its node and its environment."""
    variables = machine.environment
    job_id = variables.get("SLURM_JOB_ID") or variables.get("GIPFEL_JOB_ID")
    if not job_id:
        return not_applicable("This is not a job.")
    node = variables.get("GIPFEL_NODE") or variables.get("SLURMD_NODENAME") or "this node"
    if not variables.get("GIPFEL_RUN"):
        return ok(f"{job_id} on {node}, not started by Gipfel.")
    record = read_record(machine)
    where = "without a container"
    if machine.in_container:
        edf = edf_name(record) or "its EDF"
        where = f"in the container of {edf}, started by {variables['GIPFEL_ENGINE']}"
    nodes = record.get("nodes")
    count = f"{len(nodes)} nodes, " if isinstance(nodes, list) and len(nodes) > 1 else ""
    return ok(f"{job_id} on {node}, {count}{where}.")


def read_record(machine: Machine) -> dict[str, Any]:
    """Return the record of the job's run; empty if it can't be read."""
    run = machine.environment.get("GIPFEL_RUN", "")
    return read_record_file(machine.path(run)) if run else {}


def server_port(machine: Machine) -> Finding:
    """Check that a server can bind a port."""
    try:
        ports = PortRange.parse(machine.environment.get(PORTS_VARIABLE, ""))
        bound = bind_port(_LOOPBACK, ports)
    except GipfelError as error:
        return missing(error.problem, error.fix or "ip link set lo up")
    bound.close()
    return ok(f"A server can bind one of {ports}." if ports else "A server can bind a port.")


def hub_port(machine: Machine) -> Finding:
    """Check that the port of `make up` is free, or that a hub answers there."""
    if "JUPYTERHUB_API_URL" in machine.environment or "SLURM_JOB_ID" in machine.environment:
        return not_applicable("A server is reached through its hub.")
    given = machine.environment.get("GIPFEL_PORT", "8000")
    if not (given.isdecimal() and 0 < int(given) < 65536):
        return missing(f"GIPFEL_PORT is {given!r}, which is not a port.", "export GIPFEL_PORT=8000")
    try:
        with socket.create_connection((_LOOPBACK, int(given)), timeout=_TIMEOUT_S):
            pass
    except OSError:
        return ok(f"Port {given} of this machine is free for `make up`.")
    version = _hub_version(f"http://{_LOOPBACK}:{given}/hub/api")
    if version:
        return ok(f"A hub (JupyterHub {version}) answers on port {given}.")
    return warning(f"Port {given} is in use by another program.", "GIPFEL_PORT=8001 make up")


def hub(machine: Machine) -> Finding:
    """Check that the hub of this server answers."""
    url = machine.environment.get("JUPYTERHUB_API_URL", "")
    if not url:
        return not_applicable("This process does not belong to a hub's server.")
    version = _hub_version(url)
    if version:
        return ok(f"JupyterHub {version} answers at {url}.")
    return missing(
        f"The hub does not answer at {url} within {_TIMEOUT_S:.0f} s.",
        f"curl -m 5 {url}  # on the hub: a firewall, or c.JupyterHub.hub_connect_ip",
    )


def _hub_version(url: str) -> str:
    """Return the version of the hub at an address; empty if none answers."""
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        return ""
    # The hub is reached directly, even if the environment names a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/", timeout=_TIMEOUT_S) as answer:
            content = json.loads(answer.read(_MAX_RESPONSE_BYTES))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return ""
    version = content.get("version") if isinstance(content, dict) else None
    return version if isinstance(version, str) else ""
