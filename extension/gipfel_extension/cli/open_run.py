"""``gipfel open``: the link to a run's report, on the notebook server that can read the run."""

import os
import webbrowser
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import click

from .completion import complete_runs
from .terminal import examples, report_line


@click.command("open", epilog=examples("gipfel open alps-48812", "gipfel open baseline --browser"))
@click.argument("run", metavar="RUN", shell_complete=complete_runs())
@click.option("--browser", is_flag=True, help="Open the link in a browser on this machine, too.")
def open_run(*, run: str, browser: bool) -> int:
    """Print the link to a run's report: score, losses, advice, figures, events and record.

    Your notebook server renders the page when the link is opened, so it must be running. On a hub, a
    colleague needs the scope access:servers for your server to open it.

    Exit status: 0 printed, 1 there is no such run or no server.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415
    from gipfel_cluster.workloads.run_folders import find_run  # noqa: PLC0415

    name = find_run(run, os.environ).name
    base = server_url(os.environ, _local_servers())
    if not base:
        raise GipfelError(
            "No notebook server of yours runs on this machine.",
            f"Start one, or write the page into a file: gipfel report {name}",
        )
    link = report_link(base, name)
    click.echo(link)
    if link.startswith("/"):
        report_line("This link begins after the address of your hub, which this server does not know.")
    elif browser and not webbrowser.open(link):
        report_line("No browser can be opened here.")
    return 0


def report_link(base: str, name: str) -> str:
    """Return the link to the report of a run on the server with this URL or prefix."""
    return f"{base.rstrip('/')}/gipfel/runs/{quote(name, safe='')}/report"


def server_url(environment: Mapping[str, str], local_servers: Iterable[Mapping[str, Any]]) -> str:
    """Return the URL of the server in whose terminal this is, else of the newest one on this machine.

    On a hub without a configured public URL it is the server's prefix. The URL has no token.
    """
    prefix = environment.get("JUPYTERHUB_SERVICE_PREFIX", "")
    if prefix:
        host = environment.get("JUPYTERHUB_HOST", "")
        return environment.get("JUPYTERHUB_PUBLIC_URL") or f"{host}{prefix}"
    urls = [str(each.get("url", "")) for each in local_servers]
    return next((url for url in reversed(urls) if url.startswith(("http://", "https://"))), "")


def _local_servers() -> list[Mapping[str, Any]]:
    """Return the running notebook servers of this user on this machine."""
    from jupyter_server.serverapp import list_running_servers  # noqa: PLC0415 - slow to import

    return list(list_running_servers())
