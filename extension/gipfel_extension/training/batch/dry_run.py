"""Show a batch notebook's submission without making it: as lines for people, as a document for programs."""

import shlex

from gipfel_cluster.scheduler.slurm import submit_arguments

from . import NotebookJob

_MAX_TASKS = 20


def dry_run_lines(job: NotebookJob) -> list[str]:
    """Return a dry run as lines: submission, script, command, and values and output of each run.

    Environment variables are listed by name, without their values.
    """
    request, spec = job.request, job.spec
    if job.scheduler == "slurm":
        first = shlex.join(submit_arguments(request))
    else:
        first = f"this machine ({job.scheduler})" + (
            f", {request.array_limit} at a time" if request.array else ""
        )
    lines = [f"submit    {first}", *(f"script    {line}" for line in request.script.splitlines())]
    lines.append(f"runs      {shlex.join(spec.command)}")
    lines.append(f"directory {spec.directory}")
    lines.append(f"in        {_environment(job)}")
    lines.append(f"variables {' '.join(sorted(request.environment))}")
    fixed = spec.options.get("parameters", [])
    lines += [
        f"parameter {pair[0]}: {pair[1]}"
        for pair in (fixed if isinstance(fixed, list) else [])
        if isinstance(pair, list)
    ]
    tasks = list(job.tasks("JOB"))
    for number, task in enumerate(tasks[:_MAX_TASKS]):
        values = "  ".join(f"{name}: {text}" for name, text in task.values.items())
        lines.append(f"output    {task.output}" + (f"  ({number})  {values}" if values else ""))
    if len(tasks) > _MAX_TASKS:
        lines.append(f"          and {len(tasks) - _MAX_TASKS} more, {len(tasks)} in all")
    lines.append(f"log       {job.log}")
    return lines


def dry_run_document(job: NotebookJob) -> dict[str, object]:
    """Return the content of `dry_run_lines` as a JSON document."""
    return {
        "scheduler": job.scheduler,
        "submit": list(submit_arguments(job.request)) if job.scheduler == "slurm" else None,
        "script": job.request.script,
        "command": list(job.spec.command),
        "job": job.spec.model_dump(mode="json"),
        "variables": sorted(job.request.environment),
        "tasks": [task.model_dump(mode="json", exclude={"job_id"}) for task in job.tasks("JOB")],
    }


def _environment(job: NotebookJob) -> str:
    if not job.spec.edf:
        return "the node itself"
    return f"{job.spec.edf} by {job.spec.engine}, runtime {job.spec.runtime or 'none'}"
