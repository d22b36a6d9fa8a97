"""A report that another process writes: read again only when it has changed."""

from pathlib import Path

from gipfel_cluster.model import GipfelError

from .report import REPORT, VettingReport, read_report


class ReportFile:
    """``vetting.json`` of a run folder, read as it grows.

    Parameters
    ----------
    folder
        The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / REPORT
        #: Names the content that was read last; empty for none.
        self.version = ""
        self._problem: GipfelError | None = None
        self._report: VettingReport | None = None

    def look(self) -> bool:
        """Read it if it has changed; whether it has.

        Raises
        ------
        GipfelError
            It can't be read, or is no report.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            changed = self.version != ""
            self._report, self._problem, self.version = None, None, ""
            return changed
        except OSError as error:
            raise GipfelError(f"{self.path} can't be read: {error.strerror}.") from error
        version = f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"
        changed = version != self.version
        if changed:
            self._report, self._problem, self.version = None, None, version
            try:
                self._report = read_report(self.path.parent)
            except GipfelError as error:
                # It is not read again before it changes: a page asks every second.
                self._problem = error
        if self._problem is not None:
            raise self._problem
        return changed

    @property
    def report(self) -> VettingReport | None:
        """What was read last; None where there is no report."""
        return self._report

    @property
    def changed_ns(self) -> int:
        """When the content that was read last was written, UTC in nanoseconds; 0 for none."""
        return int(self.version.partition("-")[0], 16) if self.version else 0
