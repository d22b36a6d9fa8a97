"""Track a run in MLflow: once, resumed after an interruption, and repeated without duplicates.

The run folder keeps everything, so nothing is lost while a server is down: ``tracking.json`` in the run
folder says what the server already has, and the next call continues from there. On the server the tag
``gipfel.key`` identifies a run. Its metrics are those that its programs logged, with their steps, and
hardware metrics under MLflow's names.
"""

import math
import posixpath
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gipfel_cluster.model import Frozen, GipfelError, OneLine, one_line
from gipfel_cluster.regular_files import read_regular
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.workloads.run_folders import Run, list_runs

from ..telemetry.sample import Device, SourceError
from ..telemetry.store.overview import Overview, read_overview
from ..telemetry.user_metrics import UserMetric, UserMetrics, read_metrics
from .mlflow_client import MlflowClient, MlflowRun, Point
from .run_document import RunDocument, describe, user_name

#: Maximum number of points of hardware metrics of a run. MLflow accepts about 1 000 points per second.
MAX_HARDWARE_POINTS = 30_000
_MIN_BUCKETS, _MAX_BUCKETS = 30, 4000
_MAX_NAME = 250
_STEP = "step"
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_\-. :/]")
_MEGABYTE, _PERCENT = 1e-6, 100.0


@dataclass(frozen=True)
class Series:
    """One metric over time; arrays of the same length, sorted by time.

    Parameters
    ----------
    time_ns
        UTC, in nanoseconds since 1970.
    """

    name: str
    step: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    values: NDArray[np.float64]


#: Hardware metrics: MLflow's own name for it, else DCGM's name in lower case; Gipfel's name; the factor.
_GPU = (
    ("utilization_percentage", "GPU_UTIL", _PERCENT),
    ("memory_usage_megabytes", "FB_USED", _MEGABYTE),
    ("power_usage_watts", "POWER_USAGE", 1.0),
    ("sm_active", "SM_ACTIVE", 1.0),
    ("tensor_active", "PIPE_TENSOR_ACTIVE", 1.0),
    ("dram_active", "DRAM_ACTIVE", 1.0),
)
_HOST = (
    ("cpu_utilization_percentage", "CPU_UTIL", _PERCENT),
    ("system_memory_usage_megabytes", "MEMORY_USED", _MEGABYTE),
    ("network_receive_megabytes", "NET_RX_BYTES", _MEGABYTE),
    ("network_transmit_megabytes", "NET_TX_BYTES", _MEGABYTE),
)
#: MLflow shows totals of these metrics, while the recorder has rates.
_TOTALS = ("network_receive_megabytes", "network_transmit_megabytes")


def user_series(run: Path, launch: str | None = "") -> list[Series]:
    """Return the metrics that programs logged; those of ranks other than 0 are named like ``rank_3/loss``.

    Parameters
    ----------
    launch
        Launch whose ranks logged the metrics; "" for metrics that were logged outside of launches.
    """
    metrics = read_metrics(run)
    own = UserMetrics(tuple(each for each in metrics.series if each.launch == launch))
    steps = {(each.node, each.rank): each for each in own.series if each.name == _STEP}
    found: dict[str, Series] = {}
    for each in own.series:
        if each.name == _STEP:
            continue
        name = _unique(metric_name(_ranked(each)), found)
        step = _steps(each, steps.get((each.node, each.rank)))
        found[name] = Series(name, step, each.time_ns, each.values)
    return list(found.values())


def hardware_series(run: Path, max_points: int = MAX_HARDWARE_POINTS) -> list[Series]:
    """Return means of GPUs and hosts, ``system/<node>/…``, in buckets so that there are at most `max_points`.

    An empty list if the run has no samples.
    """
    telemetry = run / "telemetry"
    if not telemetry.is_dir():
        return []
    wanted = tuple(dict.fromkeys(name for _, name, _ in (*_GPU, *_HOST)))
    overview = read_overview(telemetry, buckets=_MIN_BUCKETS, metrics=wanted)
    per_bucket = sum(len(_GPU if each.kind == "gpu" else _HOST) for each in overview.devices)
    if not per_bucket:
        return []
    buckets = max(_MIN_BUCKETS, min(_MAX_BUCKETS, max_points // per_bucket))
    if buckets > _MIN_BUCKETS:
        overview = read_overview(telemetry, buckets=buckets, metrics=wanted)
    return [each for row in range(len(overview.devices)) for each in _device_series(overview, row)]


def metric_name(text: str) -> str:
    """Return a name that MLflow accepts: its characters, no empty or dot segments, at most 250 characters."""
    plain = _NOT_ALLOWED.sub("_", text)[:_MAX_NAME]
    segments = [each for each in posixpath.normpath(f"/{plain}").split("/") if each]
    return "/".join(segments) or "_"


def _ranked(metric: UserMetric) -> str:
    return metric.name if metric.rank in {None, 0} else f"rank_{metric.rank}/{metric.name}"


def _unique(name: str, taken: dict[str, Series]) -> str:
    number, candidate = 2, name
    while candidate in taken:
        candidate = f"{name[: _MAX_NAME - 8]}_{number}"
        number += 1
    return candidate


def _steps(metric: UserMetric, steps: UserMetric | None) -> NDArray[np.int64]:
    """Return the step that was logged together with each value; without one, a counter from 0."""
    count = len(metric.time_ns)
    counter = np.arange(count, dtype=np.int64)
    if steps is None or not len(steps.time_ns):
        return counter
    at = np.searchsorted(steps.time_ns, metric.time_ns, side="right") - 1
    known = np.where(at >= 0, steps.values[np.maximum(at, 0)], math.nan)
    valid = np.isfinite(known) & (np.abs(known) < 2**53)
    return np.where(valid, np.where(valid, known, 0).astype(np.int64), counter)


def _device_series(overview: Overview, row: int) -> Iterator[Series]:
    device = overview.devices[row]
    for name, metric, factor in _GPU if device.kind == "gpu" else _HOST:
        if metric not in overview.mean:
            continue
        values = overview.mean[metric][row] * factor
        if name in _TOTALS:
            values = np.nancumsum(values) * overview.bucket_ns / 1e9
        known = np.flatnonzero(np.isfinite(overview.mean[metric][row]))
        if len(known):
            label = _prefix(device) + name
            yield Series(metric_name(label), known.astype(np.int64), overview.time_ns[known], values[known])


def _prefix(device: Device) -> str:
    node = (device.node or "node").replace("/", "_")
    return f"system/{node}/" if device.kind == "host" else f"system/{node}/gpu_{device.index or 0}_"


STATE_FILE = "tracking.json"
_MAX_STATE_BYTES = 1 << 20
#: Values of slower ranks may be written this much later than those of the first. Points of this time are sent
#: again, and the server drops duplicates.
_OVERLAP_NS = 120 * 10**9
#: MLflow's names for tags that its pages show, by the names in `RunDocument`.
_MLFLOW_TAGS: Mapping[str, str] = {
    "program": "mlflow.source.name",
    "commit": "mlflow.source.git.commit",
    "image": "mlflow.docker.image.uri",
    "image_digest": "mlflow.docker.image.id",
    "note": "mlflow.note.content",
}

#: Callback with the number of points that were sent so far, and the number of all points.
Progress = Callable[[int, int], None]


class TrackedRun(Frozen):
    """Content of ``tracking.json``, and the result of `Tracker.track`.

    ``until_ns`` is the UTC time of the newest user metric on the server. ``complete`` is True if the run had
    ended when it was tracked, so that nothing is missing on the server. ``skipped`` lists files that were not
    uploaded, with the reason.
    """

    uri: OneLine = Field(max_length=2000)
    experiment: OneLine = Field(max_length=500)
    experiment_id: OneLine = Field("", max_length=200)
    run_id: OneLine = Field("", max_length=200)
    until_ns: int = 0
    points: int = Field(0, ge=0)
    files: int = Field(0, ge=0)
    complete: bool = False
    skipped: tuple[OneLine, ...] = ()
    launches: dict[str, str] = Field(default={})
    """Run IDs on the server of the launches in the run, by number."""

    @property
    def url(self) -> str:
        """Return the address of the run's page."""
        return f"{self.uri.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{self.run_id}"


def read_tracked(run: Path) -> TrackedRun | None:
    """Return where a run was tracked; None if it never was, or if ``tracking.json`` can't be read."""
    try:
        return TrackedRun.model_validate_json(read_regular(run / STATE_FILE, _MAX_STATE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def pending_runs(uri: str, environment: Mapping[str, str]) -> Iterator[Run]:
    """Yield the ended runs that are not completely on a server, the oldest first."""
    for run in list_runs(environment):
        tracked = read_tracked(Path(run.folder))
        is_complete = tracked is not None and tracked.complete and tracked.uri == uri
        if not is_complete and not run.in_use_reason:
            yield run


@dataclass(frozen=True)
class _Target:
    """A run on the server with its document, and with the user metrics and hardware metrics to send."""

    document: RunDocument
    run: MlflowRun
    series: tuple[Series, ...]
    hardware: tuple[Series, ...] = ()


@dataclass(frozen=True)
class Tracker:
    """Sender of runs to an MLflow server, with launches as child runs.

    Parameters
    ----------
    experiment
        Name of the experiment; it is created if the server has none.
    files
        Upload record, score, vetting report and ends of logs as artifacts.
    make_report
        Function that returns the page of ``gipfel report`` for a run folder, to upload it too.
    progress
        Function that is called while metrics are sent.
    """

    client: MlflowClient
    experiment: str
    files: bool = True
    make_report: Callable[[Path], bytes] | None = None
    progress: Progress | None = None

    def track(self, run: Run) -> TrackedRun:
        """Send what is missing on the server, and return where the run is.

        Of a run that has not ended, only parameters and user metrics are sent; a later call sends the rest.

        Raises
        ------
        GipfelError
            The server can't be reached or refuses something. What it has so far is kept.
        """
        folder = Path(run.folder)
        document = describe(run)
        before = read_tracked(folder)
        if before is None or (before.uri, before.experiment) != (self.client.uri, self.experiment):
            before = TrackedRun(uri=self.client.uri, experiment=self.experiment)
        experiment_id = self.client.experiment(self.experiment)
        # Hardware metrics are sent once, as a whole, when the run has ended.
        is_new_end = document.has_ended and not before.complete
        targets = list(self._targets(experiment_id, document, folder, with_hardware=is_new_end))
        launches = {each.document.launch.rpartition("/")[2]: each.run.run_id for each in targets[1:]}
        found = {"experiment_id": experiment_id, "run_id": targets[0].run.run_id, "launches": launches}
        state = before.model_copy(update={**found, "skipped": ()})
        _save(folder, state)
        since_ns = before.until_ns - (0 if before.complete else _OVERLAP_NS)
        sent = self._send(targets, since_ns)
        newest = [int(each.time_ns[-1]) for target in targets for each in target.series if len(each.time_ns)]
        state = state.model_copy(update={"until_ns": max([state.until_ns, *newest]), "points": sent})
        _save(folder, state)
        uploaded, skipped = self._upload(targets, folder) if self.files and document.has_ended else (0, [])
        # Finish the parent run last: once it has ended, its child runs are complete.
        for target in reversed(targets):
            each = target.document
            self.client.finish(target.run.run_id, each.status, each.ended_ms, each.title[:_MAX_NAME])
        done = {"complete": document.has_ended, "files": uploaded, "skipped": tuple(skipped)}
        state = state.model_copy(update=done)
        _save(folder, state)
        return state

    def _targets(
        self, experiment_id: str, document: RunDocument, folder: Path, *, with_hardware: bool
    ) -> Iterator[_Target]:
        """Yield the run, then its launches, found or created on the server with parameters and tags."""
        parent = self._prepared(experiment_id, document, folder)
        hardware = hardware_series(folder) if with_hardware else ()
        yield _Target(document, parent, tuple(user_series(folder)), tuple(hardware))
        for child in document.children:
            run = self._prepared(experiment_id, child, folder, parent.run_id)
            yield _Target(child, run, tuple(user_series(folder, child.launch)))

    def _prepared(
        self, experiment_id: str, document: RunDocument, folder: Path, parent: str = ""
    ) -> MlflowRun:
        user, title = user_name(), document.title[:_MAX_NAME]
        tags = {
            "mlflow.user": user,
            "mlflow.source.type": "JOB",
            "mlflow.runName": title,
            # Run folders of other users may have the same name.
            "gipfel.key": f"{user}:{document.key}",
            **({"mlflow.parentRunId": parent} if parent else {}),
            **{_MLFLOW_TAGS.get(name, name): value for name, value in document.tags.items()},
        }
        found = self.client.find_run(experiment_id, tags["gipfel.key"])
        if found is not None:
            self.client.set_tags(found.run_id, tags)
            return found
        started = document.started_ms or round(folder.stat().st_mtime * 1000)
        found = self.client.create_run(experiment_id, title, started_ms=started, tags=tags)
        parameters = {metric_name(name): value for name, value in document.parameters.items()}
        self.client.log_parameters(found.run_id, parameters)
        return found

    def _send(self, targets: list[_Target], since_ns: int) -> int:
        """Send the metrics of all targets that are newer than `since_ns`; return their number."""
        total = sum(_count(each, since_ns) for each in targets)
        sent = 0
        for target in targets:
            for count in self.client.log_metrics(target.run.run_id, _points(target, since_ns)):
                sent += count
                if self.progress is not None:
                    self.progress(sent, total)
        return sent

    def _upload(self, targets: list[_Target], folder: Path) -> tuple[int, list[str]]:
        """Upload the files of all targets; return their number, and what was skipped with the reason."""
        uploaded, skipped = 0, []
        if self.make_report is not None:
            try:
                report = self.make_report(folder)
            except SourceError as error:
                # The samples behind a score may have been deleted.
                skipped.append(f"gipfel/report.html: {one_line(str(error))}")
            else:
                self.client.upload(targets[0].run, "gipfel/report.html", report)
                uploaded += 1
        for target in targets:
            for file in target.document.files:
                try:
                    content = file.read()
                except OSError as error:
                    skipped.append(f"{file.path}: {error.strerror or error}")
                    continue
                self.client.upload(target.run, file.path, content)
                uploaded += 1
        return uploaded, skipped


def _count(target: _Target, since_ns: int) -> int:
    count = sum(int((each.time_ns > since_ns).sum()) for each in target.series)
    count += sum(len(each.time_ns) for each in target.hardware)
    return count + (len(target.document.results) if target.document.has_ended else 0)


def _points(target: _Target, since_ns: int) -> Iterator[Point]:
    new = [(each, int(each.time_ns.searchsorted(since_ns, side="right"))) for each in target.series]
    for series, first in (*new, *((each, 0) for each in target.hardware)):
        rows = zip(
            series.values[first:].tolist(),
            (series.time_ns[first:] // 10**6).tolist(),
            series.step[first:].tolist(),
            strict=True,
        )
        for value, when, step in rows:
            yield series.name, value, when, step
    if target.document.has_ended:
        when = target.document.ended_ms or round(time.time() * 1000)
        for name, value in target.document.results.items():
            yield metric_name(name), value, when, 0


def _save(folder: Path, state: TrackedRun) -> None:
    try:
        write_atomically(folder / STATE_FILE, state.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise GipfelError(
            f"{folder / STATE_FILE} can't be written: {error.strerror or error}.",
            "Track a run from the account that it belongs to.",
        ) from error
