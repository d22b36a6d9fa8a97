"""Supervise one job of the local scheduler: start it, wait for it, end it with everything that it started.

``python -I -m gipfel_cluster.scheduler.supervisor`` reads a `SupervisedJob` as JSON from its input, so that
no variable's value is in an argument or a file, and answers one line of JSON: ``{"pid"}`` or ``{"problem"}``.
It outlives the process that started it. The job's folder gets ``supervisor.json`` (a `Process`) and, at the
end, ``exit.json`` (a `JobExit`).
"""

import contextlib
import importlib
import json
import math
import os
import pwd
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from ..model import Frozen
from ..namespaces import die_with_parent
from ..process.fork import become_program
from ..process.liveness import adopt_orphans, signal_all
from ..process.tree import Process, descendants, kill_tree
from ..runs import write_atomically
from .protocol import RUNNER, batch_script

#: What a job has to end. A server and its kernels take 10, its other processes 10 (`end_descendants`), the
#: recorders here and elsewhere 15 each, the score 10 (`close_run`); many at once are slower still.
GRACE_SECONDS = 75.0
#: What processes that a job left behind have.
_LEFT_SECONDS = 10.0
#: The file in the job's folder with the seconds by which its time limit was extended.
EXTENSION = "extension"
_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: What the batch script's program runs; by its name, since it is above the schedulers.
_RUNNER_MODULE = f"{RUNNER[-1]}.runner"


class SupervisedJob(Frozen):
    """A job for the supervisor: ``folder`` holds its state, ``seconds`` is the time limit, if any."""

    folder: str
    script: str
    directory: str
    output: str = ""
    environment: dict[str, str]
    user: str = ""
    seconds: int | None = None


class JobExit(Frozen):
    """The end of a job: Slurm's word for it, and its exit status (128 + n after signal n)."""

    state: str
    exit_code: int


def _become(user: str) -> None:
    if user:
        entry = pwd.getpwnam(user)
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)


def _start_here(job: SupervisedJob, pipe: int) -> None:
    """Turn this (forked) process into the job; returns only by an exception, reported to `pipe`."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # The script lives in memory: the job's user may be unable to read any folder of ours.
    script = os.memfd_create("job", 0)
    os.write(script, job.script.encode())
    os.fchmod(script, 0o755)
    _become(job.user)
    # The job is notified when its supervisor is killed.
    die_with_parent(signal.SIGTERM)
    os.chdir(job.directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(job.output or os.devnull, flags, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for target, source in ((0, empty), (1, log), (2, log)):
        os.dup2(source, target)
    if not job.user and job.script == batch_script(sys.executable):
        # What the script would start with this very interpreter, of which most is loaded.
        os.close(pipe)
        _run_here(job)
    os.execve("/bin/sh", ["/bin/sh", f"/proc/self/fd/{script}"], job.environment)  # noqa: S606 - the script is ours


def _run_here(job: SupervisedJob) -> NoReturn:
    """Run the job's runner in this process; never returns."""
    status = 1
    try:
        # In the job's process alone.
        run_job = importlib.import_module(_RUNNER_MODULE).main
        become_program((sys.executable, *RUNNER), job.environment)
        status = run_job()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - nothing of the supervisor may run here
        traceback.print_exc()
    finally:
        os._exit(status)


def _fork(job: SupervisedJob) -> tuple[int, str]:
    """Start the job, and return its process id and what went wrong before it ran."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        with os.fdopen(read) as pipe:
            return pid, pipe.read()
    try:
        os.close(read)
        _start_here(job, write)
    except KeyError:
        os.write(write, f"There is no unix user {job.user}.".encode())
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        os.write(write, f"{error.strerror}{where}.".encode())
    finally:
        os._exit(126)


def _reap(job: int) -> int | None:
    """Collect ended children; return the job's exit status once it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == job:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    return status


def _extension(folder: Path) -> int:
    """Return the seconds added to the limit since the job began; see `EXTENSION`."""
    try:
        return int((folder / EXTENSION).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _keep(job: int, seconds: int | None, folder: Path) -> JobExit:
    """Wait for the job; end it on a signal or at its time limit, and then everything that it left behind."""
    deadline = None if seconds is None else time.monotonic() + seconds
    state, code, last = "", None, math.inf
    while True:
        caught = signal.sigtimedwait(_WATCHED, 1.0 if last == math.inf else 0.2)
        if caught is not None and caught.si_signo != signal.SIGCHLD:
            state = state or "CANCELLED"
        # The file is read only when the time is up.
        if deadline is not None and (over := time.monotonic() - deadline) > 0 and over > _extension(folder):
            state = state or "TIMEOUT"
        ended = _reap(job)
        if ended is not None:
            code = ended
            signal_all(descendants(os.getpid()), signal.SIGTERM)
            last = min(last, time.monotonic() + _LEFT_SECONDS)
        elif state and last == math.inf:
            # The job passes it on to what it started.
            signal_all((job,), signal.SIGTERM)
            last = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > last:
            kill_tree(os.getpid())
        if code is not None and not descendants(os.getpid()):
            return JobExit(state=state or ("FAILED" if code else "COMPLETED"), exit_code=code)


def main() -> int:
    """Run the job that standard input describes, to its end."""
    job = SupervisedJob.model_validate_json(sys.stdin.read())
    # Not a child: its parent would have to reap it, or kill it with itself.
    if os.fork():
        return 0
    os.setsid()
    folder = Path(job.folder)
    me = Process.of(os.getpid())
    write_atomically(folder / "supervisor.json", me.model_dump_json() if me else "{}")
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    pid, problem = _fork(job)
    sys.stdout.write(json.dumps({"problem": problem} if problem else {"pid": pid}) + "\n")
    sys.stdout.flush()
    empty = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(empty, target)
    ending = _keep(pid, job.seconds, folder)
    write_atomically(folder / "exit.json", ending.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
