"""How often verdicts are right on real jobs: gloo ranks on two Slurm nodes of this machine, with one fault.

A cell is one launch of ``job_programs/paced.py``, with a fault from outside (a control group, ``tc``, a
signal) or in the program. Then `gipfel diagnose`, `gipfel flight-recorder` and the launch's state are read as
a user would. "right" names exactly the faulty rank, stage or cause; "wrong" names another one; "missed" none.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from intervals import wilson

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

from job_faults import cpu_s, half_cpu, readers, slow_port  # noqa: E402
from one_machine import OneMachine, wait_until  # noqa: E402 - of the tests on a cluster

#: Jobs of each kind of fault; for each of them seven healthy ones.
DRAWS, HEALTHY = 3, 7
#: Two jobs at a time would be more than one core's work.
WORKERS = 1
_EXTENSION = ROOT / "extension" / "gipfel_extension"
MEASURED = (_EXTENSION / "diagnosis", _EXTENSION / "training", ROOT / "tests" / "campaigns" / "job_programs")
PROGRAM = ROOT / "tests" / "campaigns" / "job_programs" / "paced.py"
#: Read once: a campaign takes an hour, and its files may be edited meanwhile.
_SOURCE = PROGRAM.read_bytes()
FAULTS = ("half_cpu", "asleep", "killed", "shape", "reader", "stage", "samples")
#: Of which the launch itself reports the end or the hang.
_STOPS = {"asleep", "killed", "shape"}
_STEPS, _ONSET = 42, 12
_HANG_AFTER_S, _LIMIT_S = 30, 600
_BLAMELESS = {"unknown", "change", "uneven_samples", "link"}
RIGHT = 0.95


@dataclass(frozen=True)
class JobPlan:
    """A job and its fault, drawn from a seed.

    Parameters
    ----------
    layout
        As ``gipfel launch --layout`` takes it.
    rank
        The faulty rank; of ``stage`` one of its ranks.
    """

    fault: str
    layout: Mapping[str, int]
    per_node: int
    rank: int
    onset: int
    launcher: str
    seed: int
    steps: int = _STEPS

    @classmethod
    def draw(cls, fault: str, seed: Sequence[object]) -> "JobPlan":
        """Draw a job of 4 to 8 ranks."""
        rng = random.Random(repr(seed))
        if fault == "stage":
            layout = rng.choice([{"dp": 4, "pp": 2}, {"pp": 2, "dp": 4}])
        elif fault in ("half_cpu", "reader", "samples"):
            layout = rng.choice([{"dp": 4}, {"dp": 6}, {"dp": 8}, {"pp": 2, "dp": 4}])
        else:
            layout = rng.choice([{"dp": 4}, {"dp": 6}, {"dp": 8}, {"pp": 2, "dp": 2}, {"dp": 4, "pp": 2}])
        ranks = _product(layout)
        launcher = rng.choice(["torchrun", "srun"])
        number = zlib.crc32(repr(seed).encode())
        return cls(
            fault, layout, ranks // 2, rng.randrange(ranks), _ONSET + rng.randrange(6), launcher, number
        )

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return _product(self.layout)

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """Ranks of the faulty rank's pipeline stage."""
        return tuple(rank for rank in range(self.ranks) if self.stage_of(rank) == self.stage_of(self.rank))

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank; the last axis of a layout changes fastest."""
        for axis, size in reversed(list(self.layout.items())):
            rank, coordinate = divmod(rank, size)
            if axis == "pp":
                return coordinate
        return 0

    def words(self, reader: str) -> list[str]:
        """Return the program's arguments."""
        found = [f"steps={self.steps}", f"seed={self.seed}"]
        if self.fault in ("asleep", "shape"):
            found.append(f"{self.fault}={self.rank}:{self.onset}")
        if self.fault == "stage":
            found.append(f"stage={','.join(map(str, self.stage_ranks))}")
        if self.fault == "samples":
            found.append("samples=0.25")
        if self.fault == "reader":
            found.append(f"reader={reader}")
        return found


def _product(layout: Mapping[str, int]) -> int:
    ranks = 1
    for size in layout.values():
        ranks *= size
    return ranks


class Job:
    """A launch on a cluster of this machine, and what is done to it from outside."""

    def __init__(self, machine: OneMachine, folder: Path, plan: JobPlan) -> None:
        self._machine, self._plan, self._runs = machine, plan, folder / "runs"
        self._environment = {
            **os.environ, **machine.environment, "GIPFEL_RUNS": str(self._runs), "GIPFEL_CLUSTER": "tests",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GIPFEL_NOTIFY": "",
        }  # fmt: skip
        self._launch = self._runs / "launches" / "?"

    def gipfel(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command as its user."""
        return subprocess.run(
            ["gipfel", *words], env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def state(self) -> dict[str, Any]:
        """Return the launch's state."""
        with contextlib.suppress(OSError, ValueError):
            content: dict[str, Any] = json.loads((self._launch / "state.json").read_text())
            return content
        return {"phase": "", "hang": None}

    def run(self) -> dict[str, Any]:
        """Run the job to its end or its alarm, and return what is said about it."""
        plan, program = self._plan, self._runs.parent / PROGRAM.name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_bytes(_SOURCE)
        with contextlib.ExitStack() as stack:
            reader = stack.enter_context(readers(self._machine.hub_address, plan.ranks))
            layout = ",".join(f"{axis}={size}" for axis, size in plan.layout.items())
            started = self.gipfel(
                "launch", "--engine", "host", "--scheduler", "slurm", "--no-preflight", "--nodes", "2",
                "--gpus-per-node", str(plan.per_node), "--launcher", plan.launcher, "--layout", layout,
                "--hang-after", str(_HANG_AFTER_S), "--", str(program), *plan.words(reader),
            )  # fmt: skip
            if started.returncode:
                raise RuntimeError(started.stderr)
            self._launch = self._launch.with_name(started.stdout.split()[-1])
            stack.callback(self.gipfel, "launch", "stop", self._launch.name)
            begin = time.monotonic()
            if plan.fault in ("half_cpu", "killed", "reader"):
                self._wait(lambda: self.steps() >= plan.onset)
                port = int(reader.rpartition(":")[2]) + plan.rank
                stack.enter_context(self._fault(port))
            self._wait(lambda: False)
            seconds = time.monotonic() - begin
            said, work = self._said(), self._work_s()
        return {"plan": plan.fault, "rank": plan.rank, "layout": dict(plan.layout), "ranks": plan.ranks,
                "launcher": plan.launcher, "seconds": round(seconds, 1), "work_s": work,
                "said": said, "judged": judge(plan, said)}  # fmt: skip

    def _wait(self, done: Callable[[], bool]) -> None:
        def over() -> bool:
            state = self.state
            stopped = self._plan.fault in _STOPS and bool(state["hang"])
            return done() or state["phase"] == "ended" or stopped

        if not wait_until(over, _LIMIT_S):
            raise RuntimeError(f"The job neither ended nor hung within {_LIMIT_S} s: {self.state}")

    def steps(self) -> int:
        """Return the last step that rank 0 has printed."""
        with contextlib.suppress(OSError):
            lines = re.findall(r"^STEP (\d+)", (self._launch / "rank-0.log").read_text(), re.MULTILINE)
            return int(lines[-1]) if lines else 0
        return 0

    @contextlib.contextmanager
    def _fault(self, port: int) -> Iterator[None]:
        if self._plan.fault == "reader":
            with slow_port(self._machine, port):
                yield
            return
        pid = self._pid()
        if self._plan.fault == "killed":
            os.kill(pid, signal.SIGKILL)
            yield
            return
        before, begin = cpu_s(pid), time.monotonic()
        time.sleep(3)
        needed = (cpu_s(pid) - before) / (time.monotonic() - begin)
        with half_cpu(pid, needed):
            yield

    def _pid(self) -> int:
        """Return the process of the faulty rank, as this machine counts."""
        variable, marker = f"RANK={self._plan.rank}".encode(), str(self._runs).encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (path / "environ").read_bytes()
                line = (path / "cmdline").read_bytes()
                if variable in variables.split(b"\0") and marker in variables and b"run.py" in line:
                    return int(path.name)
        raise RuntimeError(f"There is no process of rank {self._plan.rank}.")

    def _work_s(self) -> dict[int, float]:
        """Return each rank's median own work in the second half of its steps."""
        found: dict[int, list[float]] = {}
        with contextlib.suppress(OSError):
            for text in (Path(self.state["run"]) / "metrics.jsonl").read_text().splitlines():
                each = json.loads(text)
                if "work_s" in each["values"]:
                    found.setdefault(each["rank"], []).append(each["values"]["work_s"])
        return {rank: round(median(own[len(own) // 2 :]), 4) for rank, own in sorted(found.items())}

    def _said(self) -> dict[str, Any]:
        state = self.state
        diagnosed = self.gipfel("diagnose", str(state["run"]), "--json")
        recorded = self.gipfel("flight-recorder", str(self._launch), "--json")
        failure = state.get("failure") or {}
        return {
            "verdicts": json.loads(diagnosed.stdout)["verdicts"] if diagnosed.stdout else diagnosed.stderr,
            "recorder": json.loads(recorded.stdout) if recorded.stdout else None,
            "hang": state["hang"], "failed": failure.get("rank"), "outcome": state.get("outcome"),
        }  # fmt: skip


def judge(plan: JobPlan, said: Mapping[str, Any]) -> str:
    """Return "right", "missed" or "wrong"."""
    if isinstance(said["verdicts"], str):
        return "missed"
    blamed = [each for each in said["verdicts"] if each["kind"] not in _BLAMELESS]
    kinds = {each["kind"] for each in said["verdicts"]}
    recorder, hang = said["recorder"] or {}, said["hang"] or {}
    stopped = {each["rank"] for each in recorder.get("culprits", ())} | set(hang.get("ranks", ()))
    if plan.fault in _STOPS:
        if said["failed"] is not None and plan.fault != "shape":
            stopped.add(said["failed"])
        if any(set(each["ranks"]) != {plan.rank} for each in blamed) or stopped - {plan.rank}:
            return "wrong"
        return "right" if plan.rank in stopped else "missed"
    # A hang without a named rank is "cannot tell": one that ends slowly on a busy machine may raise it.
    if stopped or said["outcome"] != "completed":
        return "wrong"
    if plan.fault == "stage":
        stage = plan.stage_of(plan.rank)
        if any(each["kind"] != "uneven_stage" or each["stage"] != stage for each in blamed):
            return "wrong"
        return "right" if blamed else "missed"
    if plan.fault in ("half_cpu", "reader"):
        if any(each["ranks"] != [plan.rank] or each["kind"] not in ("slow_rank", "host") for each in blamed):
            return "wrong"
        return "right" if blamed else "missed"
    if blamed:
        return "wrong"
    return "right" if plan.fault == "healthy" or "uneven_samples" in kinds else "missed"


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return a job for each cell."""
    counts = dict.fromkeys(FAULTS, draws) | {"healthy": HEALTHY * draws}
    return {
        f"{fault}.{number:02}": partial(_measure, fault, seed, number)
        for fault, count in counts.items()
        for number in range(count)
    }


def _measure(fault: str, seed: int, number: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="gipfel-j-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        with OneMachine(folder / "slurm") as machine:
            return Job(machine, folder, JobPlan.draw(fault, (seed, fault, number))).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def line(document: Mapping[str, Any]) -> str:
    """Return one cell in a line."""
    said = document["said"]
    verdicts = said["verdicts"] if isinstance(said["verdicts"], list) else []
    named = [(each["kind"], each["ranks"], each["stage"]) for each in verdicts]
    return f"{document['judged']}: rank {document['rank']} of {document['layout']}, {named}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows for each fault: the share of right verdicts; and of all jobs that of wrong ones."""
    rows = []
    for fault in (*FAULTS, "healthy"):
        own = Counter(each["judged"] for each in documents.values() if each["plan"] == fault)
        total = own.total()
        if total:
            rows.append(
                _row(f"{fault}, right", own["right"], total, RIGHT, holds=own["right"] >= RIGHT * total)
            )
    wrong = sum(each["judged"] == "wrong" for each in documents.values())
    rows.append(_row("all, wrong", wrong, len(documents), 0.0, holds=not wrong))
    return rows


def _row(title: str, count: int, of: int, bound: float, *, holds: bool) -> dict[str, Any]:
    return {
        "name": f"jobs: {title}", "ours": count / of, "peer": None, "unit": "share", "ratio": None,
        "bound": bound, "holds": holds, "interval": wilson(count, of), "of": of,
    }  # fmt: skip
