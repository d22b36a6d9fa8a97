"""Which nodes of a job a launch may use: those that pass its vetting protocol, run here by ``gipfel vet``."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.scheduler.hostlist import expand_hostlist, fold_hostlist
from gipfel_cluster.steps import StepSetting
from gipfel_cluster.steps.here import last_line

from ...telemetry.files import open_log, read_json
from ..spec import LaunchSpec
from .plan import LaunchPlan

__all__ = ["excluded_nodes", "vetted_nodes"]

REPORT, LOG, PROTOCOL = "vetting.json", "vetting.log", "vetting.yaml"
_LOOK_S = 0.5
_END_S = 30.0


def vetted_nodes(
    plan: LaunchPlan, setting: StepSetting, environment: Mapping[str, str], stopped: Callable[[], bool]
) -> tuple[str, ...]:
    """All nodes of the job where no vetting is asked for, else those that passed, in Slurm's order.

    Nodes that the spec excludes are never among them.

    Raises
    ------
    GipfelError
        Too few passed, with what the report says, or it could not be run.
    """
    spec = plan.spec
    excluded = set(expand_hostlist(spec.exclude)) if spec.exclude else set()
    nodes = tuple(node for node in setting.nodes if node not in excluded)
    if not spec.vetting:
        return nodes
    folder = Path(plan.host_folder)
    least = spec.nodes_min or spec.nodes
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "vet"]
    argv += [plan.vetting or spec.vetting, "--action", "shrink"]
    argv += [f"--min-nodes={least}", f"--json={folder / REPORT}"]
    variables = {**environment, "GIPFEL_EDF": setting.edf, "GIPFEL_RUN": setting.run or str(folder)}
    status = _run(argv, variables, folder, stopped)
    found = _report(folder / REPORT)
    listed = found.get("nodes")
    good = {
        str(each.get("node"))
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and each.get("vetted") is True
    }
    if status or len(good) < least:
        why = found.get("outcome") or last_line(folder / LOG) or f"exit status {status}"
        whose = (
            "leave the bad nodes out with --exclude"
            if found.get("exclude")
            else "it says whose the fault is. No node has one of its own: leaving nodes out mends nothing"
        )
        raise GipfelError(
            f"The nodes are not vetted by {spec.vetting}: {one_line(str(why))[:400]}",
            f"See {folder / REPORT}; {whose}.",
        )
    return tuple(node for node in nodes if node in good)


def excluded_nodes(spec: LaunchSpec, cluster: str, environment: Mapping[str, str]) -> str:
    """What a job of a launch leaves out, as a hostlist: what was asked, and what vetting found bad of late.

    Without vetting, only what was asked; a list that can't be read keeps nothing from starting.
    """
    if not spec.vetting:
        return spec.exclude
    from ...vetting.history.exclusions import Exclusions  # noqa: PLC0415 - most launches need none of it
    from ...vetting.history.store import History, history_root  # noqa: PLC0415

    try:
        known, _ = Exclusions(History(history_root(environment), cluster).folder).read()
        asked = expand_hostlist(spec.exclude) if spec.exclude else ()
    except (GipfelError, OSError, ValueError):
        return spec.exclude
    return fold_hostlist({*asked, *(each.node for each in known)})


def _run(argv: list[str], environment: Mapping[str, str], folder: Path, stopped: Callable[[], bool]) -> int:
    (folder / REPORT).unlink(missing_ok=True)
    log = open_log(folder / LOG)
    try:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    finally:
        os.close(log)
    while (status := process.poll()) is None:
        if stopped():
            process.terminate()
            try:
                return process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()
        time.sleep(_LOOK_S)
    return status


def _report(path: Path) -> dict[str, object]:
    from ...vetting.report import MOST_REPORT_BYTES  # noqa: PLC0415 - as above

    try:
        content = read_json(path, MOST_REPORT_BYTES)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
