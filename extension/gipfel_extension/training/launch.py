"""Launching, and a launch that was started: everything is read from its folder, whoever started it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gipfel_cluster.at_once import at_once
from gipfel_cluster.broker.client import ask_now
from gipfel_cluster.broker.messages import Done, Spot, SuperviseRequest, broker_socket
from gipfel_cluster.broker.supervision import LOG, MODULE
from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import write_atomically

from ..telemetry.files import open_log, read_json, read_regular
from .launches.attempt import PROBE_FILE, PROGRAM_FILE
from .launches.folder import launches_folder, new_folder
from .launches.lifeline import settled_in_queue, settled_state, supervised
from .launches.logs import Cursor, LogPage, read_logs
from .launches.plan import LaunchPlan
from .launches.planning import plan_launch, shown_command, started_command
from .launches.progress import Progress, read_progress
from .launches.ranks import RankNote, read_notes
from .launches.state import (
    COMMAND,
    MOST_BYTES,
    PLAN,
    SPEC,
    STOP,
    LaunchState,
    read_state,
    write_state,
)
from .preflight import CheckOutcome, run_preflight
from .spec import LaunchSpec
from .standpoint import Standpoint, standpoint

__all__ = ["Launch", "Launched", "launch"]

_PROGRAMS = {PROGRAM_FILE: "rank_program.py", "run.py": "run_program.py", PROBE_FILE: "probe_program.py"}
_FIRST_S, _LONGEST_S = 0.2, 2.0
_SILENT_S = 90.0
_ASK_S = 30.0
_OUTCOMES = TypeAdapter(tuple[CheckOutcome, ...])


class Launched(Frozen):
    """What a dry run shows: the exact command, the pre-flight, and the folder, empty where none was made."""

    command: str
    preflight: tuple[CheckOutcome, ...] = ()
    folder: str = ""


class Launch:
    """A launch by its folder; it may run on another node, in a job that waits, or have ended long ago."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path | str) -> "Launch":
        """The launch of a folder.

        Raises
        ------
        GipfelError
            There is none.
        """
        found = cls(Path(folder))
        read_state(found.folder)
        return found

    @property
    def state(self) -> LaunchState:
        """What its supervisor, or whoever planned it, said last; ``lost`` where that was killed."""
        return settled_state(self.folder)

    @property
    def spec(self) -> LaunchSpec:
        """What was asked for."""
        return LaunchSpec.model_validate_json(read_regular(self.folder / SPEC, MOST_BYTES))

    @property
    def resumed_spec(self) -> LaunchSpec:
        """The same again, with the paths that it had, and told that it resumes where it has run before."""
        plan = LaunchPlan.load(self.folder)
        paths = {
            "directory": plan.directory,
            "target": plan.target,
            "checkpoint": plan.checkpoint,
            "python": plan.python,
        }
        if plan.spec.kind == "cell":
            paths["target"] = ""
        resumes = plan.spec.resume or self.state.started_ns is not None
        return plan.spec.model_copy(update={**paths, "resume": resumes})

    @property
    def command(self) -> str:
        """The exact command."""
        return read_regular(self.folder / COMMAND, MOST_BYTES).decode(errors="replace")

    @property
    def started_command(self) -> str:
        """The exact command of its last start, with its nodes and its port; empty before."""
        try:
            return started_command(LaunchPlan.load(self.folder), self.folder)
        except GipfelError:
            return ""

    @property
    def preflight(self) -> tuple[CheckOutcome, ...]:
        """What was checked before it was started."""
        try:
            return _OUTCOMES.validate_python(read_json(self.folder / "preflight.json", MOST_BYTES))
        except (OSError, ValueError):
            # Also that of another version: the launch itself can be shown all the same.
            return ()

    @property
    def ranks(self) -> dict[int, RankNote]:
        """Where each rank runs."""
        return read_notes(self.folder)

    @property
    def silent(self) -> bool:
        """Whether it claims to run and has said nothing for long: its supervisor may have been killed."""
        state = self.state
        quiet = time.time_ns() - state.updated_ns > _SILENT_S * 1e9
        return state.phase == "running" and quiet and not supervised(self.folder)

    def settle(self) -> LaunchState:
        """The state; where it waits, the queue is asked whether it still does."""
        state = self.state
        if state.phase != "queued":
            return state
        with contextlib.suppress(GipfelError, OSError):
            plan = LaunchPlan.load(self.folder)
            scheduler = standpoint(os.environ).scheduler(plan.scheduler) if plan.request else None
            return settled_in_queue(self.folder, state, scheduler)
        return state

    def logs(self, since: Cursor | None = None, *, ranks: tuple[int, ...] = ()) -> LogPage:
        """What the ranks have said since a cursor, in the order of time; see `read_logs`."""
        return read_logs(self.folder, since, ranks=ranks)

    @property
    def progress(self) -> Progress:
        """The last of the user's own metrics of this launch."""
        return read_progress(self.folder, self.state)

    def stop(self) -> None:
        """End the ranks, and nothing else; a launch that waits in the queue is taken out of it."""
        state = self.state
        if state.ended:
            return
        (self.folder / STOP).touch(mode=0o600)
        if state.phase == "queued" and state.job_id:
            plan = LaunchPlan.load(self.folder)
            at_once(standpoint(os.environ).scheduler(plan.scheduler).cancel(state.job_id))
        if state.phase in {"queued", "preflight"}:
            ended = {"phase": "ended", "outcome": "stopped", "exit_status": 143, "reason": "It was stopped."}
            write_state(self.folder, state.model_copy(update={**ended, "ended_ns": time.time_ns()}))

    def wait(
        self, timeout: float | None = None, *, tell: Callable[["Launch"], None] | None = None
    ) -> int | None:
        """Wait for its end and return its exit status; None where it still runs after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        pause, asked = _FIRST_S, time.monotonic()
        while True:
            if tell is not None:
                tell(self)
            state = self.state
            if time.monotonic() - asked > _ASK_S:
                asked = time.monotonic()
                state = self.settle()
            if state.ended:
                if tell is not None:
                    tell(self)
                return 1 if state.exit_status is None else state.exit_status
            if end is not None and time.monotonic() > end:
                return None
            time.sleep(pause)
            pause = min(pause * 1.2, _LONGEST_S if tell is None else 0.5)


def launch(
    spec: LaunchSpec,
    environment: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
    dry_run: bool = False,
    tell: Callable[[CheckOutcome], None] | None = None,
    planned: Callable[["Launch"], None] | None = None,
    free: bool = False,
) -> Launch | Launched:
    """Check, plan and start a launch; it goes on whatever becomes of this process.

    Parameters
    ----------
    environment
        The variables of this process, by which it is told where it is.
    directory
        Where relative paths start.
    dry_run
        Show what would run, after the pre-flight, and start nothing.
    tell
        Is told each outcome of the pre-flight.
    planned
        Is given the launch before anything is checked: its exact command stands in the folder.
    free
        End processes of this user in this job that hold the launch's GPUs; `tell` is told of them before.

    Raises
    ------
    GipfelError
        The spec can't be carried out, or the pre-flight found what would make it fail.
    """
    environment = dict(os.environ) if environment is None else dict(environment)
    if free and not spec.preflight:
        raise GipfelError("Without the pre-flight nobody knows what to free.", "Leave --no-preflight out.")
    here = standpoint(environment)
    folder = new_folder(launches_folder(environment))
    try:
        plan = plan_launch(spec, folder, here, environment, directory or Path.cwd())
        _fill(folder, plan)
        state = write_state(folder, _first_state(plan, folder))
        if planned is not None:
            planned(Launch(folder))
        freeing = free and not dry_run
        outcomes = run_preflight(plan, environment, here, tell, free=freeing) if spec.preflight else ()
        write_atomically(folder / "preflight.json", json.dumps([each.model_dump() for each in outcomes]))
        if dry_run:
            return Launched(command=Launch(folder).command, preflight=outcomes)
        _heed(outcomes, folder)
        _start(plan, state, folder, environment, here)
    except BaseException as error:
        _forget(folder, error)
        raise
    finally:
        if dry_run:
            shutil.rmtree(folder, ignore_errors=True)
    return Launch(folder)


def _heed(outcomes: tuple[CheckOutcome, ...], folder: Path) -> None:
    """Raise what keeps the launch from starting; where others hold its GPUs, it can go on later."""
    for outcome in outcomes:
        if outcome.verdict == "fail":
            kept = f" This launch is kept: `gipfel launch again {folder.name}`." if outcome.holders else ""
            raise GipfelError(outcome.message, outcome.fix + kept)


def _fill(folder: Path, plan: LaunchPlan) -> None:
    write_atomically(folder / SPEC, plan.spec.model_dump_json(indent=1) + "\n")
    write_atomically(folder / PLAN, plan.model_dump_json(indent=1) + "\n")
    write_atomically(folder / COMMAND, shown_command(plan))
    for name, source in _PROGRAMS.items():
        shutil.copyfile(Path(__file__).with_name(source), folder / name)
    for name in ("flight_recorder", "steps", "ranks", "errors"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)


def _first_state(plan: LaunchPlan, folder: Path) -> LaunchState:
    spec = plan.spec
    return LaunchState(
        phase="preflight",
        number=int(folder.name),
        name=spec.name,
        title=spec.title,
        where="job" if plan.request else "here",
        ranks=spec.ranks,
        scheduler=plan.scheduler,
        created_ns=time.time_ns(),
    )


def _start(
    plan: LaunchPlan, state: LaunchState, folder: Path, environment: Mapping[str, str], here: Standpoint
) -> None:
    if plan.request is not None:
        variables = {**here.environment(), **plan.request.environment}
        request = plan.request.model_copy(update={"environment": variables})
        queued = write_state(folder, state.model_copy(update={"phase": "queued", "reason": "submitting"}))
        job_id = at_once(here.scheduler(plan.scheduler).submit(request))
        # The job may have begun meanwhile, and its supervisor said so.
        now = read_state(folder)
        if now.phase == "queued":
            write_state(folder, queued.model_copy(update={"job_id": job_id, "reason": ""}))
        return
    write_state(folder, state.model_copy(update={"phase": "queued", "reason": "its supervisor is started"}))
    socket = broker_socket(environment)
    if socket is not None:
        ask_now(socket, SuperviseRequest(folder=Spot.of(folder)), Done)
        return
    log = open_log(folder / LOG)
    try:
        subprocess.Popen(
            (sys.executable, "-I", "-m", MODULE, str(folder)),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(log)


def _forget(folder: Path, error: BaseException) -> None:
    """Say in the folder why nothing was started; a folder without a state is taken away."""
    try:
        state = read_state(folder)
    except GipfelError:
        shutil.rmtree(folder, ignore_errors=True)
        return
    if not state.ended:
        ended: dict[str, Any] = {"phase": "ended", "outcome": "failed", "exit_status": 1}
        reason = (
            str(error) if isinstance(error, GipfelError) else f"It was broken off: {type(error).__name__}."
        )
        write_state(folder, state.model_copy(update={**ended, "reason": reason, "ended_ns": time.time_ns()}))
