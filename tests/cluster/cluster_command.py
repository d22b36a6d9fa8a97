"""Command line of `one_machine`: start and stop a cluster that a background process keeps alive."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from one_machine import END_LIMIT_S, READY_LIMIT_S, OneMachine, missing, wait_until

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import write_atomically

_SCRIPT = Path(__file__).with_name("one_machine.py")


def _started(pid: int) -> int | None:
    """Return the start time of a process in ticks since boot; None if there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into the end of this block, so that everything is cleaned up."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(folder: Path, nodes: int, gpus: int, command: Sequence[str]) -> int:
    """Keep a cluster alive while a command runs, or until a signal; return the command's exit status."""
    with ended_by_signals(), OneMachine(folder, nodes=nodes, gpus=gpus) as machine:
        state_file = folder / "state.json"
        state = {
            "environment": machine.environment,
            "hub_address": machine.hub_address,
            "addresses": machine.addresses,
        }
        keeper = {"pid": os.getpid(), "started": _started(os.getpid())}
        write_atomically(state_file, json.dumps(keeper | state))
        print(f"Slurm is up: export SLURM_CONF={machine.environment['SLURM_CONF']}", flush=True)
        try:
            if not command:
                while True:
                    signal.pause()
            environment = {**os.environ, **machine.environment, "GIPFEL_HUB_IP": machine.hub_address}
            process = subprocess.Popen(command, env=environment)
            try:
                return process.wait()
            except BaseException:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()
                process.wait()
                raise
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            state_file.unlink(missing_ok=True)


def _up(folder: Path, nodes: int, gpus: int) -> int:
    reason = missing()
    if reason:
        raise GipfelError(reason)
    state = folder / "state.json"
    if state.exists() and _keeper_pid(state):
        raise GipfelError(
            f"A cluster runs in {folder} already.", f"End it: {_SCRIPT.name} down --folder {folder}"
        )
    state.unlink(missing_ok=True)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    argv = [
        sys.executable,
        str(_SCRIPT),
        "run",
        "--folder",
        str(folder),
        "--nodes",
        str(nodes),
        "--gpus",
        str(gpus),
    ]
    with (folder / "keeper.out").open("wb") as log:
        keeper = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    ready = wait_until(lambda: state.exists() or keeper.poll() is not None, READY_LIMIT_S + 20)
    if not ready or keeper.poll() is not None:
        keeper.terminate()
        # Its clean-up must not run into the next start in this folder.
        keeper.wait(READY_LIMIT_S)
        raise GipfelError((folder / "keeper.out").read_text())
    print((folder / "keeper.out").read_text().strip())
    return 0


def _keeper_pid(state: Path) -> int | None:
    """Return the PID of the process that keeps the cluster of a state file alive, None if it has ended."""
    keeper = json.loads(state.read_text())
    return keeper["pid"] if _started(keeper["pid"]) == keeper["started"] else None


def _down(folder: Path) -> int:
    state = folder / "state.json"
    pid = _keeper_pid(state) if state.exists() else None
    if pid is None:
        state.unlink(missing_ok=True)
        OneMachine(folder).close()
        return 0
    os.kill(pid, signal.SIGTERM)
    if not wait_until(lambda: _started(pid) is None, END_LIMIT_S + 30):
        os.kill(pid, signal.SIGKILL)
        state.unlink(missing_ok=True)
        OneMachine(folder).close()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``up``, ``down`` or ``run``."""
    parser = argparse.ArgumentParser(description="A real Slurm cluster on this machine.")
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("up", "down", "run"):
        one = actions.add_parser(action)
        one.add_argument("--folder", type=Path, required=True)
        if action in {"up", "run"}:
            one.add_argument("--nodes", type=int, default=2)
            one.add_argument("--gpus", type=int, default=4)
        if action == "run":
            one.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    folder = given.folder.absolute()
    try:
        if given.action == "up":
            return _up(folder, given.nodes, given.gpus)
        if given.action == "down":
            return _down(folder)
        command = given.command[1:] if given.command[:1] == ["--"] else given.command
        return _run(folder, given.nodes, given.gpus, command)
    except GipfelError as error:
        print(error, file=sys.stderr)
        return 1
