"""What a site sets of the spawner: its traits and their defaults."""

import os
from pathlib import Path
from typing import Any

from batchspawner import SlurmSpawner
from traitlets import Enum, Float, Integer, Unicode, default

from .request import SiteOptions


class SpawnerTraits(SlurmSpawner):  # type: ignore[misc]
    """The configuration of `EDFSpawner`.

    Of batchspawner's it keeps ``req_partition``, ``req_account``, ``req_qos``, ``req_reservation``,
    ``req_memory``, ``req_nprocs`` and ``exec_prefix``; its templates, commands and expressions are not used.
    """

    scheduler = Enum(
        ["local", "slurm"],
        default_value="local",
        help="Where jobs run: 'slurm', or 'local' for processes of the hub's machine.",
    ).tag(config=True)
    cluster = Unicode("local", help="The cluster's name, in run folders and in the form.").tag(config=True)
    engine = Unicode("bubblewrap", help="What starts the containers of EDFs that have an image.").tag(
        config=True
    )
    runtime = Unicode(
        "",
        help="The folder that `gipfel runtime build` made; it must be at the same path on the hub and on the "
        "nodes. Empty: the hub's own Python environment, which then must be readable for users and nodes.",
    ).tag(config=True)
    python = Unicode(
        "", help="The interpreter that runs the job's host side. Default: the runtime's, else the hub's."
    ).tag(config=True)
    state_folder = Unicode(
        help="Where the local scheduler keeps its jobs, and the home folders of hub users who have no unix "
        "account. Default: $GIPFEL_STATE, else the hub's working folder."
    ).tag(config=True)
    default_edf = Unicode("", help="The EDF of a server that was started without one.").tag(config=True)
    default_gpus = Integer(0, help="GPUs per node of a server that was started without a number.").tag(
        config=True
    )
    default_time = Unicode(
        "2:00:00", help="Time limit of a server that was started without one; empty: the partition's."
    ).tag(config=True)
    req_constraint = Unicode("", help="Features that a job's nodes must have.").tag(config=True)
    exec_prefix = Unicode(
        "",
        help="How the hub acts as a user, such as 'sudo -E -u {username}'. Default: runuser for root, "
        "else sudo.",
    ).tag(config=True)
    answer_limit = Float(10.0, help="Seconds that a command of the scheduler may take.").tag(config=True)
    watch_interval = Float(2.0, help="Seconds between two questions to the scheduler while jobs start.").tag(
        config=True
    )
    calm_interval = Float(
        15.0, help="Seconds between two questions to the scheduler while all jobs run."
    ).tag(config=True)
    server_timeout = Float(
        180.0, help="Seconds from the start of a job until its server must have given its port."
    ).tag(config=True)
    stop_timeout = Float(60.0, help="Seconds that a cancelled job may take to end.").tag(config=True)
    # Queues are longer than JupyterHub's minute.
    start_timeout = Integer(3600, help=SlurmSpawner.start_timeout.help).tag(config=True)

    # JupyterHub's own, which has no annotations.
    _check_pending: bool
    _spawn_future: Any

    def site_options(self, time: str) -> SiteOptions:
        """What every job of this site asks for; ``time`` is for a user who gave none."""
        return SiteOptions(
            account=self.req_account,
            qos=self.req_qos,
            reservation=self.req_reservation,
            constraint=self.req_constraint,
            memory=self.req_memory,
            cpus_per_task=self.req_nprocs or "0",
            time=time,
        )

    @default("state_folder")
    def _default_state_folder(self) -> str:
        return os.environ.get("GIPFEL_STATE") or str(Path.cwd())

    @default("env_keep")
    def _default_env_keep(self) -> list[str]:
        # No PYTHONPATH, no VIRTUAL_ENV: the hub's Python is not the job's.
        return ["PATH", "LANG", "LC_ALL", "SLURM_CONF", "EDF_PATH"]
