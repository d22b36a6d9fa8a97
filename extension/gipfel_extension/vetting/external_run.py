"""A vetting run in another process: its command, and its report as it grows."""

import sys
from pathlib import Path

from gipfel_cluster.model import GipfelError

from .report import REPORT, VettingReport, read_report


class ReportFile:
    """``vetting.json`` of a run folder, read again only when it has changed.

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
        """Read the file if it has changed; return whether it has.

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
        """Return the last report that was read; None where there is none."""
        return self._report

    @property
    def changed_ns(self) -> int:
        """Return when the last content that was read was written, UTC in nanoseconds; 0 for none."""
        return int(self.version.partition("-")[0], 16) if self.version else 0


def vet_argv(
    protocol: str, *, action: str = "report", skip_vetted: str = "", min_nodes: int | None = None
) -> tuple[str, ...]:
    """Return ``gipfel vet`` by this interpreter; its report goes to the run folder of ``$GIPFEL_RUN``.

    Parameters
    ----------
    protocol
        A file, or a name that `find_protocol` knows.
    skip_vetted
        Such as ``1 h``: nodes that were vetted within it don't run their own checks again.
    """
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "vet", f"--action={action}"]
    if skip_vetted:
        argv.append(f"--skip-vetted={skip_vetted}")
    if min_nodes is not None:
        argv.append(f"--min-nodes={min_nodes}")
    return (*argv, "--", protocol)
