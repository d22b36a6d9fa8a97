"""The job once more, without its bad nodes: what Slurm knows of it, with a longer list of excluded nodes."""

import asyncio
import re
import shlex
from collections.abc import Mapping

from pydantic import ValidationError

from gipfel_cluster.broker.surroundings import passed_on
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler import JobRequest, SlurmScheduler
from gipfel_cluster.scheduler.command import run_command
from gipfel_cluster.scheduler.hostlist import expand_hostlist, fold_hostlist

from ..history.exclusions import Exclusions, nodes_of
from ..history.store import History, history_root
from ..report import VettingReport
from .place import Place

#: How often this job has been submitted again, in the environment of the job.
ATTEMPT_VARIABLE = "GIPFEL_VET_RESUBMITTED"
#: A list that is longer says something else than which nodes are bad.
MOST_EXCLUDED = 256
_LIMIT_S = 60.0
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=")
_GPUS = re.compile(r"gpu(?::[A-Za-z0-9_.-]+)?:(\d+)")
_NOTHING = {"", "(null)", "N/A", "UNLIMITED", "Partition_Limit"}


def resubmit(report: VettingReport, place: Place, environment: Mapping[str, str], *, most: int) -> str:
    """Submit this job again with ``--exclude``; what came of it, in a sentence.

    Parameters
    ----------
    most
        How often a job may be submitted again.
    """
    by_hand = f"Submit it yourself with --exclude={report.exclude}."
    try:
        return asyncio.run(_resubmit(report, place, environment, most))
    except GipfelError as error:
        return f"The job was not submitted again: {error.problem} {by_hand}"
    except (TimeoutError, ValidationError) as error:
        said = (
            "Slurm did not answer." if isinstance(error, TimeoutError) else "an option of it can't be kept."
        )
        return f"The job was not submitted again: {said} {by_hand}"


async def _resubmit(report: VettingReport, place: Place, environment: Mapping[str, str], most: int) -> str:
    if not place.job.isdecimal():
        raise GipfelError("This is no Slurm job.")
    given = environment.get(ATTEMPT_VARIABLE, "0")
    attempt = int(given) if given.isdecimal() else 0
    if attempt >= most:
        raise GipfelError(f"it has been {attempt} times, and {most} are allowed.")
    job = read_job(await _ask(("scontrol", "show", "job", "--oneliner", place.job), environment))
    script = await _ask(("scontrol", "write", "batch_script", place.job, "-"), environment)
    if "gipfel_cluster.job" in script:
        raise GipfelError("it is one of Gipfel's own, whose options are in its launch.")
    variables = {**passed_on(environment), ATTEMPT_VARIABLE: str(attempt + 1)}
    bad = ",".join(filter(None, (report.exclude, known_bad(report, environment))))
    request = request_of(job, script, bad=bad, job_id=place.job, environment=variables)
    new = await SlurmScheduler(environment=environment).submit(request)
    return f"Submitted again as job {new} with --exclude={request.exclude}."


def known_bad(report: VettingReport, environment: Mapping[str, str]) -> str:
    """Nodes that failed these checks in earlier runs of late: the new job might get them."""
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
    """The fields of ``scontrol show job --oneliner``; what stands for nothing is empty."""
    parts = _FIELD.split(text.strip())
    found = dict(zip(parts[1::2], (each.strip() for each in parts[2::2]), strict=False))
    return {key: "" if value in _NOTHING else value for key, value in found.items()}


def request_of(
    job: Mapping[str, str], script: str, *, bad: str, job_id: str, environment: Mapping[str, str]
) -> JobRequest:
    """The request for the same job, with the bad nodes added to those it excluded already.

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
    """The log of the new job: the number of the old one may not name it; folders stay as they are."""
    folder, slash, name = path.rpartition("/")
    return (
        folder.replace("%", "%%") + slash + re.sub(rf"(?<!\d){job_id}(?!\d)", "%j", name.replace("%", "%%"))
    )
