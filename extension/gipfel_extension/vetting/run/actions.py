"""Actions after a run: decide on bad nodes, store and share the report, resubmit the job.

`decide` gives the exit status and outcome, `store_report` updates the history, and `resubmit` submits the
same job with its bad nodes excluded.
"""

import asyncio
import re
import shlex
import time
from collections.abc import Mapping
from enum import StrEnum

from pydantic import ValidationError

from gipfel_cluster.broker.context import variables_for_new_job
from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.runtime.distributions import installed_version
from gipfel_cluster.scheduler import JobRequest, SlurmScheduler
from gipfel_cluster.scheduler.machine import run_command
from gipfel_cluster.scheduler.notation import expand_hostlist, fold_hostlist

from ..history.queries import Exclusion, Exclusions, excluded_hostlist
from ..history.site_registry import has_consent, share_record
from ..history.store import History, VettingRecord, history_root, record_from_results
from ..model import Owner, Severity, Verdict
from ..report import VettingReport
from .location import Location

#: Environment variable of a job with the number of its resubmissions.
ATTEMPT_VARIABLE = "GIPFEL_VET_RESUBMITTED"
#: Excluded nodes of a job at most; more of them have another cause than bad nodes.
MAX_EXCLUDED = 256
_COMMAND_LIMIT_S = 60.0
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")
_GPUS = re.compile(r"gpu(?::[A-Za-z0-9_.-]+)?:(\d+)")
_EMPTY_VALUES = {"", "(null)", "N/A", "UNLIMITED", "Partition_Limit"}
_EXCLUDED_NS = 24 * 3600 * 10**9
_NO_OWN_FAULT = " No node has a fault of its own, so another job would have the same problem."


class Action(StrEnum):
    """Action if nodes are not vetted."""

    REPORT = "report"
    ABORT = "abort"
    EXCLUDE = "exclude"
    SHRINK = "shrink"


class Decision(Frozen):
    """Decision on the end of a run.

    Parameters
    ----------
    status
        Exit status: 0 if every remaining node is vetted and enough remain, else 1.
    outcome
        One sentence.
    resubmit
        Whether the job is to be resubmitted without its bad nodes.
    """

    status: int
    outcome: str
    resubmit: bool = False


def decide(report: VettingReport, action: Action, min_nodes: int | None) -> Decision:
    """Return the decision for an action; `min_nodes` vetted nodes must remain, None for all."""
    good, total = len(report.good_nodes), len(report.nodes)
    required = total if min_nodes is None else min_nodes
    if not report.complete:
        return Decision(status=1, outcome="The run was not completed, so no node is vetted.")
    if report.vetted and good >= required:
        return Decision(status=0, outcome=f"All {total} nodes passed." if total > 1 else "The node passed.")
    verb = "is" if required == 1 else "are"
    too_few = f"{good} of {total} nodes are vetted, {required} {verb} required."
    if action in {Action.EXCLUDE, Action.SHRINK} and good >= max(1, required):
        options = shlex.join((f"--nodes={good}", f"--nodelist={fold_hostlist(report.good_nodes)}"))
        return Decision(
            status=0,
            outcome=f"{good} of {total} nodes remain. Start the next step with: srun {options}",
        )
    hints = {
        Action.REPORT: "",
        Action.ABORT: " The run was aborted.",
        Action.EXCLUDE: "" if report.exclude else _NO_OWN_FAULT,
        Action.SHRINK: " Set --min-nodes if fewer are enough." if min_nodes is None else "",
    }
    again = action is Action.EXCLUDE and bool(report.exclude)
    return Decision(status=1, outcome=f"{too_few}{hints[action]}", resubmit=again)


def resubmit(
    report: VettingReport, location: Location, environment: Mapping[str, str], *, max_attempts: int
) -> str:
    """Resubmit this job with ``--exclude``; return the outcome as a sentence.

    Parameters
    ----------
    max_attempts
        How often a job may be resubmitted.
    """
    fix = f"Submit it yourself with --exclude={report.exclude}."
    try:
        return asyncio.run(_resubmit(report, location, environment, max_attempts))
    except GipfelError as error:
        return f"The job was not resubmitted: {error.problem} {fix}"
    except (TimeoutError, ValidationError) as error:
        reason = (
            "Slurm did not respond."
            if isinstance(error, TimeoutError)
            else "one of its options is not supported."
        )
        return f"The job was not resubmitted: {reason} {fix}"


async def _resubmit(
    report: VettingReport, location: Location, environment: Mapping[str, str], max_attempts: int
) -> str:
    if not location.job.isdecimal():
        raise GipfelError("this is not a Slurm job.")
    count = environment.get(ATTEMPT_VARIABLE, "0")
    attempt = int(count) if count.isdecimal() else 0
    if attempt >= max_attempts:
        raise GipfelError(f"it has already been resubmitted {attempt} times, and {max_attempts} are allowed.")
    job = read_job(await _output(("scontrol", "show", "job", "--oneliner", location.job), environment))
    script = await _output(("scontrol", "write", "batch_script", location.job, "-"), environment)
    if "gipfel_cluster.job" in script:
        raise GipfelError("Gipfel started it. Start it again the way you did before.")
    variables = {**variables_for_new_job(environment), ATTEMPT_VARIABLE: str(attempt + 1)}
    bad = ",".join(filter(None, (report.exclude, recently_failed(report, environment))))
    request = job_request(job, script, bad=bad, job_id=location.job, environment=variables)
    new = await SlurmScheduler(environment=environment).submit(request)
    return f"The job was resubmitted as job {new} with --exclude={request.exclude}."


def recently_failed(report: VettingReport, environment: Mapping[str, str]) -> str:
    """Return the hostlist of nodes that recently failed these checks, which the new job might get."""
    try:
        folder = History(history_root(environment), report.cluster).folder
        known, _ = Exclusions(folder).read()
    except (GipfelError, OSError):
        # The job is resubmitted without a history too.
        return ""
    # The most recent failures; half of the limit is left for this run's nodes.
    recent = sorted(known, key=lambda each: -each.since_ns)[: MAX_EXCLUDED // 2]
    good = set(report.good_nodes)
    checks = {each.name for each in report.checks}
    return excluded_hostlist([each for each in recent if each.node not in good], checks)


async def _output(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    done = await run_command(argv, environment=environment, limit=_COMMAND_LIMIT_S)
    if done.code:
        raise GipfelError(f"{argv[0]} failed: {done.errors.strip()[:200]}")
    return done.output


def read_job(text: str) -> dict[str, str]:
    """Parse ``scontrol show job --oneliner``; placeholders such as ``N/A`` become empty strings."""
    parts = _FIELD.split(text.strip())
    fields = dict(zip(parts[1::2], (each.strip() for each in parts[2::2]), strict=False))
    return {key: "" if value in _EMPTY_VALUES else value for key, value in fields.items()}


def job_request(
    job: Mapping[str, str], script: str, *, bad: str, job_id: str, environment: Mapping[str, str]
) -> JobRequest:
    """Return the request for the same job, with bad nodes added to its excluded nodes.

    Raises
    ------
    GipfelError
        Its script had arguments, which Slurm does not store, or too many nodes would be excluded.
    """
    command = job.get("Command", "")
    if len(shlex.split(command)) > 1:
        raise GipfelError("its script had arguments, which Slurm does not store.")
    excluded = {*expand_hostlist(job.get("ExcNodeList", "")), *expand_hostlist(bad)}
    if len(excluded) > MAX_EXCLUDED:
        raise GipfelError(f"{len(excluded)} nodes would be excluded, and {MAX_EXCLUDED} are allowed.")
    nodes = job.get("NumNodes", "1").partition("-")[0]
    gpus = _GPUS.search(job.get("TresPerNode", ""))
    tasks = job.get("NumTasks", "")
    arguments = (f"--ntasks={tasks}",) if tasks.isdecimal() else ()
    if per_node := job.get("NtasksPerN:B:S:C", "").partition(":")[0].strip("0"):
        arguments = (f"--ntasks-per-node={per_node}",)
    cpus = job.get("CPUs/Task", "")
    memory = job.get("MinMemoryNode", "")
    return JobRequest(
        name=job.get("JobName", "") or "vetted",
        # Debian's scontrol appends a NUL character.
        script=script.rstrip("\0"),
        directory=job.get("WorkDir", "") or "/",
        output=_log_path(job.get("StdOut", ""), job_id),
        partition=job.get("Partition", ""),
        account=job.get("Account", ""),
        qos=job.get("QOS", ""),
        reservation=job.get("Reservation", ""),
        constraint=job.get("Features", ""),
        memory=memory if re.fullmatch(r"[1-9][0-9]{0,8}[KMGT]?", memory) else "",
        exclude=fold_hostlist(excluded),
        nodes=int(nodes) if nodes.isdecimal() else 1,
        gpus_per_node=int(gpus[1]) if gpus else 0,
        cpus_per_task=int(cpus) if cpus.isdecimal() and cpus != "1" else 0,
        time=job.get("TimeLimit", ""),
        site_arguments=arguments,
        environment=dict(environment),
    )


def _log_path(path: str, job_id: str) -> str:
    """Return the log file of the new job, with the old job's ID in its name replaced by ``%j``."""
    folder, slash, name = path.rpartition("/")
    return (
        folder.replace("%", "%%") + slash + re.sub(rf"(?<!\d){job_id}(?!\d)", "%j", name.replace("%", "%%"))
    )


def record_from_report(report: VettingReport) -> VettingRecord:
    """Return the record of a report; one without an end is taken to have ended with its last result."""
    last = max((each.started_ns for each in report.results), default=report.started_ns)
    return record_from_results(
        report.results,
        cluster=report.cluster or "local",
        job=report.job,
        protocol=report.protocol,
        digest=report.digest,
        started_ns=report.started_ns,
        ended_ns=max(report.started_ns, report.ended_ns or last),
        complete=report.complete,
        vetted=report.good_nodes,
    )


def store_report(report: VettingReport, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Store a report in the history, and share it if the user has agreed; return notes for the report.

    An error of the history or the registry becomes a note.
    """
    if not report.results:
        return ()
    record = record_from_report(report)
    notes = []
    try:
        history = History(history_root(environment), record.cluster)
        history.store(record)
        _exclude(Exclusions(history.folder), report)
    except GipfelError as error:
        notes.append(str(error))
    if has_consent(environment):
        notes.append(share_record(record, versions=_versions(), environment=environment))
    return tuple(notes)


def _exclude(exclusions: Exclusions, report: VettingReport) -> None:
    """Exclude faulty nodes for a day, by check, and remove exclusions of checks that pass now."""
    faulty = set(expand_hostlist(report.exclude)) if report.exclude else set()
    decided = [each for each in report.results if each.node and each.severity is Severity.ERROR]
    failed = {
        (each.node, each.check): each
        for each in decided
        if each.verdict is Verdict.FAIL and each.owner is Owner.NODE
    }
    now = time.time_ns()
    passed = {(each.node, each.check) for each in decided if each.verdict is Verdict.PASS} - failed.keys()
    added = [
        Exclusion(
            node=node,
            check=check,
            reason=one_line(each.reason)[:500] or "It failed.",
            since_ns=now,
            until_ns=now + _EXCLUDED_NS,
        )
        for (node, check), each in failed.items()
        if node in faulty
    ]
    outdated = passed & {(each.node, each.check) for each in exclusions.read(now_ns=now)[0]}
    if added or outdated:
        exclusions.update(added, removed=outdated, now_ns=now)


def _versions() -> dict[str, str]:
    version = installed_version("gipfel")
    return {"gipfel": version} if version else {}
