"""Configuration of `EDFSpawner`: its traits, their defaults and their validation."""

import os
import shlex
from pathlib import Path
from typing import Any

from batchspawner import SlurmSpawner
from traitlets import Dict, Enum, Float, Integer, List, TraitError, Unicode, default, validate

from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PortRange
from gipfel_cluster.scheduler.notation import parse_duration

from ..cluster.clusters import ClusterSettings, read_clusters
from ..form.options import UserOptions, read_options
from .request import SiteOptions

_AUDIT_FILE = "audit.jsonl"


class SpawnerTraits(SlurmSpawner):  # type: ignore[misc]
    """Configuration of `EDFSpawner`.

    Of batchspawner's it keeps ``exec_prefix`` and the names that begin with ``req_``, but for ``req_host``,
    ``req_cluster`` and ``req_srun``; its templates, commands and expressions are not used.
    """

    scheduler = Enum(
        ["local", "slurm", "broker"],
        default_value="local",
        help="Where jobs run: 'slurm', 'local' for processes of the hub's machine, or 'broker' for a Slurm "
        "that is not where the hub is, through the process behind `broker_socket`.",
    ).tag(config=True)
    broker_socket = Unicode(
        "",
        help="For the scheduler 'broker': the socket of `python -m gipfel_cluster.broker.hub`, which runs "
        "where Slurm's commands are. The hub then needs neither them, nor their files, nor sudo.",
    ).tag(config=True)
    cluster = Unicode("local", help="The cluster's name, in run folders and in the form.").tag(config=True)
    clusters = Dict(
        help="Several clusters, or groups of partitions, from which users choose; the first is the default. "
        "Each name has a dictionary that may set 'scheduler', 'partitions' (those that are offered), "
        "'environment' (of the scheduler's commands and of jobs, such as SLURM_CONF), 'exec_prefix', "
        "'broker_socket', 'engine', 'engines', 'runtime', 'python' and 'hub_connect_url'; what it leaves out "
        "is the trait of that name. Default: none, the one of the traits, whose name `cluster` gives.",
    ).tag(config=True)
    engine = Unicode("bubblewrap", help="What starts the containers of EDFs that have an image.").tag(
        config=True
    )
    runtime = Unicode(
        "",
        help="The folder or .sqsh file that `gipfel runtime build` made; it must be at the same path on the "
        "hub and on the nodes. Empty: the hub's own Python environment, which then must be readable for "
        "users and nodes.",
    ).tag(config=True)
    python = Unicode(
        "",
        help="The interpreter that runs the job's host side, with Gipfel installed, at the same path "
        "on every node. Default: the runtime's; the hub's where there is none, where it is a .sqsh file, "
        "which a host can't start from, and for local servers that run as the hub's own user.",
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
    presets = List(
        Dict(),
        help="What the form offers for one click, each a dictionary with 'title', perhaps 'description', and "
        "options of the form: {'title': 'Explore', 'edf': 'pytorch', 'gpus': 1, 'time': '2:00:00'}.",
    ).tag(config=True)
    engines = List(
        Unicode(),
        help="Engines that users may choose from, beside 'engine'. Default: none, and on this machine itself "
        "(scheduler 'local') all that it can run.",
    ).tag(config=True)
    vetting_protocols = List(
        Unicode(),
        default_value=["quick", "standard", "network", "gh200", "h100", "cpu"],
        help="Protocols by which users may have a server's nodes vetted before it starts: shipped ones, or "
        "names of files in ~/.gipfel/protocols of users. Default: those that are shipped. Empty: none.",
    ).tag(config=True)
    cpus_per_gpu = Integer(
        0, help="CPUs per GPU of a server whose user named none. Default: the scheduler's own."
    ).tag(config=True)
    memory_per_gpu = Unicode(
        "", help="Memory per GPU, such as '96G', of a server whose user named none. Default: the scheduler's."
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
    start_timeout = Integer(
        None,
        allow_none=True,
        help="Seconds that a start may take in all, the queue among them. None: as long as its user likes; "
        "`server_timeout` then limits what comes after the queue.",
    ).tag(config=True)

    server_ports = Unicode(
        "",
        help="Ports that servers may listen on, such as '8400-8499', for sites whose nodes are behind a "
        "firewall; a server takes the first of them that it can bind, from a random one on. Default: any.",
    ).tag(config=True)
    audit_log = Unicode(
        help="The file that gets one line of JSON for each start, failure, stop, cull and extension. "
        "Default: audit.jsonl in the state folder. 'none' writes nothing."
    ).tag(config=True)
    idle_limit = Integer(
        0,
        help="Seconds without a busy kernel, GPU work, a running job step, CPU work or a saved file after "
        "which the culling service stops a server. Default: 0, never.",
    ).tag(config=True)
    idle_warning = Integer(
        600, help="Seconds for which the user is warned in the lab before an idle server is stopped."
    ).tag(config=True)
    extend_by = Unicode(
        "",
        help="How much a user may add to a running job's time with one press, such as '1:00:00'. The hub's "
        "user must be an operator of the cluster. Default: empty, nothing.",
    ).tag(config=True)
    extend_times = Integer(2, help="How often one job may be extended.").tag(config=True)

    # JupyterHub's own, which has no annotations.
    user_options: dict[str, Any]
    _check_pending: bool
    _spawn_future: Any
    hub_connect_url: str | None

    def site_defaults(self) -> UserOptions:
        """Return the options of a user who chose nothing.

        Raises
        ------
        OptionError
            The site's configuration holds what no option may.
        """
        gpus = int(self.req_ngpus) if self.req_ngpus.isdecimal() else self.default_gpus
        return read_options(
            {
                "edf": self.default_edf,
                "gpus": gpus,
                "time": self.req_runtime or self.default_time,
                "partition": self.req_partition or self.req_queue,
            }
        )

    def site_options(self, time: str, *, gpus: int = 0) -> SiteOptions:
        """Return what every job of this site asks for; ``time`` is for a user who gave none.

        Raises
        ------
        GipfelError
            ``req_options`` has a quote that does not end.
        """
        try:
            more = shlex.split(self.req_options)
        except ValueError as error:
            raise GipfelError(
                f"The hub's req_options can't be used: {error}.", "Tell the hub's administrators."
            ) from error
        return SiteOptions(
            account=self.req_account,
            qos=self.req_qos,
            reservation=self.req_reservation,
            constraint=self.req_constraint,
            memory=self.req_memory,
            cpus_per_task=self.req_nprocs or "0",
            time=time,
            arguments=(
                *([f"--gres={self.req_gres}"] if self.req_gres and not gpus else []),
                *more,
            ),
            prologue=self.req_prologue,
            epilogue=self.req_epilogue,
        )

    @default("state_folder")
    def _default_state_folder(self) -> str:
        return os.environ.get("GIPFEL_STATE") or str(Path.cwd())

    @default("env_keep")
    def _default_env_keep(self) -> list[str]:
        # No PYTHONPATH, no VIRTUAL_ENV: the hub's Python is not the job's.
        return ["PATH", "LANG", "LC_ALL", "SLURM_CONF", "EDF_PATH"]

    @default("audit_log")
    def _default_audit_log(self) -> str:
        return str(Path(self.state_folder) / _AUDIT_FILE)

    @validate("clusters")
    def _valid_clusters(self, proposal: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = proposal["value"]
        try:
            read_clusters(given, ClusterSettings(name="any", scheduler="local", broker_socket="/any"))
        except GipfelError as error:
            raise TraitError(str(error)) from error
        return given

    @validate("server_ports", "extend_by")
    def _valid_text(self, proposal: dict[str, Any]) -> str:
        value, name = str(proposal["value"]), proposal["trait"].name
        try:
            read = PortRange.parse(value) if name == "server_ports" else parse_duration(value or "1")
        except (GipfelError, ValueError) as error:
            raise TraitError(f"EDFSpawner.{name}: {error}") from error
        if name == "extend_by" and not read:
            raise TraitError("EDFSpawner.extend_by needs a length, such as 1:00:00.")
        return value
