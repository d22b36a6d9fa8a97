"""The configuration files of a Slurm whose nodes are processes of one machine."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

_SLURM_CONF = """\
ClusterName=gipfel
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
TopologyPlugin=topology/tree
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
SchedulerParameters=bf_interval=2
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout={silence_s}
# From the request to end (SIGTERM) to the end (SIGKILL).
KillWait=15
Epilog={folder}/epilog
NodeName=DEFAULT CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=65536{gres}
{nodes}
PartitionName=normal Nodes=ALL Default=YES DefaultTime=01:00:00 MaxTime=1-00:00:00 State=UP
PartitionName=debug Nodes=ALL DefaultTime=00:10:00 MaxTime=00:30:00 State=UP
"""

#: linuxproc follows parents and so loses an orphan; a site's control groups don't.
_EPILOG = """\
#!/bin/sh
for file in $(grep -lzx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ 2>/dev/null); do
  pid=${file#/proc/}
  pid=${pid%/environ}
  [ "$pid" = $$ ] || kill -KILL "$pid" 2>/dev/null
done
exit 0
"""


def write_configuration(
    folder: Path,
    *,
    controller: str,
    addresses: Mapping[str, str],
    gpus: int,
    version: str,
    silence_s: int,
) -> None:
    """Write everything that Slurm's daemons read.

    Parameters
    ----------
    folder
        Where it goes; ``gpu`` in it gets one device file per GPU, which are all `/dev/null`.
    controller, addresses
        The controller's address, and that of each node.
    gpus
        GPUs of each node.
    version
        What ``slurmd -V`` prints.
    silence_s
        Seconds after which the controller takes a silent node for dead.
    """
    gres = f" Gres=gpu:gh200:{gpus}" if gpus else ""
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={node} NodeAddr={address}" for node, address in addresses.items()
    )
    configuration = _SLURM_CONF.format(
        controller=controller, folder=folder, gres=gres, nodes=nodes, silence_s=silence_s
    )
    (folder / "slurm.conf").write_text(configuration)
    # Every node on a leaf switch of its own.
    leaves = [f"SwitchName=leaf{n} Nodes={node}\n" for n, node in enumerate(addresses, start=1)]
    root = f"SwitchName=root Switches=leaf[1-{len(leaves)}]\n" if len(leaves) > 1 else ""
    (folder / "topology.conf").write_text("".join(leaves) + root)
    (folder / "epilog").write_text(_EPILOG)
    (folder / "epilog").chmod(0o755)
    files = f"{folder}/gpu/gpu[0-{gpus - 1}]"
    line = f"NodeName={','.join(addresses)} Name=gpu Type=gh200 File={files}\n" if gpus else ""
    (folder / "gres.conf").write_text(line)
    for number in range(gpus):
        os.mknod(folder / "gpu" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (folder / "cgroup.conf").write_text(_cgroup_configuration(version))


def _cgroup_configuration(version: str) -> str:
    """A ``cgroup.conf`` that asks for no control group; older daemons load a plugin all the same."""
    numbers = tuple(int(part) for part in version.rsplit(maxsplit=1)[-1].split(".")[:2])
    if numbers >= (23, 2):
        return "CgroupPlugin=disabled\n"
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
