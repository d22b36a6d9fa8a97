"""Vetting run in another process: `vet_argv` is its command, `ReportFile` follows its report."""

import sys
from pathlib import Path

from gipfel_cluster.model import GipfelError

from .report import REPORT, VettingReport, read_report


class ReportFile:
    """``vetting.json`` of a run folder, which is read again only when it has changed.

    Parameters
    ----------
    folder
        The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / REPORT
        #: Identifies the content that was read last; empty where nothing was read.
        self.version = ""
        self._problem: GipfelError | None = None
        self._report: VettingReport | None = None

    def refresh(self) -> bool:
        """Read the file if it has changed; return whether it has.

        Raises
        ------
        GipfelError
            The file can't be read, or is not a report.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            changed = self.version != ""
            self._report, self._problem, self.version = None, None, ""
            return changed
        except OSError as error:
            raise GipfelError(f"{self.path} can't be read: {error.strerror}.") from error
        version = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
        changed = version != self.version
        if changed:
            self._report, self._problem, self.version = None, None, version
            try:
                self._report = read_report(self.path.parent)
            except GipfelError as error:
                # The error is kept until the file changes, because a page asks every second.
                self._problem = error
        if self._problem is not None:
            raise self._problem
        return changed

    @property
    def report(self) -> VettingReport | None:
        """Return the report that was read last; None where there is none."""
        return self._report

    @property
    def changed_ns(self) -> int:
        """Return when the content that was read last had been written, UTC in nanoseconds; 0 for none."""
        return int(self.version.partition("-")[0], 16) if self.version else 0


def vet_argv(
    protocol: str, *, action: str = "report", skip_vetted: str = "", min_nodes: int | None = None
) -> tuple[str, ...]:
    """Return the command of ``gipfel vet`` with this interpreter; ``$GIPFEL_RUN`` gets its report.

    Parameters
    ----------
    protocol
        A file, or a name that `find_protocol` knows.
    skip_vetted
        A duration such as ``1 h``: nodes vetted within it don't run their own checks again.
    """
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "vet", f"--action={action}"]
    if skip_vetted:
        argv.append(f"--skip-vetted={skip_vetted}")
    if min_nodes is not None:
        argv.append(f"--min-nodes={min_nodes}")
    return (*argv, "--", protocol)
