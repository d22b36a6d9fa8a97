"""Supervise one job of the local scheduler: start it, wait for it, and end it with all its processes.

``python -I -m gipfel_cluster.scheduler.supervisor`` reads a `SupervisedJob` as JSON from its input, so that
no variable's value is in an argument or a file. It answers with one line of JSON, ``{"pid"}`` or
``{"problem"}``, and outlives the process that started it. It writes ``supervisor.json`` (a `Process`) and, at
the end, ``exit.json`` (a `JobExit`) to the job's directory.
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
from ..process.tree import Process, adopt_orphans, descendants, kill_tree, signal_all
from ..runs import write_atomically
from .protocol import RUNNER, batch_script

#: Seconds between SIGTERM and SIGKILL for a job. A server and its kernels take 10, its other processes 10
#: (`end_descendants`), the recorders of this node 15 and of other nodes 20, the score 10 (`close_run`), the
#: tracking server 20 (`track_runs`); if many jobs end together, each takes longer.
GRACE_SECONDS = 100.0
#: The same for processes that a job leaves behind.
_REMAINING_SECONDS = 10.0
#: The file in the job's directory with the seconds by which its time limit was extended.
EXTENSION = "extension"
_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The module that the batch script runs; imported by name, because schedulers must not import it.
_RUNNER_MODULE = f"{RUNNER[-1]}.runner"


class SupervisedJob(Frozen):
    """A job for the supervisor.

    ``folder`` is its state directory, ``directory`` its working directory, ``output`` the path of its log
    (empty: none), ``user`` the unix user to run as (empty: this process's), ``time_limit_s`` its limit or
    None.
    """

    folder: str
    script: str
    directory: str
    output: str = ""
    environment: dict[str, str]
    user: str = ""
    time_limit_s: int | None = None


class JobExit(Frozen):
    """The end of a job: its state as Slurm names it, and its exit status (128 + n after signal n)."""

    state: str
    exit_code: int


def _change_user(user: str) -> None:
    if user:
        entry = pwd.getpwnam(user)
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)


def _execute(job: SupervisedJob, pipe: int) -> None:
    """Turn this forked process into the job, and close `pipe`; never return, but raise if that fails."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # The script is in memory, because the job's user may not be able to read this user's directories.
    script = os.memfd_create("job", 0)
    os.write(script, job.script.encode())
    os.fchmod(script, 0o755)
    _change_user(job.user)
    # The job gets SIGTERM when its supervisor is killed.
    die_with_parent(signal.SIGTERM)
    os.chdir(job.directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(job.output or os.devnull, flags, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for target, source in ((0, empty), (1, log), (2, log)):
        os.dup2(source, target)
    if not job.user and job.script == batch_script(sys.executable):
        # The script would start the same interpreter: run its program in this process, which has loaded most
        # of it.
        os.close(pipe)
        _run_in_process(job)
    os.execve("/bin/sh", ["/bin/sh", f"/proc/self/fd/{script}"], job.environment)  # noqa: S606 - a fixed program


def _run_in_process(job: SupervisedJob) -> NoReturn:
    """Run the job's runner in this process; never return."""
    status = 1
    try:
        # Imported in the job's process only.
        run_job = importlib.import_module(_RUNNER_MODULE).main
        become_program((sys.executable, *RUNNER), job.environment)
        status = run_job()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - no code of the supervisor may run in the job's process
        traceback.print_exc()
    finally:
        os._exit(status)


def _fork(job: SupervisedJob) -> tuple[int, str]:
    """Start the job, and return its process id and the problem that prevented its start, if any."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read) as pipe:
            return pid, pipe.read()
    try:
        os.close(read)
        _execute(job, write)
    except KeyError:
        os.write(write, f"There is no unix user {job.user}.".encode())
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        os.write(write, f"{error.strerror}{where}.".encode())
    finally:
        os._exit(126)


def _reap(job: int) -> int | None:
    """Reap ended children, and return the job's exit status if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == job:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    return status


def _extension(folder: Path) -> int:
    """Return the seconds added to the time limit since the job started; see `EXTENSION`."""
    try:
        return int((folder / EXTENSION).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _wait_for_job(job: int, time_limit_s: int | None, folder: Path) -> JobExit:
    """Wait for the job; end it on a signal or at its time limit, and then the processes that it leaves."""
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    state, code, kill_time = "", None, math.inf
    while True:
        caught = signal.sigtimedwait(_WATCHED, 1.0 if kill_time == math.inf else 0.2)
        if caught is not None and caught.si_signo != signal.SIGCHLD:
            state = state or "CANCELLED"
        # Read the file only when the original limit is reached.
        if deadline is not None and (over := time.monotonic() - deadline) > 0 and over > _extension(folder):
            state = state or "TIMEOUT"
        ended = _reap(job)
        if ended is not None:
            code = ended
            signal_all(descendants(os.getpid()), signal.SIGTERM)
            kill_time = min(kill_time, time.monotonic() + _REMAINING_SECONDS)
        elif state and kill_time == math.inf:
            # The job forwards it to its processes.
            signal_all((job,), signal.SIGTERM)
            kill_time = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > kill_time:
            kill_tree(os.getpid())
        if code is not None and not descendants(os.getpid()):
            return JobExit(state=state or ("FAILED" if code else "COMPLETED"), exit_code=code)


def main() -> int:
    """Run the job that standard input describes; return 0 at once, while a fork supervises the job."""
    job = SupervisedJob.model_validate_json(sys.stdin.read())
    # Detach from the parent, which otherwise would have to reap this process, and could not end without it.
    if os.fork():
        return 0
    os.setsid()
    folder = Path(job.folder)
    this = Process.of(os.getpid())
    write_atomically(folder / "supervisor.json", this.model_dump_json() if this else "{}")
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    pid, problem = _fork(job)
    sys.stdout.write(json.dumps({"problem": problem} if problem else {"pid": pid}) + "\n")
    sys.stdout.flush()
    devnull = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(devnull, target)
    job_exit = _wait_for_job(pid, job.time_limit_s, folder)
    write_atomically(folder / "exit.json", job_exit.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
