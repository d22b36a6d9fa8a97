"""``gipfel track``: a run folder as a run of an MLflow server."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from gipfel_cluster.workloads.run_folders import Run

    from ..exporters.mlflow_client import MlflowClient
    from ..exporters.mlflow_tracking import Progress, TrackedRun, Tracker


@click.command(
    epilog=examples(
        "gipfel track alps-48812 --to http://127.0.0.1:5000",
        "gipfel track baseline --to https://mlflow.example.org --experiment llama --token-file ~/.token",
        "gipfel track --pending                                  everything that is not there yet",
    )
)
@click.argument("name", metavar="[RUN]", default="")
@click.option(
    "--to", "uri", envvar=["GIPFEL_TRACK_TO", "MLFLOW_TRACKING_URI"], default="", metavar="URI",
    help="Address of the MLflow server; by default $GIPFEL_TRACK_TO, else $MLFLOW_TRACKING_URI.",
)  # fmt: skip
@click.option(
    "--experiment", envvar="MLFLOW_EXPERIMENT_NAME", default="gipfel", show_default=True, metavar="NAME",
    help="Experiment on the server; it is created if there is none of this name.",
)  # fmt: skip
@click.option(
    "--token-file", envvar="GIPFEL_TRACK_TOKEN_FILE", type=click.Path(dir_okay=False, path_type=Path),
    default=None, metavar="FILE",
    help="File with the server's token, which you alone may read; by default $MLFLOW_TRACKING_TOKEN.",
)  # fmt: skip
@click.option("--pending", is_flag=True, help="All ended runs that are not completely on the server.")
@click.option("--no-files", is_flag=True, help="Upload no files: no score, logs or record.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def track(
    *,
    name: str,
    uri: str,
    experiment: str,
    token_file: Path | None,
    pending: bool,
    no_files: bool,
    as_json: bool,
) -> int:
    """Make a run, with its launches as child runs, a run of an MLflow server.

    RUN is a run's folder or the name that you gave it. The server gets parameters, commit, image and its
    digest, the metrics that all ranks logged, means of the GPUs' and hosts' metrics, score and losses, and as
    artifacts the record, score, vetting report and the ends of logs. Secrets in parameters are hidden.

    The command can be repeated at any time: what is there already is not sent again, and what an earlier call
    could not send is. The run folder keeps everything, so a server that is down costs nothing. The package
    mlflow is not needed here. With $GIPFEL_TRACK_TO in their environment, jobs and `gipfel record` do this at
    their end, for 20 seconds at most, also for runs that could not be sent before; $GIPFEL_TRACK_TOKEN_FILE
    names the token's file.

    Exit status: 0 everything is on the server, 1 the server can't be reached or refuses something.
    """
    from ..exporters.mlflow_client import MlflowClient  # noqa: PLC0415 - httpx, which --help can do without

    if bool(name) == pending:
        raise click.UsageError("Give either a RUN or --pending.")
    if not uri:
        raise click.UsageError("Give the server's address with --to or in $MLFLOW_TRACKING_URI.")
    client = MlflowClient(uri.rstrip("/"), _token(token_file))
    try:
        tracked = [
            _track(run, _tracker(client, experiment, run, files=not no_files, quiet=as_json))
            for run in _runs(name, client.uri)
        ]
    finally:
        client.close()
    if as_json:
        documents = [{**each.model_dump(), "url": each.url} for each in tracked]
        click.echo(json.dumps(documents if pending else documents[0]))
        return 0
    for each in tracked:
        for line in each.skipped:
            report_line(f"not uploaded: {line}")
        click.echo(each.url)
    if pending and not tracked:
        click.echo("All ended runs are on the server.")
    return 0


def _tracker(client: "MlflowClient", experiment: str, run: "Run", *, files: bool, quiet: bool) -> "Tracker":
    from ..exporters.mlflow_tracking import Tracker  # noqa: PLC0415 - numpy
    from .report import static_report  # noqa: PLC0415

    has_score = (Path(run.folder) / "score.json").is_file()
    return Tracker(
        client,
        experiment,
        files=files,
        make_report=static_report if has_score else None,
        progress=None if quiet else _progress(run.name),
    )


def _runs(name: str, uri: str) -> "list[Run]":
    from gipfel_cluster.workloads.run_folders import typed_run  # noqa: PLC0415 - pydantic

    from ..exporters.mlflow_tracking import pending_runs  # noqa: PLC0415

    return [typed_run(name, os.environ)] if name else list(pending_runs(uri, os.environ))


def _track(run: "Run", tracker: "Tracker") -> "TrackedRun":
    tracked = tracker.track(run)
    if tracker.progress is not None:
        report_line(f"{run.name}: sent {tracked.points} values and {tracked.files} files")
    return tracked


def _progress(name: str) -> "Progress":
    def show(sent: int, total: int) -> None:
        if sys.stderr.isatty():
            share = round(100 * sent / total) if total else 100
            click.echo(f"\r{name}: {sent} of {total} values ({share} %)", err=True, nl=sent >= total)

    return show


def _token(path: Path | None) -> str:
    """Return the token of a file that only its owner can read, else of the environment.

    Raises
    ------
    GipfelError
        The file can't be read, or others may read it.
    """
    if path is None:
        return os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    from gipfel_cluster.regular_files import read_secret  # noqa: PLC0415

    return read_secret(path.expanduser()).decode("ascii", "replace").strip()
