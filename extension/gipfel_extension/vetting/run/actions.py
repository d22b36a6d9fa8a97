"""Actions after a run: decide on bad nodes, remember and share the report, submit the job again.

`decide` gives the exit status and outcome, `keep_report` updates the history, and `resubmit` submits the
same job with its bad nodes excluded.
"""

import asyncio
import re
import shlex
import time
from collections.abc import Mapping
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

from pydantic import ValidationError

from gipfel_cluster.broker.context import passed_on
from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.scheduler import JobRequest, SlurmScheduler
from gipfel_cluster.scheduler.command import run_command
from gipfel_cluster.scheduler.notation import expand_hostlist, fold_hostlist

from ..history.exclusions import Exclusion, Exclusions, nodes_of
from ..history.site_registry import consents, share_record
from ..history.store import History, VettingRecord, history_root, record_of
from ..model import Owner, Severity, Verdict
from ..report import VettingReport
from .location import Location

#: How often this job has been submitted again, in the environment of the job.
ATTEMPT_VARIABLE = "GIPFEL_VET_RESUBMITTED"
#: A list that is longer says something else than which nodes are bad.
MOST_EXCLUDED = 256
_LIMIT_S = 60.0
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")
_GPUS = re.compile(r"gpu(?::[A-Za-z0-9_.-]+)?:(\d+)")
_NOTHING = {"", "(null)", "N/A", "UNLIMITED", "Partition_Limit"}
_EXCLUDED_NS = 24 * 3600 * 10**9


class Action(StrEnum):
    """Action for nodes that are not vetted."""

    REPORT = "report"
    ABORT = "abort"
    EXCLUDE = "exclude"
    SHRINK = "shrink"


class Decision(Frozen):
    """End of a run.

    Parameters
    ----------
    status
        0 where every node that remains is vetted, and enough remain; else 1.
    outcome
        One sentence.
    resubmit
        Whether the job is to be submitted again without its bad nodes.
    """

    status: int
    outcome: str
    resubmit: bool = False


def decide(report: VettingReport, action: Action, min_nodes: int | None) -> Decision:
    """Return what an action makes of a report; `min_nodes` vetted nodes must remain, None for all."""
    good, total = len(report.good_nodes), len(report.nodes)
    least = total if min_nodes is None else min_nodes
    if not report.complete:
        return Decision(status=1, outcome="The run was not completed: no node counts as vetted by it.")
    if report.vetted and good >= least:
        return Decision(
            status=0, outcome=f"All {total} nodes are vetted." if total > 1 else "The node is vetted."
        )
    if action in {Action.REPORT, Action.ABORT}:
        what = " The run is given up." if action is Action.ABORT else ""
        return Decision(status=1, outcome=f"{good} of {total} nodes are vetted, {least} must be.{what}")
    enough = good >= max(1, least)
    if enough:
        options = shlex.join((f"--nodes={good}", f"--nodelist={fold_hostlist(report.good_nodes)}"))
        return Decision(
            status=0,
            outcome=f"{good} of {total} nodes remain; start the next step with: srun {options}",
        )
    few = f"{good} of {total} nodes are vetted, {least} are needed."
    if action is Action.SHRINK:
        hint = "" if min_nodes is not None else " --min-nodes says how many are enough."
        return Decision(status=1, outcome=f"{few}{hint}")
    why = "" if report.exclude else " No fault is a node's own: another job would end like this."
    return Decision(status=1, outcome=f"{few}{why}", resubmit=bool(report.exclude))


def resubmit(report: VettingReport, location: Location, environment: Mapping[str, str], *, most: int) -> str:
    """Submit this job again with ``--exclude``; return the outcome in a sentence.

    Parameters
    ----------
    most
        How often a job may be submitted again.
    """
    by_hand = f"Submit it yourself with --exclude={report.exclude}."
    try:
        return asyncio.run(_resubmit(report, location, environment, most))
    except GipfelError as error:
        return f"The job was not submitted again: {error.problem} {by_hand}"
    except (TimeoutError, ValidationError) as error:
        said = (
            "Slurm did not answer." if isinstance(error, TimeoutError) else "an option of it can't be kept."
        )
        return f"The job was not submitted again: {said} {by_hand}"


async def _resubmit(
    report: VettingReport, location: Location, environment: Mapping[str, str], most: int
) -> str:
    if not location.job.isdecimal():
        raise GipfelError("This is not a Slurm job.")
    given = environment.get(ATTEMPT_VARIABLE, "0")
    attempt = int(given) if given.isdecimal() else 0
    if attempt >= most:
        raise GipfelError(f"it has been {attempt} times, and {most} are allowed.")
    job = read_job(await _ask(("scontrol", "show", "job", "--oneliner", location.job), environment))
    script = await _ask(("scontrol", "write", "batch_script", location.job, "-"), environment)
    if "gipfel_cluster.job" in script:
        raise GipfelError("it is one of Gipfel's own, whose options are in its launch.")
    variables = {**passed_on(environment), ATTEMPT_VARIABLE: str(attempt + 1)}
    bad = ",".join(filter(None, (report.exclude, known_bad(report, environment))))
    request = request_of(job, script, bad=bad, job_id=location.job, environment=variables)
    new = await SlurmScheduler(environment=environment).submit(request)
    return f"Submitted again as job {new} with --exclude={request.exclude}."


def known_bad(report: VettingReport, environment: Mapping[str, str]) -> str:
    """Return nodes that recently failed these checks, because the new job might get them."""
    try:
        folder = History(history_root(environment), report.cluster).folder
        known, _ = Exclusions(folder).read()
    except (GipfelError, OSError):
        # Without a history it is submitted all the same.
        return ""
    # As many as a list of bad nodes may have, those that failed last first.
    lately = sorted(known, key=lambda each: -each.since_ns)[: MOST_EXCLUDED // 2]
    good = set(report.good_nodes)
    checks = {each.name for each in report.checks}
    return nodes_of([each for each in lately if each.node not in good], checks)


async def _ask(argv: tuple[str, ...], environment: Mapping[str, str]) -> str:
    done = await run_command(argv, environment=environment, limit=_LIMIT_S)
    if done.code:
        raise GipfelError(f"{argv[0]} says: {done.errors.strip()[:200]}")
    return done.output


def read_job(text: str) -> dict[str, str]:
    """Return the fields of ``scontrol show job --oneliner``; Slurm's words for none are empty."""
    parts = _FIELD.split(text.strip())
    found = dict(zip(parts[1::2], (each.strip() for each in parts[2::2]), strict=False))
    return {key: "" if value in _NOTHING else value for key, value in found.items()}


def request_of(
    job: Mapping[str, str], script: str, *, bad: str, job_id: str, environment: Mapping[str, str]
) -> JobRequest:
    """Return the request for the same job, with the bad nodes added to those it excluded already.

    Raises
    ------
    GipfelError
        It had arguments, which Slurm does not tell apart, or too many nodes would be excluded.
    """
    command = job.get("Command", "")
    if len(shlex.split(command)) > 1:
        raise GipfelError("its script was given arguments, which Slurm does not keep.")
    excluded = {*expand_hostlist(job.get("ExcNodeList", "")), *expand_hostlist(bad)}
    if len(excluded) > MOST_EXCLUDED:
        raise GipfelError(f"{len(excluded)} nodes would be excluded, at most {MOST_EXCLUDED} are.")
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
        # Debian's scontrol ends what it writes with a NUL.
        script=script.rstrip("\0"),
        directory=job.get("WorkDir", "") or "/",
        output=_log_of(job.get("StdOut", ""), job_id),
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


def _log_of(path: str, job_id: str) -> str:
    """Return the log of the new job: directories stay, the old job's number may not appear."""
    folder, slash, name = path.rpartition("/")
    return (
        folder.replace("%", "%%") + slash + re.sub(rf"(?<!\d){job_id}(?!\d)", "%j", name.replace("%", "%%"))
    )


def record_of_report(report: VettingReport) -> VettingRecord:
    """Return the record of a report; one that has not ended counts as cut short at its last result."""
    last = max((each.started_ns for each in report.results), default=report.started_ns)
    return record_of(
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


def keep_report(report: VettingReport, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Remember a report, and share it with the user's consent; what a person should know of that, as notes.

    Nothing here fails a vetting.
    """
    if not report.results:
        return ()
    record = record_of_report(report)
    notes = []
    try:
        history = History(history_root(environment), record.cluster)
        history.remember(record)
        _exclude(Exclusions(history.folder), report)
    except GipfelError as error:
        notes.append(str(error))
    if consents(environment):
        notes.append(share_record(record, versions=_versions(), environment=environment).words)
    return tuple(notes)


def _exclude(exclusions: Exclusions, report: VettingReport) -> None:
    """Exclude each node for a day that failed by itself, check by check, and lift those that pass now."""
    accused = set(expand_hostlist(report.exclude)) if report.exclude else set()
    decided = [each for each in report.results if each.node and each.severity is Severity.ERROR]
    failed = {
        (each.node, each.check): each
        for each in decided
        if each.verdict is Verdict.FAIL and each.owner is Owner.NODE
    }
    now = time.time_ns()
    held = {(each.node, each.check) for each in exclusions.read(now_ns=now)[0]}
    passed = {(each.node, each.check) for each in decided if each.verdict is Verdict.PASS} - failed.keys()
    for node, check in sorted(held & passed):
        exclusions.lift(node, check, now_ns=now)
    added = [
        Exclusion(
            node=node,
            check=check,
            reason=one_line(each.reason)[:500] or "It failed.",
            since_ns=now,
            until_ns=now + _EXCLUDED_NS,
        )
        for (node, check), each in failed.items()
        if node in accused
    ]
    if added:
        exclusions.add(added, now_ns=now)


def _versions() -> dict[str, str]:
    try:
        return {"gipfel": version("gipfel")}
    except PackageNotFoundError:
        return {}
