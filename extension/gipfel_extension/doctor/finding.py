"""The answer of one probe, and of all of them."""

from typing import Literal

from gipfel_cluster.model import Frozen, one_line

#: ``missing`` alone keeps something that is needed from working; a ``warning`` costs something.
Status = Literal["ok", "missing", "warning", "not applicable"]


class Finding(Frozen):
    """Result of one probe: ``what`` is the case, and ``fix`` the command or line that changes it."""

    name: str
    group: str
    status: Status
    what: str
    fix: str = ""


class Subject(Frozen):
    """Subject of a probe, which makes its findings."""

    name: str
    group: str

    def ok(self, what: str) -> Finding:
        """Return that it works."""
        return self._finding("ok", what, "")

    def missing(self, what: str, fix: str) -> Finding:
        """Return that something needed does not work."""
        return self._finding("missing", what, fix)

    def warning(self, what: str, fix: str) -> Finding:
        """Return that something optional does not work, or will not for long."""
        return self._finding("warning", what, fix)

    def not_applicable(self, what: str, fix: str = "") -> Finding:
        """Return that this machine has no use for it; ``fix`` is how it would get one."""
        return self._finding("not applicable", what, fix)

    def _finding(self, status: Status, what: str, fix: str) -> Finding:
        return Finding(
            name=self.name, group=self.group, status=status, what=one_line(what), fix=one_line(fix)
        )


class Examination(Frozen):
    """All findings, in the order of their groups."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether everything that is needed is there."""
        return not self.of("missing")

    def of(self, status: Status) -> tuple[Finding, ...]:
        """Return the findings of one status."""
        return tuple(each for each in self.findings if each.status == status)
