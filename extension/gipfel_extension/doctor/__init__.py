"""Probes of `gipfel doctor`: they check machine, cluster, account and environment, and name fixes.

`examine.examine` runs all `probes` in parallel on an `examine.Machine`, with a time limit. A probe is a
function that returns an `examine.Finding`; `examine.format_lines` formats the findings.
"""

from functools import partial

from . import cluster, containers, gpus, hub_operation
from .examine import Machine, Probe


def probes(machine: Machine, *, operator: bool) -> tuple[Probe, ...]:
    """Return the probes for a machine; with ``operator``, also those of a hub's machine."""
    outside = (
        *(
            Probe(f"engine {name}", "Containers", partial(containers.engine, name))
            for name in machine.engines
        ),
        Probe("user namespaces", "Containers", containers.namespaces),
        Probe("FUSE", "Containers", containers.fuse),
        Probe("subordinate ids", "Containers", containers.subordinate),
        Probe("runtime", "Containers", containers.runtime),
    )
    found = (
        Probe("this job", "Cluster", cluster.job),
        Probe("Slurm", "Cluster", cluster.slurm),
        Probe("account", "Cluster", cluster.account),
        Probe("jobs from here", "Cluster", cluster.broker),
        # In a container, the programs of the image are not those that start containers on the node.
        *(() if machine.in_container else outside),
        Probe("NVIDIA (NVML)", "GPUs", gpus.nvml),
        Probe("SM and tensor activity", "GPUs", gpus.profiling),
        Probe("AMD", "GPUs", gpus.amd),
        Probe("home", "Directories", hub_operation.home),
        Probe("run folders", "Directories", hub_operation.runs),
        Probe("scratch", "Directories", hub_operation.scratch),
        Probe("temporary files", "Directories", hub_operation.local),
        Probe("free port", "Network", cluster.server_port),
        Probe("port of make up", "Network", cluster.hub_port),
        Probe("hub", "Network", cluster.hub),
        Probe("system", "Versions", containers.system),
        Probe("packages", "Versions", containers.packages),
        Probe("torch", "Versions", containers.training),
        Probe("programs", "Versions", containers.programs),
    )
    if not operator:
        return found
    return (
        *found,
        Probe("JupyterHub", "Hub", hub_operation.jupyterhub),
        Probe("Node.js", "Hub", hub_operation.node),
        Probe("proxy", "Hub", hub_operation.proxy),
        Probe("acting as users", "Hub", hub_operation.acting),
        Probe("address for nodes", "Hub", hub_operation.address),
        Probe("runtime on nodes", "Hub", hub_operation.runtime),
        Probe("extending time", "Hub", hub_operation.extending),
        Probe("state directory", "Hub", hub_operation.state),
        Probe("origins", "Hub", hub_operation.origins),
    )
