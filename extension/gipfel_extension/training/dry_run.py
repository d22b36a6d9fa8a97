"""Exactly what would be submitted, for a person to read."""

import shlex

from gipfel_cluster.scheduler.slurm import submit_arguments

from .notebook_job import NotebookJob

_MOST_TASKS = 20


def dry_run_lines(job: NotebookJob) -> list[str]:
    """The command, the script, what it runs, and every run's values and output; no variable's value."""
    request, spec = job.request, job.spec
    if job.scheduler == "slurm":
        first = shlex.join(submit_arguments(request))
    else:
        first = f"this machine ({job.scheduler})" + (
            f", {request.array_limit} at a time" if request.array else ""
        )
    lines = [f"submit    {first}", *(f"script    {line}" for line in request.script.splitlines())]
    lines.append(f"runs      {shlex.join(spec.command)}")
    lines.append(f"folder    {spec.directory}")
    lines.append(f"in        {_environment(job)}")
    lines.append(f"variables {' '.join(sorted(request.environment))}")
    fixed = spec.options.get("parameters", [])
    lines += [
        f"parameter {pair[0]}: {pair[1]}"
        for pair in (fixed if isinstance(fixed, list) else [])
        if isinstance(pair, list)
    ]
    tasks = list(job.tasks("JOB"))
    for number, task in enumerate(tasks[:_MOST_TASKS]):
        values = "  ".join(f"{name}: {text}" for name, text in task.values.items())
        lines.append(f"output    {task.output}" + (f"  ({number})  {values}" if values else ""))
    if len(tasks) > _MOST_TASKS:
        lines.append(f"          and {len(tasks) - _MOST_TASKS} more, {len(tasks)} in all")
    lines.append(f"log       {job.log}")
    return lines


def dry_run_document(job: NotebookJob) -> dict[str, object]:
    """The same as a document."""
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
