"""Launches as a kind of workload: ``gipfel ps``, ``logs``, ``stop`` and ``rerun``."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.kinds import Report, Workload
from gipfel_cluster.workloads.logs import LogFiles
from gipfel_cluster.workloads.places import find_directory

from .launch import Launch, launch
from .launches.folder import LAUNCHES, known_folders
from .launches.logs import launch_logs
from .preflight import CheckOutcome


class LaunchKind:
    """Training launches, by their directories; a queued one's job is asked for its state."""

    name = "launch"

    def list(self, environment: Mapping[str, str]) -> Iterable[Workload]:
        """Return the user's launches in all runs, the newest last."""
        for folder in known_folders(environment, everywhere=True):
            with suppress(GipfelError):
                yield self._workload(folder)

    def find(self, word: str, environment: Mapping[str, str]) -> Workload | None:
        """Return the launch of a number, ``RUN/N`` or directory; None if there is none."""
        folder = find_directory(LAUNCHES, word, environment)
        return self._workload(folder) if folder and folder.parent.name == LAUNCHES else None

    def logs(self, workload: Workload) -> LogFiles:
        """Return the logs of its ranks."""
        return launch_logs(Path(workload.folder))

    def stop(self, workload: Workload, environment: Mapping[str, str]) -> None:  # noqa: ARG002 - the Protocol's
        """Ask its ranks to end; take it out of the queue if it waits there."""
        Launch.open(workload.folder).stop()

    def rerun(
        self,
        workload: Workload,
        environment: Mapping[str, str],
        *,
        directory: Path,
        report: Report,
        kill_holders: bool = False,
    ) -> Workload:
        """Continue a launch that its pre-flight held back, else launch the same again under a new number.

        Raises
        ------
        GipfelError
            It has not ended, or can't be started.
        """
        earlier = Launch.open(workload.folder)
        if not earlier.settle().ended:
            raise GipfelError(
                f"The launch {workload.id} has not ended.", f"Stop it with `gipfel stop {workload.id}`."
            )

        def on_outcome(outcome: CheckOutcome) -> None:
            report(outcome.line)

        held = earlier.folder if earlier.held_back else None
        started = launch(
            earlier.resumed_spec,
            environment,
            directory=directory,
            on_outcome=on_outcome,
            kill_holders=kill_holders,
            held=held,
        )
        return self._workload(Path(started.folder))

    def _workload(self, folder: Path) -> Workload:
        return Workload.of(self.name, folder, Launch(folder).settle())
