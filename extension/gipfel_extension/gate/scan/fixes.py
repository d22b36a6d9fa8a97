"""Find the line to change for a fixed version: in an image's Containerfile, else in its EDF.

`gipfel image build` records the path of the Containerfile in the provenance beside the image. Names and
versions come from foreign files, so that none is put into a suggested command unless it is plain.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gipfel_cluster.installs import named_paths
from gipfel_cluster.model import one_line

from ...telemetry.files import read_regular
from ..model import Vulnerability

_MAX_BYTES, _MAX_STATEMENT_BYTES = 128 << 10, 16 << 20
#: Characters of an instruction in which its command is searched for, and of a line that is shown.
_MAX_COMMAND, _MAX_LINE = 8000, 200
_PLAIN = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._+:~/-]{0,150}")
_FROM = re.compile(r"\s*FROM\s", re.IGNORECASE)
_HEREDOC = re.compile(r"<<-?['\"]?(\w+)")


class _Installer(NamedTuple):
    """Commands that install packages of one ecosystem; ``version`` matches what may follow a name."""

    command: re.Pattern[str]
    version: str
    pin: str
    #: Whether a line without a version installs the newest one when it runs again.
    upgrades: bool
    line: str


_VALUE = r"[^\s;&|'\"\\]*"
_APT = _Installer(
    re.compile(r"\bapt(?:-get)?\s.*\binstall\b"),
    rf"(?:=(?:{_VALUE}))?",
    "=",
    upgrades=True,
    line="RUN apt-get update && apt-get install -y --only-upgrade {name}",
)
_RPM = _Installer(
    re.compile(r"\b(?:dnf|microdnf|yum|zypper)\s.*\b(?:install|in)\b"),
    rf"(?:-[0-9]{_VALUE})?",
    "-",
    upgrades=True,
    line="RUN dnf upgrade -y {name}",
)
_INSTALLERS = {
    "PyPI": _Installer(
        re.compile(r"\bpip[0-9.]*\s+install\b|\buv\s+(?:pip\s+install|add|tool\s+install)\b"),
        rf"(?:\[[^\]\s]*\])?(?:[=~<>!]=?=?{_VALUE})?",
        "==",
        upgrades=False,
        line="RUN python3 -m pip install {name}=={fixed}",
    ),
    "npm": _Installer(
        re.compile(r"\bnpm\s+(?:.*\s)?(?:install|i|add)\b|\byarn\s+(?:global\s+)?add\b"),
        rf"(?:@{_VALUE})?",
        "@",
        upgrades=False,
        line="RUN npm install --global {name}@{fixed}",
    ),
    "Debian": _APT,
    "Ubuntu": _APT,
    "Alpine": _Installer(
        re.compile(r"\bapk\s.*\badd\b"),
        rf"(?:[=~<>]+{_VALUE})?",
        "=",
        upgrades=True,
        line="RUN apk add --upgrade {name}",
    ),
    **dict.fromkeys(("Rocky Linux", "AlmaLinux", "Red Hat", "openSUSE", "SUSE", "Fedora", "Mageia"), _RPM),
}


class FixLines:
    """The lines to change in the files that an image comes from.

    Parameters
    ----------
    declared
        The EDF whose image it is, as ``FILE:LINE``; by default the one that a build writes beside the image.
    """

    def __init__(self, image: Path, declared: str = "") -> None:
        self._image = image
        self._containerfile = _containerfile_of(image)
        self._text = _text(self._containerfile) if self._containerfile else ""
        self._edf = declared or _edf_beside(image)
        self._instructions = list(_run_instructions(self._text))
        self._by_command: dict[str, list[list[tuple[int, str]]]] = {}

    def fix(self, found: Vulnerability) -> str:
        """Return what to change where, in one line."""
        if not found.fixed:
            return "No fixed version is known: remove the package, or accept it in a file of exceptions."
        installer = _INSTALLERS.get(found.ecosystem.partition(":")[0])
        plain = all(_PLAIN.fullmatch(each) for each in (found.package, found.fixed))
        newer = f"{found.package} {found.fixed} or newer"
        if installer is None or not plain:
            places = [each for each in (self._from(), self._edf) if each]
            return one_line(f"{places[0]}: use an image with {newer}." if places else f"Use {newer}.")
        fixed = installer.line.format(name=found.package, fixed=found.fixed)
        if line := self._named(found, installer):
            return line
        if place := self._from():
            return f"{place}: add below it `{fixed}`"
        if self._edf:
            other = self._image.with_name(f"{self._image.stem}-fixed.sqsh")
            return one_line(
                f'{self._edf}: image = "{other}", built by `gipfel image build` from a Containerfile with '
                f"`# gipfel: base {self._image}`, `FROM scratch` and `{fixed}`"
            )
        return f"Add to its Containerfile `{fixed}`, which installs {newer}."

    def _from(self) -> str:
        """Return the place of the last FROM; empty without a Containerfile."""
        numbers = [number for number, line in enumerate(self._text.splitlines(), 1) if _FROM.match(line)]
        return f"{self._containerfile}:{numbers[-1]}" if numbers else ""

    def _named(self, found: Vulnerability, installer: _Installer) -> str:
        """Return the line that installs the package by its name, with the fixed version; else nothing."""
        token = _token(found, installer)
        for lines in self._with_command(installer):
            for number, line in lines:
                if match := token.search(line):
                    return _changed(f"{self._containerfile}:{number}", line, match, found, installer)
            required = self._required(lines, token, found, installer) if found.ecosystem == "PyPI" else ""
            if required:
                return required
        return ""

    def _with_command(self, installer: _Installer) -> list[list[tuple[int, str]]]:
        """Return the instructions that install packages of an ecosystem."""
        command = installer.command
        if command.pattern not in self._by_command:
            self._by_command[command.pattern] = [
                lines for lines in self._instructions if command.search(_joined(lines))
            ]
        return self._by_command[command.pattern]

    def _required(
        self,
        lines: list[tuple[int, str]],
        token: re.Pattern[str],
        found: Vulnerability,
        installer: _Installer,
    ) -> str:
        """Return the line of a requirements file that an instruction names and that lies in the context."""
        folder = self._containerfile.parent if self._containerfile else Path()
        for name in (name for name, is_file in named_paths(_joined(lines)) if is_file):
            path = folder / Path(name).name
            required = _text(path).splitlines()
            for number, line in enumerate(required, 1):
                match = token.match(line)
                if match:
                    hashed = any("--hash" in each for each in required[number - 1 : number + 1])
                    only = line[: match.end()]
                    fix = _changed(f"{path}:{number}", only, match, found, installer)
                    return f"{fix} with its hashes" if hashed else fix
        return ""


def _joined(lines: list[tuple[int, str]]) -> str:
    return " ".join(line for _, line in lines)[:_MAX_COMMAND]


def _token(found: Vulnerability, installer: _Installer) -> re.Pattern[str]:
    name = re.escape(found.package)
    if found.ecosystem == "PyPI":
        name = "[-_.]+".join(map(re.escape, re.split(r"[-_.]+", found.package)))
    flags = re.IGNORECASE if found.ecosystem == "PyPI" else 0
    return re.compile(rf"(?<![^\s'\"])({name})({installer.version})(?=[\s;&|'\"\\]|$)", flags)


def _changed(place: str, line: str, match: re.Match[str], found: Vulnerability, installer: _Installer) -> str:
    """Return the place and the line with the fixed version."""
    name, version = match[1], match[2]
    if installer.upgrades and not version:
        return one_line(
            f"{place}: build again with --no-cache: `{line.strip()[:_MAX_LINE]}` then installs "
            f"{found.package} {found.fixed} or newer"
        )
    extras = re.match(r"\[[^\]\s]*\]", version)
    safe = f"{name}{extras[0] if extras else ''}{installer.pin}{found.fixed}"
    changed = f"{line[: match.start()]}{safe}{line[match.end() :]}".strip()
    return one_line(f"{place}: write `{changed[:_MAX_LINE]}`")


def _run_instructions(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines of each RUN instruction, without comments."""
    lines: list[tuple[int, str]] = []
    until = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not until and line.lstrip().startswith("#"):
            continue
        begins = not lines
        if begins and not re.match(r"\s*RUN\s", line, re.IGNORECASE):
            continue
        lines.append((number, line))
        if begins and (heredoc := _HEREDOC.search(line)):
            until = heredoc[1]
        elif until and line.strip() == until:
            until = ""
        if not until and not line.rstrip().endswith("\\"):
            yield lines
            lines = []
    if lines:
        yield lines


def _text(path: Path) -> str:
    try:
        return read_regular(path, _MAX_BYTES, follow=True).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _containerfile_of(image: Path) -> Path | None:
    """Return the path in the provenance beside an image; None without one."""
    try:
        content = read_regular(Path(f"{image}.provenance.json"), _MAX_STATEMENT_BYTES, follow=True)
        source = json.loads(content)["predicate"]["buildDefinition"]["externalParameters"]["source"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Path(source) if isinstance(source, str) and source.startswith("/") and "\0" not in source else None


def _edf_beside(image: Path) -> str:
    # Imported here, since a kept result without vulnerabilities does not need it.
    from gipfel_cluster.edf.document import LineIndex  # noqa: PLC0415

    path = image.with_suffix(".toml")
    line = LineIndex(text).line("image") if (text := _text(path)) else None
    return f"{path}:{line}" if line else ""


def with_fixes(
    vulnerabilities: Iterable[Vulnerability],
    images: Iterable[tuple[Path, frozenset[tuple[str, str]]]],
    declared: str,
) -> list[Vulnerability]:
    """Return the vulnerabilities with what to change for each.

    Parameters
    ----------
    images
        Each scanned target with the names and versions of its packages.
    """
    places = [(FixLines(path, declared), packages) for path, packages in images]
    found = []
    for each in vulnerabilities:
        lines = next((fixes for fixes, packages in places if (each.package, each.version) in packages), None)
        found.append(each.model_copy(update={"fix": lines.fix(each)}) if lines else each)
    return found
