"""``gipfel submit``: a notebook as a batch job."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .terminal import examples, tell

if TYPE_CHECKING:
    from gipfel_cluster.scheduler import Scheduler

    from ..training.notebook_job import NotebookJob

_INTERRUPTED = 130


@click.command(
    epilog=examples(
        "gipfel submit train.ipynb trained.ipynb -p epochs 3 --edf pytorch --gpus-per-node 4 --time 02:00:00",
        "gipfel submit measure-saturation.ipynb measured.ipynb -p seconds 60 --scheduler local --wait",
    )
)
@click.argument("notebook", metavar="IN.ipynb", type=click.Path(readable=False, path_type=Path))
@click.argument("output", metavar="OUT.ipynb", type=click.Path(readable=False, path_type=Path))
@click.option(
    "-p", "parameters", type=(str, str), multiple=True, metavar="K V", help="A parameter and its value."
)
@click.option(
    "--kernel",
    default="",
    metavar="NAME",
    help="By default the notebook's. In an image with Python, python3 is the image's, gipfel the runtime's.",
)
@click.option("--edf", default="", metavar="FILE|NAME", help="The environment; without one the node itself.")
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(min=1), metavar="N")
@click.option("--gpus-per-node", default=0, show_default=True, type=click.IntRange(0, 1024), metavar="N")
@click.option("--partition", default="", metavar="P", help="By default the cluster's.")
@click.option("--account", default="", metavar="A", help="By default yours.")
@click.option("--time", default="", metavar="T", help="Time limit as Slurm writes it, such as 01:30:00.")
@click.option(
    "--scheduler",
    default="",
    metavar="S",
    help="slurm or local (this machine); by default $GIPFEL_SCHEDULER, else slurm where there is sbatch.",
)
@click.option("--engine", default="", metavar="E", help="By default $GIPFEL_ENGINE, else bubblewrap.")
@click.option(
    "--runtime",
    default="",
    metavar="DIR|FILE.sqsh",
    help="The runtime for images; by default $GIPFEL_RUNTIME, the one that runs this, ~/.gipfel/runtime.",
)
@click.option(
    "--cluster", default="", metavar="C", help="First part of the run's name; by default $GIPFEL_CLUSTER."
)
@click.option("--wait", is_flag=True, help="Wait for the end and return the job's exit status.")
def submit(*, wait: bool, **options: Any) -> int:
    """Run the notebook IN.ipynb as a batch job on one node and write it, executed, to OUT.ipynb.

    Its 'parameters' cell takes the values of -p. The notebook runs in the folder that you are in. The job's
    number is printed on stdout; its log is OUT.ipynb.log. Inside a container files must be in mounted
    folders, and the job gets the host's variables.
    """
    import asyncio  # noqa: PLC0415 - half as long to load as all that the other commands need

    from gipfel_cluster.model import GipfelError  # noqa: PLC0415

    from ..training.notebook_job import (  # noqa: PLC0415
        NotebookOptions,
        plan_notebook_job,
        scheduler_of,
    )

    try:
        directory = Path.cwd()
    except OSError as error:
        raise GipfelError("The folder that you are in is gone.", "Go to another one.") from error
    job = plan_notebook_job(
        NotebookOptions.model_validate(options), environment=os.environ, directory=directory
    )
    scheduler = scheduler_of(job, os.environ)
    job_id = asyncio.run(scheduler.submit(job.request))
    click.echo(job_id)
    tell(f"job {job_id} is submitted ({job.scheduler}); its log is {job.log}")
    if job.inside and job.scheduler == "local":
        tell(f"job {job_id} ends with the job that it was submitted from, at the latest")
    return _wait(scheduler, job_id, job) if wait else 0


def _wait(scheduler: "Scheduler", job_id: str, job: "NotebookJob") -> int:
    import asyncio  # noqa: PLC0415 - as above

    from ..training.job_wait import how_to_leave, wait_for_job  # noqa: PLC0415

    try:
        return asyncio.run(wait_for_job(scheduler, job_id, job, environment=os.environ, tell=tell))
    except KeyboardInterrupt:
        tell(how_to_leave(job_id, job, os.environ))
        return _INTERRUPTED
