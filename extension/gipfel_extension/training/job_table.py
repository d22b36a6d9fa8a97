"""How a batch notebook's runs are, as lines for a terminal; pure."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from gipfel_cluster.model import Frozen, one_line
from gipfel_cluster.scheduler import JobStatus

from .notebook_job import NotebookTask
from .papermill.progress import Progress

WIDTH = 80
_MOST_ROWS = 16
_ORDER = {"FAILED": 0, "RUNNING": 1, "COMPLETING": 1, "CONFIGURING": 1}


class TaskView(Frozen):
    """One run of the notebook as it is now; ``exit_status`` is None until it has ended."""

    task: NotebookTask
    status: JobStatus
    progress: Progress | None = None
    exit_status: int | None = None

    @property
    def word(self) -> str:
        """Its state in one word, as Slurm writes them."""
        if self.exit_status:
            return self.status.state if self.status.state not in {"", "COMPLETED"} else "FAILED"
        return self.status.state or ("COMPLETED" if self.exit_status == 0 else "UNKNOWN")


def sentence(view: TaskView) -> str:
    """One run in one line, for a log."""
    status, job = view.status, f"job {view.task.job_id}"
    if view.exit_status is not None:
        done = f", {view.progress}" if view.progress and view.exit_status else ""
        return f"{job} ended: {view.word}, exit status {view.exit_status}{done}"
    if status.answer == "unknown":
        return f"{job} is not known at the moment: {status.reason or 'the scheduler gives no state'}"
    if status.state != "RUNNING":
        parts = (status.reason, f"expected {status.expected_start}" if status.expected_start else "")
        return f"{job} is {status.state}" + "".join(f", {part}" for part in parts if part)
    where = f" on {', '.join(status.nodes)}" if status.nodes else ""
    return f"{job} is RUNNING{where}" + (f", {view.progress}" if view.progress else "")


def table(job_id: str, views: Sequence[TaskView], *, now: datetime) -> list[str]:
    """The runs as lines of at most `WIDTH` characters: a heading, then those that run or failed first."""
    counts = Counter(view.word for view in views)
    heading = f"job {job_id}  " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    named = any(view.task.values for view in views)
    lines = [
        heading,
        f"{'TASK':<6}{'STATE':<11}{'NODE':<14}{'CELLS':<9}{'TIME':<9}{'VALUES' if named else 'CELL'}",
    ]
    shown = sorted(views, key=lambda view: _ORDER.get(view.word, 2))[:_MOST_ROWS]
    lines += [_row(view, now) for view in sorted(shown, key=lambda view: _number(view.task.job_id))]
    if len(views) > len(shown):
        lines.append(f"and {len(views) - len(shown)} more")
    return [line[:WIDTH].rstrip() for line in lines]


def _row(view: TaskView, now: datetime) -> str:
    progress = view.progress
    cells = f"{progress.done}/{progress.cells}" if progress else ""
    node = view.status.nodes[0] if view.status.nodes else ""
    more = f"+{len(view.status.nodes) - 1}" if len(view.status.nodes) > 1 else ""
    values = " ".join(f"{name}={one_line(text)}" for name, text in view.task.values.items())
    said = values or (f"[{progress.current}] {progress.line}" if progress and progress.current else "")
    if view.exit_status and progress and progress.problem:
        said = progress.problem
    elif view.exit_status is None and view.word != "RUNNING" and view.status.reason:
        said = f"{said} ({view.status.reason})".strip()
    number = view.task.job_id.rpartition("_")[2] if "_" in view.task.job_id else "-"
    return f"{number:<6}{view.word:<11}{(node[:12] + more)[:13]:<14}{cells:<9}{_time(progress, now):<9}{said}"


def _time(progress: Progress | None, now: datetime) -> str:
    if progress is None:
        return ""
    seconds = progress.elapsed
    if progress.state == "running":
        try:
            seconds = (now - datetime.fromisoformat(progress.started)).total_seconds()
        except (ValueError, TypeError):
            return ""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _number(job_id: str) -> int:
    digits = job_id.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else 0


def now() -> datetime:
    """The time, for `table`."""
    return datetime.now(UTC)
