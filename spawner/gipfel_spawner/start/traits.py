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

from ..cluster import ClusterSettings, read_clusters
from ..form.options import UserOptions, read_options
from .request import SiteOptions

_AUDIT_FILE = "audit.jsonl"


class SpawnerTraits(SlurmSpawner):  # type: ignore[misc]
    """Configuration of `EDFSpawner`.

    It uses batchspawner's traits ``exec_prefix`` and those that begin with ``req_``, except ``req_host``,
    ``req_cluster`` and ``req_srun``. It ignores batchspawner's templates, commands and regular expressions.
    """

    scheduler = Enum(
        ["local", "slurm", "broker"],
        default_value="local",
        help="Scheduler of the jobs: 'slurm', 'local' for processes on the hub's machine, or 'broker' for a "
        "Slurm on another machine, through the broker process at `broker_socket`.",
    ).tag(config=True)
    broker_socket = Unicode(
        "",
        help="For the scheduler 'broker': the socket of `python -m gipfel_cluster.broker.hub`, which runs "
        "on a machine with Slurm's commands. The hub's machine then needs neither Slurm nor sudo.",
    ).tag(config=True)
    cluster = Unicode("local", help="The cluster's name, in run folders and in the form.").tag(config=True)
    clusters = Dict(
        help="Several clusters, or groups of partitions, from which users choose; the first is the default. "
        "Maps each name to a dictionary that may set 'scheduler', 'partitions' (those that are offered), "
        "'environment' (for the scheduler's commands and for jobs, such as SLURM_CONF), 'exec_prefix', "
        "'broker_socket', 'engine', 'engines', 'runtime', 'python' and 'hub_connect_url'. A key that is left "
        "out has the value of the trait of that name. Default: empty, a single cluster named `cluster`.",
    ).tag(config=True)
    engine = Unicode("bubblewrap", help="Container engine for EDFs that have an image.").tag(config=True)
    runtime = Unicode(
        "",
        help="Directory or .sqsh file that `gipfel runtime build` created. It must be at the same path on "
        "the hub's machine and on the nodes. Empty: the hub's own Python environment, which must then be "
        "readable by users and on the nodes.",
    ).tag(config=True)
    python = Unicode(
        "",
        help="The Python interpreter, with Gipfel installed, of the job's part outside the container, at the "
        "same path on every node. Default: the runtime's. The hub's interpreter is used without a runtime, "
        "with a runtime in a .sqsh file, and for local servers that run as the hub's own user.",
    ).tag(config=True)
    state_folder = Unicode(
        help="Directory for the session history, the local scheduler's jobs, and the home directories of hub "
        "users without a unix account. Default: $GIPFEL_STATE, else the hub's working directory."
    ).tag(config=True)
    default_edf = Unicode("", help="The EDF of a server whose user chose none.").tag(config=True)
    default_gpus = Integer(0, help="GPUs per node of a server whose user gave no number.").tag(config=True)
    default_time = Unicode(
        "2:00:00", help="Time limit of a server whose user gave none. Empty: the partition's default."
    ).tag(config=True)
    presets = List(
        Dict(),
        help="Buttons of the form that fill in several options, each a dictionary with 'title', optionally "
        "'description', and options: {'title': 'Explore', 'edf': 'pytorch', 'gpus': 1, 'time': '2:00:00'}.",
    ).tag(config=True)
    engines = List(
        Unicode(),
        help="Container engines that users may choose in addition to 'engine'. Default: none; with the "
        "scheduler 'local', all that the hub's machine can run.",
    ).tag(config=True)
    vetting_protocols = List(
        Unicode(),
        default_value=["quick", "standard", "network", "gh200", "h100", "cpu"],
        help="Vetting protocols that users may choose to test a server's nodes before it starts: built-in "
        "ones, or names of files in users' ~/.gipfel/protocols. Default: the built-in ones. Empty: none.",
    ).tag(config=True)
    cpus_per_gpu = Integer(
        0, help="CPUs per GPU of a server whose user gave no number. Default: the scheduler's default."
    ).tag(config=True)
    memory_per_gpu = Unicode(
        "",
        help="Memory per GPU, such as '96G', of a server whose user gave none. Default: the scheduler's.",
    ).tag(config=True)
    req_constraint = Unicode("", help="Features that a job's nodes must have.").tag(config=True)
    exec_prefix = Unicode(
        "",
        help="Command prefix with which the hub runs commands as a user, such as 'sudo -E -u {username}'. "
        "Default: runuser for root, else sudo.",
    ).tag(config=True)
    answer_limit = Float(10.0, help="Time limit of a scheduler command, in seconds.").tag(config=True)
    watch_interval = Float(2.0, help="Seconds between two queries of the scheduler while jobs start.").tag(
        config=True
    )
    calm_interval = Float(15.0, help="Seconds between two queries of the scheduler while all jobs run.").tag(
        config=True
    )
    server_timeout = Float(
        180.0, help="Seconds from the start of a job until its server must have reported its port."
    ).tag(config=True)
    stop_timeout = Float(60.0, help="Seconds that a cancelled job may take to end.").tag(config=True)
    start_timeout = Integer(
        None,
        allow_none=True,
        help="Seconds that a start may take in total, including the wait in the queue. None: no limit; "
        "`server_timeout` still limits the time after the queue.",
    ).tag(config=True)

    server_ports = Unicode(
        "",
        help="Ports that servers may listen on, such as '8400-8499', for nodes behind a firewall. A server "
        "tries them in order from a random one on, and uses the first free one. Default: any port.",
    ).tag(config=True)
    audit_log = Unicode(
        help="File with one line of JSON for each start, failure, stop, cull and extension. "
        "Default: audit.jsonl in `state_folder`. 'none': no audit log."
    ).tag(config=True)
    idle_limit = Integer(
        0,
        help="Seconds without a busy kernel, GPU or CPU work, a running job step or a saved file after "
        "which the culling service stops a server. Default: 0, never.",
    ).tag(config=True)
    idle_warning = Integer(
        600, help="Seconds for which JupyterLab shows a warning before an idle server is stopped."
    ).tag(config=True)
    extend_by = Unicode(
        "",
        help="Time by which a user can extend a running job with one click, such as '1:00:00'. The hub's "
        "user must be a Slurm operator. Default: empty, no extension.",
    ).tag(config=True)
    extend_times = Integer(2, help="How often one job may be extended.").tag(config=True)

    # Attributes of JupyterHub's Spawner, which has no annotations.
    user_options: dict[str, Any]
    _check_pending: bool
    _spawn_future: Any
    hub_connect_url: str | None

    def site_defaults(self) -> UserOptions:
        """Return the options that apply where the user gave none.

        Raises
        ------
        OptionError
            The site's configuration contains a value that is not valid.
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
        """Return the site's options for every job; ``time`` is the limit if the user gave none.

        Raises
        ------
        GipfelError
            ``req_options`` has an unclosed quote.
        """
        try:
            extra = shlex.split(self.req_options)
        except ValueError as error:
            raise GipfelError(
                f"The hub's req_options are not valid: {error}.", "Tell the hub's administrators."
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
                *extra,
            ),
            prologue=self.req_prologue,
            epilogue=self.req_epilogue,
        )

    @default("state_folder")
    def _default_state_folder(self) -> str:
        return os.environ.get("GIPFEL_STATE") or str(Path.cwd())

    @default("env_keep")
    def _default_env_keep(self) -> list[str]:
        # Without PYTHONPATH and VIRTUAL_ENV, because jobs do not use the hub's Python environment.
        return ["PATH", "LANG", "LC_ALL", "SLURM_CONF", "EDF_PATH"]

    @default("audit_log")
    def _default_audit_log(self) -> str:
        return str(Path(self.state_folder) / _AUDIT_FILE)

    @validate("clusters")
    def _valid_clusters(self, proposal: dict[str, Any]) -> dict[str, Any]:
        clusters: dict[str, Any] = proposal["value"]
        try:
            read_clusters(clusters, ClusterSettings(name="any", scheduler="local", broker_socket="/any"))
        except GipfelError as error:
            raise TraitError(str(error)) from error
        return clusters

    @validate("server_ports", "extend_by")
    def _valid_text(self, proposal: dict[str, Any]) -> str:
        value, name = str(proposal["value"]), proposal["trait"].name
        try:
            read = PortRange.parse(value) if name == "server_ports" else parse_duration(value or "1")
        except (GipfelError, ValueError) as error:
            raise TraitError(f"EDFSpawner.{name}: {error}") from error
        if name == "extend_by" and not read:
            raise TraitError("EDFSpawner.extend_by must be a duration, such as 1:00:00.")
        return value
