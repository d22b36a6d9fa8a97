"""A broker beside this test's own process, and clients of every kind."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gipfel_cluster.broker.context import JobContext
from gipfel_cluster.job.broker import broker_process
from gipfel_cluster.runtime import Runtime


@contextmanager
def running_broker(home: Path, **more: Any) -> Iterator[JobContext]:
    """A real broker process, whose home folder and EDFs are in `home`."""
    scratch = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))
    (scratch / "s").mkdir(mode=0o700)
    context = JobContext(
        sockets=str(scratch / "s"), scratch=str(scratch), home=str(home), cluster="here", engine="bubblewrap",
        runtime=Runtime.from_current_interpreter(),
        host_environment={
            "PATH": os.environ["PATH"], "HOME": str(home), "USER": "ada", "SOME_TOKEN": "secret",
        },
        container_environment={"GIPFEL_SOCKETS": str(scratch / "s")}, folders=(str(scratch),), **more,
    )  # fmt: skip
    try:
        with broker_process(context):
            yield context
    finally:
        shutil.rmtree(scratch)


def write_edf(home: Path, name: str, text: str = '[env]\nWHERE = "the other"\n') -> None:
    (home / ".edf").mkdir(exist_ok=True)
    (home / ".edf" / f"{name}.toml").write_text(text)


def connected(context: JobContext) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(30)
    client.connect(str(context.socket))
    return client


def said(client: socket.socket) -> dict[str, Any]:
    """The next line of an answer; empty at the end."""
    content = b""
    while not content.endswith(b"\n"):
        try:
            piece = client.recv(1)
        except ConnectionResetError:
            piece = b""
        if not piece:
            return {}
        content += piece
    return json.loads(content)


def until(done: Callable[[], Any], limit: float = 30) -> Any:
    end = time.monotonic() + limit
    while not (result := done()):
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.05)
    return result


#: A client in a separate process: EDF, then the command.
_CLIENT = """
import sys
from pathlib import Path
from gipfel_cluster.broker.client import run_in_container
from gipfel_cluster.broker.messages import PathRef, RunRequest
from gipfel_cluster.model import GipfelError
try:
    request = RunRequest(edf=sys.argv[2], command=sys.argv[3:], directory=PathRef.of(Path.cwd()))
    note = lambda line: print("note:", line, file=sys.stderr)
    sys.exit(run_in_container(Path(sys.argv[1]), request, note=note))
except GipfelError as error:
    sys.exit(f"gipfel: {error}")
"""


def client_process(
    context: JobContext, edf: str, command: Sequence[str], **more: Any
) -> "subprocess.Popen[str]":
    given = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "cwd": "/",
        **more,
    }
    argv = [sys.executable, "-I", "-c", _CLIENT, str(context.socket), edf, *command]
    return subprocess.Popen(argv, text=True, start_new_session=True, **given)


def run_through(
    context: JobContext, edf: str, *command: str, given: str = "", **more: Any
) -> tuple[int, str, str]:
    process = client_process(context, edf, command, **more)
    output, errors = process.communicate(given, timeout=60)
    return process.returncode, output, errors
