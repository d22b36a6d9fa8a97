"""``gipfel notify`` and ``track``: messages about jobs by e-mail, Slack and ntfy; runs as MLflow runs."""

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gipfel_cluster.messages import GipfelError, pluralize

from .terminal import examples, print_json, print_lines, report_line, report_lines

if TYPE_CHECKING:
    from gipfel_cluster.notify import NotifySettings
    from gipfel_cluster.workloads.run_folders import Run

    from ..exporters.mlflow_client import MlflowClient
    from ..exporters.mlflow_tracking import Progress, TrackedRun, Tracker

_SHOWN = 10
_MAX_EXPERIMENT = 500
_HELP = """Send messages about your jobs by e-mail, Slack or ntfy: a start, an end, a failure, a problem.

\b
You get a message when
  started     a job has started after waiting in the queue for a minute or longer
  ended       a job or launch has completed, or was stopped
  failed      a job or launch has failed or reached its time limit
  idle        all GPUs of a node have been idle for 20 minutes
  checkpoint  the next checkpoint won't fit on its file system
  time        a job's time limit ends soon
  hang        the ranks of a launch make no progress

JupyterLab shows these in any case. Nothing is sent until you write the file ~/.gipfel/notify.toml. It has
secrets, so it must be readable by you alone (chmod 600). Leave out what you don't use:

\b
  hub = "https://hub.example.org"       # optional: messages link to reports there
  events = ["failed", "idle", "time"]   # optional: only these (default: all)
  per_hour = 20                         # optional: maximum number of messages per hour

\b
  [ntfy]                                # install the app, and subscribe to the topic
  url = "https://ntfy.sh/A-LONG-RANDOM-TOPIC"
  token = "tk_..."                      # optional: of a server with accounts

\b
  [slack]                               # an incoming webhook, of Mattermost too
  url = "https://hooks.slack.com/services/..."

\b
  [email]
  host = "smtp.example.org"
  port = 587                            # optional
  security = "starttls"                 # or "tls"; "none" only if the mail server is on this machine
  from = "me@example.org"
  to = ["me@example.org"]
  user = "me"                           # optional, for servers with a login
  password = "..."

Write it in your home directory on the cluster: in a container that does not mount it, use a login node. The
node of a job sends the message, so it must reach the service. Anyone who knows a topic of a public ntfy
server can read it: choose a name that can't be guessed.
"""


@click.group(
    help=_HELP,
    epilog=examples(
        "gipfel notify test      send a test message to each service",
        "gipfel notify status    show what is set up, and how the last messages went",
    ),
)
def notify() -> None:
    """Hold the commands below; the help text is above."""


@notify.command(epilog=examples("gipfel notify test", "gipfel notify test --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def test(*, as_json: bool) -> int:
    """Send a test message to each service that is set up; the rate limit does not count it.

    Exit status: 0 every service accepted it, 1 one did not, or none is set up.
    """
    from gipfel_cluster.notify import Event, message_of  # noqa: PLC0415
    from gipfel_cluster.notify.channels import send_to_all  # noqa: PLC0415

    settings, file = _settings()
    if settings is None or not settings.channels:
        raise GipfelError(f"No service is set up in {file} on this machine.", "See `gipfel notify --help`.")
    event = Event.of("test", "A test message", f"Sent by `gipfel notify test` on {os.uname().nodename}.")
    outcomes = send_to_all(settings, message_of(event, settings.hub), os.environ)
    if as_json:
        click.echo(json.dumps({name: {"problem": each.problem} for name, each in outcomes.items()}))
    else:
        for name, each in outcomes.items():
            click.echo(f"{name:<6} {each.problem or 'accepted the message'}")
        if not settings.hub:
            report_line("Messages have no links to reports, because the file does not set hub.")
    return 1 if any(each.problem for each in outcomes.values()) else 0


@notify.command(epilog=examples("gipfel notify status", "gipfel notify status --json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def status(*, as_json: bool) -> int:
    """Show what is set up, without secrets, how the last messages went, and the newest events.

    Exit status: 0, or 1 if the file can't be used.
    """
    problem, settings = "", None
    try:
        settings, _ = _settings()
    except GipfelError as error:
        problem = str(error)
    document = _status(settings, problem)
    if as_json:
        click.echo(json.dumps(document))
    else:
        _print_status(document)
    return 1 if problem else 0


def _settings() -> "tuple[NotifySettings | None, str]":
    from gipfel_cluster.notify import read_settings, settings_file  # noqa: PLC0415

    return read_settings(os.environ), str(settings_file(os.environ))


def _status(settings: "NotifySettings | None", problem: str) -> dict[str, Any]:
    from gipfel_cluster.notify import settings_file  # noqa: PLC0415
    from gipfel_cluster.notify.journal import read_events, read_state  # noqa: PLC0415

    state = read_state(os.environ)
    services = settings.channels if settings else ()
    return {
        "file": str(settings_file(os.environ)),
        "problem": problem,
        "services": {
            name: state.outcomes[name].model_dump() if name in state.outcomes else None for name in services
        },
        "events": list(settings.events) if settings else [],
        "per_hour": settings.per_hour if settings else 0,
        "held_back": state.held_back,
        "job_problem": state.problem,
        "recent": [each.model_dump() for each in read_events(os.environ)[-_SHOWN:]],
    }


def _print_status(document: dict[str, Any]) -> None:
    if document["problem"]:
        report_line(document["problem"])
    elif not document["services"]:
        click.echo(
            f"Nothing is sent: no service is set up in {document['file']}. See `gipfel notify --help`."
        )
    for name, outcome in document["services"].items():
        click.echo(f"{name:<6} {_outcome(outcome)}")
    if document["services"]:
        click.echo(f"Sent: {', '.join(document['events'])}; at most {document['per_hour']} in an hour.")
    if document["job_problem"] and document["job_problem"] != document["problem"]:
        report_line(f"The last job could not use the file: {document['job_problem']}")
    if document["held_back"]:
        click.echo(
            f"The rate limit has held back {document['held_back']} messages since the last that was sent."
        )
    if document["recent"]:
        click.echo("Newest events:")
    print_lines(
        f"  {_clock(each['time_ns'])}  {each['kind']:<10}  {each['title']}: {each['reason']}"
        for each in document["recent"]
    )


def _outcome(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return "set up; nothing sent yet (`gipfel notify test`)"
    return f"{_clock(outcome['time_ns'])}: {outcome['problem'] or 'accepted the last message'}"


def _clock(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / 1e9).astimezone():%Y-%m-%d %H:%M %Z}"


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
    """Copy a run to an MLflow server, where its launches become child runs.

    RUN is a run's folder or the name that you gave it. The server gets parameters, commit, image and its
    digest, the metrics that all ranks logged, means of the GPUs' and hosts' metrics, score and losses, and as
    artifacts the record, score, vetting report and the ends of logs. Secrets in parameters are hidden.

    The command can be repeated at any time: it sends only what is not on the server yet, such as
    what an earlier call could not send. The run folder keeps everything, so a server that is down costs
    nothing. The package mlflow is not needed here. With $GIPFEL_TRACK_TO in their environment, jobs and
    `gipfel record` do this at their end, for 20 seconds at most, also for runs that could not be sent before;
    $GIPFEL_TRACK_TOKEN_FILE names the token's file.

    Exit status: 0 everything is on the server, 1 the server can't be reached or refuses something.
    """
    from ..exporters.mlflow_client import MlflowClient  # noqa: PLC0415 - httpx, which --help can do without

    if bool(name) == pending:
        raise click.UsageError("Give either a RUN or --pending.")
    if not uri:
        raise click.UsageError("Give the server's address with --to or in $MLFLOW_TRACKING_URI.")
    if not experiment.strip() or not experiment.isprintable() or len(experiment) > _MAX_EXPERIMENT:
        problem = (
            f"The experiment's name is empty, has a line break or more than {_MAX_EXPERIMENT} characters."
        )
        raise click.UsageError(problem)
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
        return print_json(documents if pending else documents[0])
    for each in tracked:
        report_lines(f"not uploaded: {line}" for line in each.skipped)
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
        report_line(
            f"{run.name}: sent {pluralize(tracked.points, 'value')} and {pluralize(tracked.files, 'file')}"
        )
    return tracked


def _progress(name: str) -> "Progress":
    def show(sent: int, total: int) -> None:
        if sys.stderr.isatty():
            share = round(100 * sent / total) if total else 100
            click.echo(f"\r{name}: {sent} of {total} values ({share} %)", err=True, nl=sent >= total)

    return show


def _token(path: Path | None) -> str:
    """Return the token in a file that only its owner can read, else the token in the environment.

    Raises
    ------
    GipfelError
        The file can't be read, or others may read it.
    """
    if path is None:
        return os.environ.get("MLFLOW_TRACKING_TOKEN", "").strip()
    from gipfel_cluster.regular_files import read_secret  # noqa: PLC0415

    return read_secret(path.expanduser()).decode("ascii", "replace").strip()
