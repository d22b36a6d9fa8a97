"""Probes of `gipfel doctor`: they check machine, cluster, account and environment, and name fixes.

`examine.examine` runs all `probes` in parallel on an `examine.Machine`, with a time limit. A probe is a
function that returns an `examine.Finding`; `examine.format_lines` formats the findings.
"""

from . import cluster, containers, gpus, hub_operation
from .examine import Machine, Probe


def probes(machine: Machine, *, operator: bool) -> tuple[Probe, ...]:
    """Return the probes for a machine; with ``operator``, also those of a hub's machine."""
    engines = (containers.engine(name) for name in machine.engines)
    outside = (
        *(Probe(topic, check) for topic, check in engines),
        Probe(containers.NAMESPACES, containers.namespaces),
        Probe(containers.FUSE, containers.fuse),
        Probe(containers.SUBORDINATE, containers.subordinate),
        Probe(containers.RUNTIME, containers.runtime),
    )
    found = (
        Probe(cluster.JOB, cluster.job),
        Probe(cluster.SLURM, cluster.slurm),
        Probe(cluster.ACCOUNT, cluster.account),
        Probe(cluster.BROKER, cluster.broker),
        # In a container, the programs of the image are not those that start containers on the node.
        *(() if machine.in_container else outside),
        Probe(gpus.NVML, gpus.nvml),
        Probe(gpus.PROFILING, gpus.profiling),
        Probe(gpus.AMD, gpus.amd),
        Probe(hub_operation.HOME, hub_operation.home),
        Probe(hub_operation.RUNS, hub_operation.runs),
        Probe(hub_operation.SCRATCH, hub_operation.scratch),
        Probe(hub_operation.LOCAL, hub_operation.local),
        Probe(cluster.PORTS, cluster.server_port),
        Probe(cluster.HUB_PORT, cluster.hub_port),
        Probe(cluster.HUB, cluster.hub),
        Probe(containers.SYSTEM, containers.system),
        Probe(containers.PACKAGES, containers.packages),
        Probe(containers.TRAINING, containers.training),
        Probe(containers.PROGRAMS, containers.programs),
    )
    if not operator:
        return found
    return (
        *found,
        Probe(hub_operation.JUPYTERHUB, hub_operation.jupyterhub),
        Probe(hub_operation.NODE, hub_operation.node),
        Probe(hub_operation.PROXY, hub_operation.proxy),
        Probe(hub_operation.ACTING, hub_operation.acting),
        Probe(hub_operation.ADDRESS, hub_operation.address),
        Probe(hub_operation.RUNTIME, hub_operation.runtime),
        Probe(hub_operation.EXTENDING, hub_operation.extending),
        Probe(hub_operation.STATE, hub_operation.state),
        Probe(hub_operation.ORIGINS, hub_operation.origins),
    )
