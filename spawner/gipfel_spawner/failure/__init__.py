"""Failed starts: the catalogue of causes, the most specific first, and the exception that JupyterHub shows.

A new cause needs a `Cause` here or in `cause`, and a captured log in ``tests/spawner/data/logs``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from jupyterhub.spawner import SpawnException

from gipfel_cluster.model import Frozen, GipfelError

from .cause import CONTAINERS, IMAGES, Cause, Evidence, Explanation

_START_ANYWAY = (
    'To start on these nodes anyway, choose "Start anyway, and show the report in the vetting panel".'
)

VETTING = (
    Cause(
        name="vetting-not-run",
        reason="The nodes could not be vetted: {what}",
        fix="Choose another protocol, or start without vetting.",
        patterns=(r"^gipfel: vet first: The nodes could not be vetted(?::| by) (?P<what>.*)",),
    ),
    Cause(
        name="vetting-image",
        reason="The vetting found a fault of the environment, not of the nodes: {what}",
        fix="Correct the image, its EDF or your variables according to the reason, or choose another "
        f"environment. Other nodes would fail in the same way. {_START_ANYWAY}",
        patterns=(r"^gipfel: vet first: Fault of the image: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-protocol",
        reason="The vetting found a fault of the protocol, not of the nodes: {what}",
        fix="Correct the protocol according to the reason, or choose one that suits these nodes. Other nodes "
        f"would fail in the same way. {_START_ANYWAY}",
        patterns=(r"^gipfel: vet first: Fault of the protocol: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-site",
        reason="The vetting found a fault that all nodes share, such as a file system or a service: {what}",
        fix="Tell the administrators the reason: other nodes would probably fail in the same way. If it is "
        f"your quota, delete files or request a larger quota. {_START_ANYWAY}",
        patterns=(r"^gipfel: vet first: Fault of the site: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-link",
        reason="The vetting found a faulty link between two nodes, but not which node causes it: {what}",
        fix="Start again, possibly on other nodes. Tell the administrators the names of both nodes. "
        f"{_START_ANYWAY}",
        patterns=(r"^gipfel: vet first: Fault of the link: (?P<what>.*)",),
    ),
    Cause(
        name="vetting-failed",
        reason="At least one node failed the vetting before the start: {what}",
        fix="Start again, possibly on other nodes. Tell the administrators the node's name. A server with "
        f"several nodes can start without the failed ones. {_START_ANYWAY}",
        patterns=(r"^gipfel: vet first: (?P<what>.*)",),
    ),
)


JOBS = (
    Cause(
        name="out-of-memory",
        reason="The job used more memory than it was allocated, and the node's kernel ended it.",
        fix="Request more memory, or a whole node.",
        patterns=(
            r"oom[-_]kill event",
            r"exceeded (?:job|step) memory limit",
            r"it used more memory than it requested",
            r"memory cgroup out of memory",
        ),
    ),
    Cause(
        name="out-of-memory",
        reason="The job used more memory than it was allocated, and the node's kernel ended it.",
        fix="Request more memory, or a whole node.",
        states=frozenset({"OUT_OF_MEMORY"}),
    ),
    Cause(
        name="time-limit",
        reason="The job reached its time limit.",
        fix="Request more time. Saved files are not affected.",
        states=frozenset({"TIMEOUT", "DEADLINE"}),
    ),
    Cause(
        name="node-failure",
        reason="The node failed, or lost its connection to Slurm.",
        fix="Start again: Slurm takes another node. If it happens again, tell the cluster's administrators.",
        states=frozenset({"NODE_FAIL", "BOOT_FAIL"}),
    ),
    Cause(
        name="launch-failed",
        reason="Slurm could not start the job on its node.",
        fix="Start again. If it happens again, tell the cluster's administrators the node's name.",
        states=frozenset({"LAUNCH_FAILED", "RECONFIG_FAIL"}),
    ),
    Cause(
        name="preempted",
        reason="A job with a higher priority took the nodes.",
        fix="Start again, or pick a partition or a QoS whose jobs are not preempted.",
        states=frozenset({"PREEMPTED", "REVOKED"}),
    ),
    Cause(
        name="no-such-node",
        reason="No node of the partition has what the job requests.",
        fix="Request fewer GPUs, CPUs or less memory per node, or pick another partition.",
        patterns=(r"^no node meets its constraints$",),
        states=frozenset({"FAILED"}),
    ),
    Cause(
        name="log-unwritable",
        reason="Slurm could not start the job on its node, usually because its log can't be opened there.",
        fix="Check that your home directory is mounted on the nodes, writable and within its quota.",
        patterns=(r"^it could not be launched$",),
        states=frozenset({"FAILED"}),
    ),
    Cause(
        name="time-limit",
        reason="The job reached its time limit.",
        fix="Request more time. Saved files are not affected.",
        patterns=(r"CANCELLED AT \S+ DUE TO TIME LIMIT",),
    ),
    Cause(
        name="node-failure",
        reason="The node failed, or lost its connection to Slurm.",
        fix="Start again: Slurm takes another node. If it happens again, tell the cluster's administrators.",
        patterns=(r"CANCELLED AT \S+ DUE TO NODE FAILURE",),
    ),
    Cause(
        name="preempted",
        reason="A job with a higher priority took the nodes.",
        fix="Start again, or pick a partition or a QoS whose jobs are not preempted.",
        patterns=(r"CANCELLED AT \S+ DUE TO PREEMPTION",),
    ),
)

REFUSALS = (
    Cause(
        name="account-refused",
        reason="Slurm does not let you use this account, or not with this partition.",
        fix="Pick another account, or ask for access to this one.",
        patterns=(r"invalid account", r"account.{0,40}not permitted to use this partition"),
    ),
    Cause(
        name="qos-refused",
        reason="Slurm does not let you use this QoS.",
        fix="Pick another QoS, or ask for access to this one.",
        patterns=(r"invalid qos", r"qos.{0,40}not permitted"),
    ),
    Cause(
        name="limit-reached",
        reason="A limit of your account or QoS on jobs, GPUs or hours is reached.",
        fix="End one of your jobs, request fewer resources, or pick another account.",
        patterns=(r"job violates accounting/qos policy", r"submission limit"),
    ),
    Cause(
        name="partition-down",
        reason="The partition accepts no jobs now.",
        fix="Pick another partition, or wait until the administrators have enabled it again.",
        patterns=(r"required partition not available", r"partition is (?:down|inactive)"),
    ),
    Cause(
        name="reservation-refused",
        reason="You may not use this reservation, it is over, or it does not exist.",
        fix="Leave the reservation empty, or ask its owner for access.",
        patterns=(r"requested reservation is invalid", r"access denied to requested reservation"),
    ),
)


STORAGE = (
    Cause(
        name="over-quota",
        reason="Your quota is used up: nothing more can be written.",
        fix="Delete or move files (the site's quota command shows where), then start again.",
        patterns=(r"disk quota exceeded", r"\bEDQUOT\b"),
    ),
    Cause(
        name="disk-full",
        reason="A disk is full: nothing more can be written.",
        fix="Free space in your home directory. If it is the node's local disk, start again on another node.",
        # An exhausted limit on namespaces gives the same message.
        patterns=(
            r"^(?!.*(?:unshare|namespace)).*no space left on device",
            r"\bENOSPC\b",
            r"database or disk is full",
        ),
    ),
    Cause(
        name="read-only-home",
        reason="A directory that the server writes to is read-only: {path}",
        fix="Mount it writable in the environment, or set workdir to a writable directory.",
        patterns=(r"read-only file system:? '?(?P<path>/[^'\s]*)",),
    ),
    Cause(
        name="log-unwritable",
        reason="Slurm could not open the job's log {path}.",
        fix="Check that your home directory is mounted on the node, writable and within its quota.",
        patterns=(r"could not open (?:stdout|stderr) file (?P<path>\S+):",),
    ),
)


GPUS = (
    Cause(
        name="gpu-exclusive",
        reason="A GPU is used by another process and is in exclusive mode.",
        fix="Start again on another node. If this node has no other users, tell the administrators its name.",
        patterns=(
            r"all CUDA-capable devices are busy or unavailable",
            r"cudaErrorDevicesUnavailable",
            r"CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
    ),
    Cause(
        name="gpu-driver",
        reason="The node's GPU driver does not answer, or is older than the image needs.",
        fix="Start again on another node, or use an image for an older CUDA version.",
        patterns=(
            r"CUDA driver version is insufficient",
            r"nvidia-container-cli: (?:initialization|mount) error",
            r"couldn't communicate with the NVIDIA driver",
            r"nvidia-container-cli: requirement error",
        ),
    ),
    Cause(
        name="gpu-lost",
        reason="A GPU of the node has failed.",
        fix="Start again: Slurm takes another node. Tell the administrators this node's name.",
        patterns=(r"GPU is lost", r"fallen off the bus", r"uncorrectable ECC error"),
    ),
)


_UNREACHED = (
    "connection refused|network is unreachable|no route to host|timed out|failed to connect"
    "|name or service not known|temporary failure in name resolution"
)

NETWORK = (
    Cause(
        name="hub-unreachable",
        reason="The node can't reach the hub: {detail}",
        fix="Tell the hub's administrators that the nodes must reach the hub's address and port "
        "(JupyterHub.hub_ip, hub_connect_ip).",
        patterns=(
            r"(?P<detail>the hub (?:at \S+ )?(?:can't be reached|did not answer)[^.]*)",
            r"failed to connect to my hub at (?P<detail>\S+)",
            r"ClientConnector\w*Error: Cannot connect to host (?P<detail>\S+)",
            rf"(?P<detail>{_UNREACHED}).{{0,120}}/hub/api",
            rf"/hub/api.{{0,160}}(?P<detail>{_UNREACHED})",
        ),
    ),
    Cause(
        name="port-blocked",
        reason="The server is running, but a firewall or a wrong address blocks the hub's connection to it.",
        fix="Ask the hub's administrators to open the servers' ports from the hub to the nodes, or to set "
        "EDFSpawner.server_ports to the open range of ports.",
        states=frozenset({"BLOCKED"}),
    ),
    Cause(
        name="port-taken",
        reason="No port was free for the server.",
        fix="Start again. If it happens again, ask the administrators for a wider range of ports.",
        patterns=(
            r"address already in use",
            r"no port (?:in|of|from) .{0,80} is free",
        ),
    ),
    Cause(
        name="token-refused",
        reason="The hub refused the server's token: the start was cancelled, or a newer one has begun.",
        fix="Start again.",
        patterns=(r"/hub/api/gipfel/server.{0,100}\b403\b", r"HTTP 403: Forbidden", r"HTTP Error 403"),
    ),
    Cause(
        name="server-silent",
        reason="The server reported no port. Possibly the nodes can't reach the hub at {detail}.",
        fix="Tell the hub's administrators. The last lines of the log show how far the server got.",
        states=frozenset({"SILENT"}),
    ),
)

#: Causes that the scheduler itself reports come first; general causes come last.
CATALOGUE: tuple[Cause, ...] = (*REFUSALS, *VETTING, *JOBS, *STORAGE, *IMAGES, *GPUS, *CONTAINERS, *NETWORK)
_MAX_SHOWN_LINES = 25


def explain(evidence: Evidence) -> Explanation | None:
    """Return the explanation of the first cause in the catalogue that applies; None if none does."""
    explanations = (cause.explain(evidence) for cause in CATALOGUE)
    return next((each for each in explanations if each is not None), None)


class Failure(Frozen):
    """Failure of one job: what happened, its cause, and the fix, one line each; ``log`` has several lines.

    ``at_start`` is true if the job's server never answered.
    """

    event: str
    cause: str = ""
    fix: str = ""
    log: str = ""
    at_start: bool = False

    @classmethod
    def from_evidence(cls, event: str, evidence: Evidence, *, default_cause: str = "") -> "Failure":
        """Return a failure with the cause from the catalogue, or ``default_cause`` if it has none."""
        explanation = explain(evidence)
        log = "\n".join(evidence.log.splitlines()[-_MAX_SHOWN_LINES:])
        if explanation is None:
            return cls(event=event, cause=default_cause, log=log)
        return cls(event=event, cause=explanation.reason, fix=explanation.fix, log=log)

    @property
    def error(self) -> GipfelError:
        """Failure as an error of one line, for the API's answer."""
        cause = self.cause if not self.cause or self.cause.endswith((".", "!", "?")) else f"{self.cause}."
        return GipfelError(f"{self.event} {cause}".strip(), self.fix)

    def page(self) -> str:
        """Return the failure as escaped HTML; the hub's pages add buttons."""
        parts = [
            '<div class="alert alert-danger" role="alert">',
            f'<p class="gipfel-event"><span aria-hidden="true">✗</span> {escape(self.event)}</p>',
        ]
        if self.cause:
            parts.append(f'<p class="gipfel-cause"><strong>{escape(self.cause)}</strong></p>')
        if self.fix:
            parts.append(f'<p class="gipfel-fix"><strong>What to do:</strong> {escape(self.fix)}</p>')
        parts.append("</div>")
        if self.log:
            parts.append("<details open><summary>Last lines of the job's log</summary>")
            parts.append(f"<pre>{escape(self.log)}</pre></details>")
        return f'<div class="gipfel-failure text-start">{"".join(parts)}</div>'


class SpawnProblem(SpawnException):  # type: ignore[misc]
    """Failed start, shown with its fix in the form, on the progress page and in the API's answer.

    Parameters
    ----------
    error
        The problem and its fix.
    reason
        Label for the hub's metrics.
    failure
        The failed job, shown on the page.
    status_code
        HTTP status of the answer.
    """

    def __init__(
        self,
        error: GipfelError,
        *,
        reason: str = "error",
        failure: Failure | None = None,
        status_code: int = 400,
    ) -> None:
        line = str(error)
        page = failure.page() if failure else escape(line)
        super().__init__(line, reason=reason, message_html=page, status_code=status_code)
        # The form and the progress page read these two names.
        self.jupyterhub_message = line
        self.jupyterhub_html_message = page if failure else None


@contextmanager
def options_problems() -> Iterator[None]:
    """Convert an error in user options into a `SpawnProblem`."""
    try:
        yield
    except GipfelError as error:
        raise SpawnProblem(error, reason="options") from None
