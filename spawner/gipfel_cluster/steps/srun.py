"""A step as Slurm is asked for it: argv and environment of ``srun``, and of what ends or signals it; pure."""

from collections.abc import Mapping, Sequence

from .spec import StepPlan

# What srun itself must know; everything else of the outer job would become an option of the step.
_KEPT = frozenset(("SLURM_CONF",))
_SLURM = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "OPAL_")
#: What another launcher may have left: every one of them would tell a rank that it is another one.
LEAKED = frozenset(
    (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
        "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MV2_COMM_WORLD_RANK",
    )
)  # fmt: skip
_LEAKED_FAMILIES = ("TORCHELASTIC_", "PET_", "ACCELERATE_", "MPI_LOCALRANKID", "HYDRA_", "HYDI_")


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables without those by which a launcher or a scheduler tells its own processes who they are."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name in LEAKED or name.startswith((*_SLURM, *_LEAKED_FAMILIES)))
    }


def step_options(plan: StepPlan) -> tuple[str, ...]:
    """The options of srun; every one is said, so that none is inherited."""
    spec, nodes = plan.spec, plan.nodes
    tasks = spec.tasks_per_node
    cpus = spec.cpus_per_task or max(1, plan.setting.cpus // tasks)
    return (
        f"--jobid={plan.setting.slurm_job}",
        "--overlap",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={len(nodes) * tasks}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={cpus}",
        "--mem=0",
        # The ranks bind themselves, to what is near their GPU.
        "--cpu-bind=none",
        "--distribution=block",
        *(["--overcommit"] if tasks * cpus > plan.setting.cpus else []),
        *(["--gres=none"] if spec.gpus_per_node == 0 and not spec.gpus else []),
        f"--job-name={spec.name}",
        f"--kill-on-bad-exit={int(spec.end_together)}",
        *([] if spec.end_together else ["--no-kill"]),
        "--wait=0",
        "--input=none",
        "--unbuffered",
        "--open-mode=append",
        f"--output={log_pattern(plan)}",
        "--chdir=/",
    )


def log_pattern(plan: StepPlan) -> str:
    """Where Slurm writes what tasks say; ``%t`` is the task's number, ``%n`` the node's."""
    name = "rank-%t.log" if plan.spec.tasks_per_node > 1 else "node-%n.log"
    # A percent sign of the folder's own is doubled.
    return f"{plan.folder.replace('%', '%%')}/{name}"


def log_file(plan: StepPlan, rank: int) -> str:
    """The same for one task, without Slurm."""
    tasks = plan.spec.tasks_per_node
    return f"{plan.folder}/" + (f"rank-{rank}.log" if tasks > 1 else f"node-{rank // tasks}.log")


def srun_arguments(plan: StepPlan, command: Sequence[str]) -> tuple[str, ...]:
    """The argv by which every task runs a program of the host."""
    return ("srun", *step_options(plan), "--export=ALL", *command)


def signal_arguments(step_id: str, number: int | None) -> tuple[str, ...]:
    """The argv that sends a signal to a step's tasks; None ends the step."""
    how = () if number is None else (f"--signal={number}",)
    return ("scancel", *how, step_id)
