"""A kind of workload as another package would have it: it sleeps."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.workloads.directory import SPEC, new_directory, parent_directory
from gipfel_cluster.workloads.kinds import DirectoryKind, Report, Workload

_SUPERVISOR = """
import sys, time
from pathlib import Path
from gipfel_cluster.workloads.directory import STOP, WorkloadState, hold_supervisor_lock, write_state

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
state = WorkloadState(phase="running", name="sleep", title=f"sleep {seconds:g}", created_ns=time.time_ns(),
                      started_ns=time.time_ns())
with hold_supervisor_lock(folder), open(folder / "sleep.log", "w", buffering=1) as log:
    write_state(folder, state)
    log.write("going to sleep\\n")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (folder / STOP).exists():
        time.sleep(0.05)
    stopped = (folder / STOP).exists()
    log.write("stopped\\n" if stopped else "awake\\n")
    ended = {"phase": "ended", "outcome": "stopped" if stopped else "completed", "ended_ns": time.time_ns(),
             "exit_status": 143 if stopped else 0}
    write_state(folder, state.model_copy(update=ended))
"""


class SleepKind(DirectoryKind):
    """A workload that sleeps: all that a new kind needs."""

    name = "sleep"
    directory = "sleeps"

    @classmethod
    def start(cls, seconds: float, environment: Mapping[str, str]) -> Workload:
        folder = new_directory(parent_directory(cls.directory, environment))
        (folder / SPEC).write_text(json.dumps({"seconds": seconds}))
        subprocess.Popen(
            (sys.executable, "-c", _SUPERVISOR, str(folder), str(seconds)), start_new_session=True
        )
        deadline = time.monotonic() + 30
        while not (folder / "sleep.log").is_file() or not (folder / "state.json").is_file():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return cls()._workload(folder)

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,
        report: Report,
        kill_holders: bool = False,
    ) -> Workload:
        report("it sleeps again")
        return self.start(json.loads((Path(workload.folder) / SPEC).read_text())["seconds"], environment)


def install_sleep_kind(folder: Path) -> Path:
    """Write the metadata of a package with this kind; returns the directory for ``sys.path``."""
    package = folder / "site/sleeping-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sleeping\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[gipfel.workloads]\nsleep = {__name__}:SleepKind\n")
    return package.parent
