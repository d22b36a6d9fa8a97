"""A vetting in a cell: `vet` shows it live, then as a table. ``src/widgets/vetting.tsx`` draws it."""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import traitlets

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.process.tree import end_child
from gipfel_cluster.runs import RunFolder, runs_root
from gipfel_extension.vetting.grid import grid_html, make_grid
from gipfel_extension.vetting.protocol_files import find_protocol
from gipfel_extension.vetting.report import VettingReport
from gipfel_extension.vetting.report_display import ReportFile, vet_argv

from .output import LiveWidget, ViewOutput, view_files, widget_bundle
from .run import KernelRun, node_name, present_run, run_of

_LOOK_S = 0.5
#: Seconds in which an interrupted vetting must write its report.
_END_S = 20.0
#: Rows of the table that a cell shows.
_MAX_ROWS = 60


class ReturnedReport(VettingReport):
    """A report whose text is its outcome in one line, which a cell shows if `vet` is its last expression."""

    def __repr__(self) -> str:
        return f"Vetting: {make_grid(self, max_rows=0).heading}"

    __str__ = __repr__


class Vetting(LiveWidget):
    """Grid of nodes and checks of a run's newest vetting, live while it runs; a table in a saved notebook.

    Parameters
    ----------
    run
        A run folder, or the ``run`` of a measurement; None for the run that this kernel belongs to.
    """

    _esm, _css = view_files("vetting")

    #: Fields of the `VettingGrid` of the report; empty while there is no report.
    grid = traitlets.Dict().tag(sync=True)
    #: Message that explains why there is no grid, or why it is no longer updated; else empty.
    message = traitlets.Unicode().tag(sync=True)

    def __init__(self, run: KernelRun | Path | str | None = None) -> None:
        self._file = ReportFile(_folder(run))
        self._since_ns = 0
        self._shown = ViewOutput()
        self._ended = threading.Event()
        super().__init__()
        self.refresh()
        threading.Thread(target=_follow, args=(weakref.ref(self), self._ended), daemon=True).start()

    @property
    def report(self) -> VettingReport | None:
        """Newest report; None if there is none yet."""
        found = self._file.report
        return None if found is None or found.started_ns < self._since_ns else found

    def await_newer(self) -> None:
        """Hide existing reports, because a new vetting starts."""
        self._since_ns = time.time_ns()
        self.grid, self.message = {}, "Starting the vetting…"

    def refresh(self) -> None:
        """Read the report again if it has changed."""
        try:
            changed = self._file.refresh()
        except GipfelError as error:
            self.message = str(error)
            return
        report = self.report
        if report is None:
            if not self.message:
                self.message = "Not vetted yet: run vet('quick')."
        elif changed or not self.grid:
            self.grid, self.message = make_grid(report, max_rows=_MAX_ROWS).model_dump(mode="json"), ""

    def stop(self) -> None:
        """Stop following the report; the cell keeps the table, which needs no kernel."""
        if not self._ended.is_set():
            self._ended.set()
            self.refresh()
            self._shown.replace(self._bundle())

    def _bundle(self) -> dict[str, Any]:
        if self.report is None:
            found: dict[str, Any] = {"text/plain": self.message}
        else:
            grid = make_grid(self.report, max_rows=_MAX_ROWS)
            found = {"text/plain": f"Vetting: {grid.heading}", "text/html": grid_html(grid)}
        if not self._ended.is_set():
            found |= widget_bundle(self.model_id)
        return found

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._bundle(), {}

    def _ipython_display_(self) -> None:
        self._shown.show(self._bundle())

    def __repr__(self) -> str:
        return str(self._bundle()["text/plain"])


def vet(
    protocol: str = "quick",
    *,
    action: str = "report",
    min_nodes: int | None = None,
    skip_vetted: str = "",
    timeout: float | None = None,
    show: bool = True,
) -> ReturnedReport:
    """Vet the nodes of this kernel's job, or this machine, and show the progress in the cell.

    Parameters
    ----------
    protocol
        A protocol file, or the name of a protocol that ``gipfel vet`` knows.
    action
        ``report``, ``abort`` or ``shrink``; see ``gipfel vet --help``.
    min_nodes
        Number of good nodes that must remain; None for all.
    skip_vetted
        A time such as ``1 h``: nodes that were vetted within this time don't run their single-node checks
        again.
    timeout
        Seconds after which the vetting is interrupted and reports what it has; None for the protocol's limit.
    show
        Show the progress in the cell.

    Returns
    -------
    ReturnedReport
        A `VettingReport`: ``.vetted`` is True if all nodes passed, ``.good_nodes`` are those that did, and
        ``.exclude`` is a hostlist of faulty ones for ``--exclude``.

    Raises
    ------
    GipfelError
        The protocol can't be read, or the run left no report.
    """
    if action not in {"report", "abort", "shrink"}:
        raise GipfelError(f"{action!r} is not a valid action in a notebook.", "Take report, abort or shrink.")
    found = find_protocol(protocol, directory=Path.cwd(), environment=os.environ)
    run = _own_run()
    view = Vetting(run)
    view.await_newer()
    if show:
        _display_view(view)
    argv = vet_argv(protocol, action=action, min_nodes=min_nodes, skip_vetted=skip_vetted)
    early, words = _run(argv, run, view, timeout)
    if view.report is None and early:
        raise GipfelError(f"{timeout:g} s were too short for a report.", "Give it more time.")
    if view.report is None:
        raise GipfelError(words or f"The vetting by {found.name} left no report.")
    return ReturnedReport.model_validate(view.report.model_dump())


def _run(argv: Sequence[str], run: Path, view: Vetting, timeout: float | None) -> tuple[bool, str]:
    """Run the command to its end; return whether the timeout ended it, and the last line that it wrote."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv,
            env={**os.environ, "GIPFEL_RUN": str(run)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        early = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            early = True
        finally:
            # It writes a report when it is terminated.
            end_child(process, _END_S)
            view.refresh()
            view.stop()
        log.seek(0)
        text = log.read().decode(errors="replace")
    lines = [one_line(line).removeprefix("gipfel: ") for line in text.splitlines() if line.strip()]
    return early, lines[-1] if lines else ""


def _follow(view: "weakref.ref[Vetting]", ended: threading.Event) -> None:
    """Refresh a view until it is stopped or garbage-collected."""
    while not ended.wait(_LOOK_S):
        shown = view()
        if shown is None:
            return
        # The directory may be unreadable for a moment; the next refresh may succeed.
        with contextlib.suppress(OSError, ReferenceError):
            shown.refresh()
        del shown


def _own_run() -> Path:
    """Return the run folder of this kernel's job, or else create one for this vetting."""
    present = present_run()
    if present is not None:
        return present.path
    name = f"vet-{os.getpid()}-{time.time_ns() // 1_000_000}"
    return RunFolder.create(runs_root(dict(os.environ)), node_name(os.environ), name).path


def _folder(run: KernelRun | Path | str | None) -> Path:
    found = run_of(run)
    if found is None:
        raise GipfelError("This kernel belongs to no run.", "Name a run folder, or call vet().")
    return found.path.parent if found.path.name == "vetting.json" else found.path


def _display_view(view: Vetting) -> None:
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython  # noqa: PLC0415 - only where there is a notebook

        if get_ipython() is not None:
            view._ipython_display_()
