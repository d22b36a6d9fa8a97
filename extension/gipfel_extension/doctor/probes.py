"""List of all probes, in the order of their display."""

from . import cluster, containers, directories, gpus, hub_operation, network, versions
from .examine import Probe
from .machine import Machine


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
        Probe(directories.HOME, directories.home),
        Probe(directories.RUNS, directories.runs),
        Probe(directories.SCRATCH, directories.scratch),
        Probe(directories.LOCAL, directories.local),
        Probe(network.PORTS, network.server_port),
        Probe(network.HUB_PORT, network.hub_port),
        Probe(network.HUB, network.hub),
        Probe(versions.SYSTEM, versions.system),
        Probe(versions.PACKAGES, versions.packages),
        Probe(versions.TRAINING, versions.training),
        Probe(versions.PROGRAMS, versions.programs),
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
