"""All probes, in the order in which they are shown."""

from . import cluster, containers, directories, gpus, job, network, operating, versions
from .examine import Probe
from .machine import Machine


def probes(machine: Machine, *, operator: bool) -> tuple[Probe, ...]:
    """List what is to be asked of a machine, with what only a hub needs for its operators."""
    engines = (containers.engine(name) for name in machine.engines)
    outside = (
        *(Probe(subject, look) for subject, look in engines),
        Probe(containers.NAMESPACES, containers.namespaces),
        Probe(containers.FUSE, containers.fuse),
        Probe(containers.SUBORDINATE, containers.subordinate),
        Probe(containers.RUNTIME, containers.runtime),
    )
    found = (
        Probe(job.JOB, job.job),
        Probe(cluster.SLURM, cluster.slurm),
        Probe(cluster.ACCOUNT, cluster.account),
        Probe(cluster.BROKER, cluster.broker),
        # What the image has says nothing of what the job's node runs containers with.
        *(() if machine.in_container else outside),
        Probe(gpus.NVML, gpus.nvml),
        Probe(gpus.PROFILING, gpus.profiling),
        Probe(gpus.AMD, gpus.amd),
        Probe(directories.HOME, directories.home),
        Probe(directories.RUNS, directories.runs),
        Probe(directories.SCRATCH, directories.scratch),
        Probe(directories.LOCAL, directories.local),
        Probe(network.PORTS, network.ports),
        Probe(network.BROWSER, network.browser),
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
        Probe(operating.JUPYTERHUB, operating.jupyterhub),
        Probe(operating.NODE, operating.node),
        Probe(operating.PROXY, operating.proxy),
        Probe(operating.ACTING, operating.acting),
        Probe(operating.ADDRESS, operating.address),
        Probe(operating.RUNTIME, operating.runtime),
        Probe(operating.EXTENDING, operating.extending),
        Probe(operating.STATE, operating.state),
        Probe(operating.ORIGINS, operating.origins),
    )
